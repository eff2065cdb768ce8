"""Mini-batches that are trained on while the others of a step are sampled."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mint
from mint.rl import ConfigError, Interrupted, RLConfig, run_grpo
from mint.watch.directory.reader import open_run
from tests.rl.conftest import Letters

Settings = Callable[..., RLConfig]
STREAM = {"mini_batches": 2, "stream_mini_batches": True, "checkpoint_every": 10}


class Ordered(Letters):
    """Scores the second prompt of a step only after the first has been trained on."""

    def __init__(self, waits: bool = True, press_at: int = 0) -> None:
        self.waits, self.press_at = waits, press_at
        self.calls = self.done = 0
        self.begun: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self.parts: list[int] = []

    def build_dataset(self) -> list[str]:
        self.calls += 1
        return [f"{self.calls},{number}:" for number in range(2)]

    async def compute_reward(self, response: str, sample: str) -> Any:
        step, number = (int(part) for part in sample.rstrip(":").split(","))
        if self.waits and number == 1:
            await asyncio.wait_for(self.begun[step].wait(), 60)
            if step == self.press_at:
                self.press_at = 0
                os.kill(os.getpid(), signal.SIGINT)
        return super().compute_reward(response, sample)

    def edit_datums(self, datums: list[Any]) -> list[Any]:
        self.parts.append(len(datums))
        self.begun[self.done + 1].set()
        return datums

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
        self.done = step


def test_the_first_mini_batch_is_trained_on_while_others_are_sampled_with_the_same_updates(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path
) -> None:
    wanted = {"steps": 3, "temperature": 1.0, **STREAM}
    streamed = Ordered()
    run_grpo(streamed, settings(run_dir=str(tmp_path / "streamed"), **wanted), service=client)
    wanted["stream_mini_batches"] = False
    run_grpo(
        Ordered(waits=False), settings(run_dir=str(tmp_path / "whole"), **wanted), service=client
    )
    assert len(streamed.parts) == 6
    runs = [open_run(tmp_path / name) for name in ("streamed", "whole")]
    for one, other in zip(runs[0].metrics(), runs[1].metrics(), strict=True):
        assert one["train/updates"] == other["train/updates"] == 2
        for name in ("datums", "train/tokens", "train/loss", "reward/mean", "mismatch/mean"):
            assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-5), name
    for row, wanted_row in zip(runs[0].rollouts(), runs[1].rollouts(), strict=True):
        assert row["response"] == wanted_row["response"]
        (segment,), (expected,) = row["segments"], wanted_row["segments"]
        assert segment["trainer"] == pytest.approx(expected["trainer"], abs=5e-5)


def test_ctrl_c_between_two_mini_batches_waits_for_the_end_of_the_step(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path
) -> None:
    cfg = settings(steps=4, **STREAM)
    with pytest.raises(Interrupted):
        run_grpo(Ordered(press_at=2), cfg, service=client)
    assert json.loads((tmp_path / "run" / "state.json").read_text())["step"] == 2
    run_grpo(Ordered(waits=False), cfg, service=client)
    run = open_run(tmp_path / "run")
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4]
    prompts = [row["prompt"] for row in run.rollouts() if row["index"] == 0]
    assert sorted(prompts) == [f"{step},{number}:" for step in (1, 2, 3, 4) for number in (0, 1)]


def test_streaming_works_with_sampling_ahead_and_refills(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path
) -> None:
    cfg = settings(steps=4, batch_size=5, max_staleness=2, max_refills=1, **STREAM)
    run_grpo(Letters(), cfg, service=client)
    run = open_run(tmp_path / "run")
    trained = [row["step"] for row in run.rollouts() if row["index"] == 0 and not row["replaced"]]
    assert trained == sorted([1, 2, 3, 4] * 5)
    assert all(row["staleness/max"] <= 2 for row in run.metrics())


@pytest.mark.parametrize("needs_all", [{"substeps": 2}, {"advantage": "global"}])
def test_what_needs_the_whole_batch_is_refused(needs_all: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="needs all of them"):
        RLConfig(**STREAM, **needs_all)
