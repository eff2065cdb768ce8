"""The loop, from the first prompt to the saved weights, on a live service."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mint
from mint import types
from mint.rl import RLConfig, run_grpo
from mint.rl.recording.report import ANALYSIS
from tests.rl.conftest import Letters

Settings = Callable[..., RLConfig]
Rows = Callable[[], list[dict[str, Any]]]


def test_a_run_learns_and_says_where_its_weights_are(
    client: mint.ServiceClient, settings: Settings, metrics: Rows, capsys: Any
) -> None:
    adapter = Letters()
    path = run_grpo(adapter, settings(steps=8, batch_size=4, group_size=8), service=client)

    rewards = [row["reward/mean"] for row in metrics()]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1
    assert f"Saved: {path}" in capsys.readouterr().out
    assert [step for step, _, _ in adapter.reported] == list(range(1, 9))
    assert client.create_sampling_client(model_path=path)


def test_in_a_notebook_ctrl_c_saves_and_the_same_cell_resumes(
    client: mint.ServiceClient, settings: Settings, metrics: Rows, capsys: Any
) -> None:
    class Pressed(Letters):
        def build_dataset(self) -> list[str]:
            if len(getattr(self, "reported", [])) == 2:  # two calls are made before the first step
                os.kill(os.getpid(), signal.SIGINT)
            return super().build_dataset()

    async def cell(adapter: Letters) -> str:
        return run_grpo(adapter, settings(steps=3), service=client)

    loop = asyncio.new_event_loop()  # without asyncio's own handling of Ctrl-C, as a notebook's
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(cell(Pressed()))
    assert "resumes after step" in capsys.readouterr().out
    assert loop.run_until_complete(cell(Letters())).startswith("tinker://")
    assert [row["step"] for row in metrics()] == [1, 2, 3]
    loop.close()


def test_rewards_are_logged_and_analysed_when_asked_for(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path, capsys: Any
) -> None:
    cfg = settings(log_rewards=True, save_reward_analysis=True)
    run_grpo(Letters(), cfg, service=client)
    out = capsys.readouterr().out
    assert "rewards of step 1: 8 answers, mean 0." in out
    assert "rewards of the run: 16 answers, mean 0." in out
    assert f"Reward analysis: {tmp_path / 'run' / ANALYSIS}.txt" in out
    assert json.loads((tmp_path / "run" / f"{ANALYSIS}.json").read_text())["count"] == 16


def test_datums_without_weights_are_trained_on(
    client: mint.ServiceClient, settings: Settings, metrics: Rows
) -> None:
    class Bare(Letters):
        def edit_datums(self, datums: list[types.Datum]) -> list[types.Datum]:
            names = ("target_tokens", "logprobs", "advantages")
            return [
                types.Datum(
                    model_input=datum.model_input,
                    loss_fn_inputs={name: datum.loss_fn_inputs[name] for name in names},
                )
                for datum in datums
            ]

    run_grpo(Bare(), settings(steps=1), service=client)
    assert metrics()[0]["datums/unmasked"] == 0
    assert metrics()[0]["train/grad_norm"] > 0
