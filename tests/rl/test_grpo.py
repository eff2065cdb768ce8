"""The loop, from the first prompt to the saved weights, on a live service."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

import mint
from mint.rl import RLConfig, run_grpo

from .conftest import Letters

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


def test_in_a_notebook_ctrl_c_saves_and_the_same_cell_goes_on(
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
    assert "goes on after step" in capsys.readouterr().out
    assert loop.run_until_complete(cell(Letters())).startswith("tinker://")
    assert [row["step"] for row in metrics()] == [1, 2, 3]
    loop.close()
