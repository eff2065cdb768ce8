"""The rollouts of a run have the numbers that each answer was trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import mint
from mint import types
from mint.rl import RLConfig
from mint.watch.directory.reader import open_run
from tests.rl.conftest import Letters
from tests.rl.stepping import stepping

REWARDS = [0.5, 1.0, 1.0, 0.5, 0.0, 0.5, 0.0, 0.5]  # a mini-batch that raises, one that lowers


class Moody(Letters):
    """Pays equal answers to one prompt differently, as a judge with a temperature does."""

    def build_dataset(self) -> list[str]:
        return ["7:", "8:"]

    def compute_rewards(self, responses: Sequence[str], sample: str) -> list[float]:
        return REWARDS if sample == "7:" else [0.0] * len(responses)


class Reversed(Moody):
    def edit_datums(self, datums: list[types.Datum]) -> list[types.Datum]:
        return datums[::-1]


@pytest.mark.parametrize("task", [Moody(), Reversed()], ids=["as they are", "reordered"])
def test_equal_answers_keep_their_own_advantages_and_trainer_logprobs(
    client: mint.ServiceClient,
    settings: Callable[..., RLConfig],
    tmp_path: Path,
    task: Moody,
) -> None:
    """Two mini-batches: the second is scored by weights that the first has changed."""
    cfg = settings(
        steps=1, batch_size=2, group_size=8, max_tokens=1, mini_batches=2, temperature=0.01,
        learning_rate=0.1,
    )  # fmt: skip
    with stepping(task, cfg, client) as run:
        batch = run.sample(1)
        run.record(batch, run.train(batch, run.build_datums(batch)))
    (update,) = batch.updates
    logprobs = [float(each[-1]) for each in update.logprobs_D_T]
    rows = [row for row in open_run(tmp_path / "run").rollouts(1) if row["prompt"] == "7:"]
    assert [row["reward"] for row in rows] == REWARDS
    assert len({row["response"] for row in rows}) == 1  # all answers are equal
    assert abs(logprobs[0] - logprobs[-1]) > 0.01  # so that another answer's would be noticed
    trained = [row for row in rows if row["reward"] != 0.5]
    for row in rows:
        (segment,) = row["segments"]
        if row not in trained:
            assert segment["trainer"] is segment["advantages"] is None
        else:
            assert segment["advantages"][-1] == pytest.approx(row["reward"] - 0.5)
    if type(task) is Moody:
        found = [row["segments"][0]["trainer"][-1] for row in trained]
        assert found == pytest.approx(logprobs, abs=1e-6)
