"""Runs over a fixed dataset: every prompt once before any twice, whatever steps take beside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mint
from mint.rl import RLConfig, run_grpo
from mint.watch.directory.reader import open_run
from tests.rl.conftest import Letters
from tests.rl.loop.test_resume import Crashed

COUNT = 100


class Numbers(Letters):
    """A hundred prompts, of which two thirds are always answered equally well. Ends at a step."""

    def __init__(self, crash_at: int = 0) -> None:
        self.crash_at = crash_at

    def build_dataset(self) -> list[str]:
        return [f"{number}:" for number in range(COUNT)]

    def compute_rewards(self, responses: list[str], sample: str) -> list[float]:
        kind = int(sample[:-1]) % 3
        return [float(i % 2 if kind == 2 else kind) for i in range(len(responses))]

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
        if step == self.crash_at:
            raise Crashed


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("curriculum", [False, True])
def test_refills_of_a_resumed_run_take_no_prompt_a_second_time(
    client: mint.ServiceClient,
    settings: Callable[..., RLConfig],
    tmp_path: Path,
    curriculum: bool,
    ahead: int,
) -> None:
    wanted: dict[str, Any] = {"steps": 5, "batch_size": 8, "group_size": 2, "max_tokens": 1}
    cfg = settings(
        **wanted,
        max_refills=2,
        data_order="shuffled",
        curriculum=curriculum,
        max_staleness=ahead,
        staleness_rule="drop",
        checkpoint_every=2,
    )
    with pytest.raises(Crashed):
        run_grpo(Numbers(crash_at=3), cfg, service=client)
    run_grpo(Numbers(), cfg, service=client)
    rows = [row for row in open_run(tmp_path / "run").rollouts() if row["index"] == 0]
    assert {row["step"] for row in rows} == {1, 2, 3, 4, 5}
    times = Counter(row["prompt"] for row in rows)
    assert len(rows) > 5 * 8  # some groups were refilled
    assert max(times.values()) <= -(-len(rows) // COUNT)  # passes that have begun
