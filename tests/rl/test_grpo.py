"""The loop, from the first prompt to the saved weights, on a live service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
