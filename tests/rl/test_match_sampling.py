"""Trainer and sampler speak of the same distribution, at any temperature."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mint
from mint.rl import ConfigError, RLConfig, run_grpo
from mint.watch.reader import open_run

from .conftest import Letters

Settings = Callable[..., RLConfig]
Metrics = Callable[[], list[dict[str, Any]]]
NEAR = 0.02  # a CPU may multiply in bfloat16


def trained_tokens(folder: Path, step: int, name: str) -> np.ndarray:
    """One of the recorded columns, of the tokens that a step was trained on."""
    found = [
        [segment[name][at] for at, sampled in enumerate(segment["mask"]) if sampled]
        for row in open_run(folder).rollouts(step)
        for segment in row["segments"]
        if segment["trainer"] is not None
    ]
    return np.concatenate(found)


def test_ratios_begin_at_1_at_every_temperature(
    client: mint.ServiceClient, settings: Settings, metrics: Metrics, tmp_path: Path
) -> None:
    cfg = settings(
        match_sampling=True,
        temperature=0.6,
        temperature_end=1.4,
        temperature_schedule="linear",
        loss_fn="ppo",
        entropy_coef=0.01,
        steps=3,
    )
    run_grpo(Letters(), cfg, service=client)
    rows = metrics()
    assert [row["policy/temperature"] for row in rows] == pytest.approx([0.6, 1.0, 1.4])
    for step, row in enumerate(rows, 1):
        assert row["mismatch/mean"] < NEAR
        assert row["train/clipped"] == 0.0
        entropies = trained_tokens(tmp_path / "run", step, "entropy")
        assert entropies.mean() == pytest.approx(row["train/entropy"], rel=1e-5)
        assert entropies.min() >= 0
    assert rows[0]["train/entropy"] < rows[2]["train/entropy"]


def test_without_it_they_differ_where_the_temperature_is_not_1(
    client: mint.ServiceClient, settings: Settings, metrics: Metrics
) -> None:
    run_grpo(Letters(), settings(temperature=0.6, steps=1), service=client)
    (row,) = metrics()
    assert row["mismatch/mean"] > 10 * NEAR
    assert "train/entropy" not in row


def test_a_kl_term_at_another_temperature_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Set temperature=1\.0, or use kl_penalty_coef"):
        RLConfig(match_sampling=True, kl_loss_coef=0.1, temperature=0.8)
    RLConfig(match_sampling=True, kl_loss_coef=0.1, temperature=1.0)
    RLConfig(kl_loss_coef=0.1, temperature=0.8)
