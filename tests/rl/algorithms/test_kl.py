"""The KL to a reference: its measurement, and its penalty."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mint
from mint import types
from mint.rl import MissingLogprobs, RLConfig, Segment, run_grpo
from mint.rl.datums.reference import score
from mint.watch.directory.reader import open_run
from tests.rl.conftest import Letters
from tests.rl.stepping import stepping
from tests.service_fixture import MODEL

Settings = Callable[..., RLConfig]
Rows = Callable[[], list[dict[str, Any]]]


def test_kl_to_the_base_model_is_zero_at_first_and_costs_reward_later(
    client: mint.ServiceClient, settings: Settings, metrics: Rows, tmp_path: Path
) -> None:
    run_grpo(Letters(), settings(steps=3, kl_penalty_coef=0.1), service=client)
    first, *_, last = metrics()
    assert abs(first["kl/k1"]) < 1e-3  # at temperature 0.8 too: the temperature does not count
    assert first["kl/k3"] < 1e-5
    assert last["kl/k3"] > 1e-4
    rows = [row for row in open_run(tmp_path / "run").rollouts() if row["step"] == 3]
    assert any(abs(row["penalty"]) > 1e-3 for row in rows)


def test_kl_to_a_checkpoint_is_measured_against_that_checkpoint(
    client: mint.ServiceClient, settings: Settings, metrics: Rows, tmp_path: Path
) -> None:
    trained = run_grpo(Letters(), settings(run_dir=str(tmp_path / "before")), service=client)
    cfg = settings(steps=1, kl_penalty_coef=0.1, kl_reference=trained, temperature=1.0)
    run_grpo(Letters(), cfg, service=client)
    assert metrics()[0]["kl/k3"] > 1e-4


@pytest.mark.parametrize("more", [{}, {"temperature": 1.0, "truncated_importance": 2.0}])
def test_the_kl_penalty_of_an_answer_is_that_of_its_tokens_at_temperature_1(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path, more: dict[str, Any]
) -> None:
    trained = run_grpo(Letters(), settings(run_dir=str(tmp_path / "before")), service=client)
    cfg = settings(kl_penalty_coef=0.3, kl_reference=trained, **more)

    def logprobs(sampler: mint.SamplingClient, tokens: list[int], count: int) -> float:
        found = sampler.compute_logprobs(types.ModelInput.from_ints(tokens)).result()
        return float(np.sum(np.asarray(found[-count:], dtype=np.float64)))

    theirs = client.create_sampling_client(model_path=trained)
    mine = client.create_sampling_client(base_model=MODEL)  # what an untrained adapter is
    with stepping(Letters(), cfg, client) as run:
        batch = run.sample(1)
        run.build_datums(batch)
        for rollout in (r for group in run.useful(batch) for r in group.rollouts):
            (segment,) = rollout.segments
            asked = segment.tokens, rollout.length
            k1 = logprobs(mine, *asked) - logprobs(theirs, *asked)
            assert rollout.penalty == pytest.approx(-0.3 * k1, abs=1e-3)
            assert rollout.total == rollout.reward + rollout.penalty


def test_the_kl_is_measured_where_all_answers_are_alike_and_costs_nothing_there(
    client: mint.ServiceClient, settings: Settings, metrics: Rows, tmp_path: Path
) -> None:
    class Alike(Letters):
        def compute_reward(self, response: str, sample: str) -> Any:
            return 1.0

    trained = run_grpo(Letters(), settings(run_dir=str(tmp_path / "before")), service=client)
    cfg = settings(steps=1, kl_penalty_coef=0.1, kl_reference=trained, kl_limit=1e-4)
    run_grpo(Alike(), cfg, service=client)
    assert metrics()[0]["kl/k3"] > 1e-4
    assert (metrics()[0]["datums"], metrics()[0]["groups/all_right"]) == (0, 2)


def test_a_logprob_that_is_missing_is_an_error_never_a_zero(client: mint.ServiceClient) -> None:
    sampler = client.create_sampling_client(base_model=MODEL)
    with pytest.raises(MissingLogprobs, match="1 logprobs for 2 sampled tokens"):
        asyncio.run(score(sampler, Segment.of([], [5, 6], [-1.0, -1.0])))
