"""Checkpoints: which are kept, which are best, and runs that begin from one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mint
from mint.rl import ConfigError, RLConfig, run_grpo
from tests.rl.conftest import Letters
from tests.rl.stepping import stepping
from tests.service_fixture import MODEL

Settings = Callable[..., RLConfig]
Rows = Callable[[], list[dict[str, Any]]]


def test_the_holdout_is_evaluated_and_the_best_checkpoint_kept(
    client: mint.ServiceClient, settings: Settings, metrics: Rows, tmp_path: Path
) -> None:
    cfg = settings(
        steps=4,
        holdout_fraction=0.3,
        holdout_size=5,
        eval_every=2,
        checkpoint_every=1,
        eval_samples=2,
        eval_temperature=0.8,
        success_threshold=0.75,
    )
    with stepping(Letters(), cfg, client) as run:
        for step in run:
            batch = run.sample(step)
            run.record(batch, run.train(batch, run.build_datums(batch)))
        run.finish()
        kept = {checkpoint.step for checkpoint in run.checkpoints.kept}
        best = run.checkpoints.best
    evaluated = [row for row in metrics() if "holdout/pass@1" in row]
    assert [row["step"] for row in evaluated] == [0, 2, 4]
    assert all(
        row["holdout/pass@1_low"] <= row["holdout/pass@1"] <= row["holdout/pass@2"]
        for row in evaluated
    )
    assert best is not None
    scores = {row["step"]: row["holdout/pass@1"] for row in evaluated[1:]}
    assert scores[best.step] == max(scores.values())
    assert kept == {4, best.step}
    rest = client.create_rest_client()
    run_id = client_run(best.path)
    found = rest.list_checkpoints(run_id).result().checkpoints
    saved = {c.checkpoint_id for c in found if "sampler" not in c.checkpoint_type}
    assert saved == {f"weights/step-{step:06d}" for step in kept}


def test_one_held_out_prompt_is_enough_to_evaluate_on(
    client: mint.ServiceClient, settings: Settings, metrics: Rows
) -> None:
    class Single(Letters):
        def build_holdout(self) -> list[str]:
            return ["x:"]

    run_grpo(Single(), settings(steps=1, eval_every=1), service=client)
    assert [row["holdout/prompts"] for row in metrics()] == [1, 1]


def client_run(path: str) -> str:
    return path.removeprefix("tinker://").split("/")[0]


def test_every_so_many_steps_a_checkpoint_is_kept_to_bisect(
    client: mint.ServiceClient, settings: Settings
) -> None:
    cfg = settings(steps=5, checkpoint_every=3, keep_every=2)
    with stepping(Letters(), cfg, client) as run:
        for step in run:
            batch = run.sample(step)
            run.record(batch, run.train(batch, run.build_datums(batch)))
        assert [checkpoint.step for checkpoint in run.checkpoints.kept] == [2, 4, 5]
        for checkpoint in run.checkpoints.kept:
            assert client.create_training_client_from_state(checkpoint.path)


def test_a_run_can_begin_from_a_checkpoint(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path, metrics: Rows
) -> None:
    with stepping(Letters(), settings(run_dir=str(tmp_path / "first")), client) as run:
        for step in run:
            batch = run.sample(step)
            run.record(batch, run.train(batch, run.build_datums(batch)))
        latest = run.checkpoints.latest
    assert latest is not None
    cfg = settings(start_from=latest.path, kl_penalty_coef=0.1, temperature=1.0)
    run_grpo(Letters(), cfg, service=client)
    assert metrics()[0]["kl/k3"] > 1e-4  # it is not the base model that it began from
    other = settings(start_from=latest.path, base_model="another/model")
    other.run_dir = str(tmp_path / "other")
    with pytest.raises(ConfigError, match=f"Set base_model={MODEL}"):
        run_grpo(Letters(), other, service=client)
