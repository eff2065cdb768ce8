"""Trainer and sampler use the same distribution, at any temperature and with filters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mint
from mint.rl import ConfigError, RLConfig, run_grpo
from mint.rl.rollouts.policy import Filters
from mint.watch.directory.reader import open_run
from tests.rl.conftest import Letters
from tests.rl.stepping import stepping

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


def test_filtered_sampling_is_trained_on_logprobs_of_the_same_distribution(
    client: mint.ServiceClient, settings: Settings, metrics: Metrics, tmp_path: Path
) -> None:
    """Answers of one to four tokens, each chosen from a few; the KL is among all tokens."""
    cfg = settings(
        top_k=12, top_p=0.9, min_p=0.05, temperature=0.7, loss_fn="ppo", substeps=2,
        kl_penalty_coef=0.01, entropy_coef=0.01, steps=1,
    )  # fmt: skip
    with stepping(Letters(), cfg, client) as run:
        batch = run.sample(1)
        datums = run.build_datums(batch)
        run.record(batch, run.train(batch, datums))
    kept = [
        chosen
        for group in batch.groups
        for rollout in group.rollouts
        for segment in rollout.segments
        for token, chosen, sampled in zip(
            segment.tokens, segment.kept, segment.sampled, strict=True
        )
        if sampled == bool(chosen) and (not sampled or token in chosen)
    ]
    tokens = [t for g in batch.groups for r in g.rollouts for s in r.segments for t in s.tokens]
    assert len(kept) == len(tokens)
    sizes = {len(chosen) for chosen in kept if chosen}
    assert 1 < max(sizes) <= 12
    assert min(sizes) < 12
    (row,) = metrics()
    assert row["mismatch/mean"] < NEAR
    assert row["mismatch/max"] < 5 * NEAR
    assert 0 < row["train/entropy"] < np.log(12)
    assert abs(row["kl/k1"]) < NEAR  # before training the policy is the reference
    sampler, trainer = (trained_tokens(tmp_path / "run", 1, n) for n in ("sampler", "trainer"))
    np.testing.assert_allclose(sampler, trainer, atol=5 * NEAR)


def sequence(logprobs: list[list[float]] | None) -> Any:
    """A sampled sequence with the top-k logprobs of each token, as the SDK returns it."""
    top = None
    if logprobs is not None:
        values = np.asarray(logprobs, np.float32)
        ids = np.tile(np.arange(values.shape[1]), (len(values), 1))
        top = SimpleNamespace(token_ids=ids, logprobs=values)
    return SimpleNamespace(topk_logprobs_np=top)


def test_what_was_left_out_has_no_probability() -> None:
    filters, none = Filters(top_k=3, top_p=0.9), -np.inf
    rows = [[np.log(0.5), np.log(0.3), np.log(0.2)], [np.log(0.75), np.log(0.25), none]]
    assert filters.kept_tokens(sequence(rows)) == [(0, 1, 2), (0, 1)]
    assert Filters().kept_tokens(sequence(None)) is None
    assert Filters().params() == {}
    with pytest.raises(ConfigError, match=r"need a mint service.*returns no top-k logprobs"):
        filters.kept_tokens(sequence(None))
    with pytest.raises(ConfigError, match=r"need a mint service.*before the filters"):
        filters.kept_tokens(sequence([[np.log(0.5), np.log(0.2), np.log(0.1)]]))


def test_top_p_alone_is_refused_and_a_kl_term_too() -> None:
    for more in ({"top_p": 0.9}, {"min_p": 0.1}):
        with pytest.raises(ConfigError, match="Set top_k=64"):
            RLConfig(**more)
    with pytest.raises(ConfigError, match="leave out top_k, or use kl_penalty_coef"):
        RLConfig(top_k=20, kl_loss_coef=0.1, temperature=1.0)


def test_a_kl_term_at_another_temperature_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Set temperature=1\.0 and leave"):
        RLConfig(match_sampling=True, kl_loss_coef=0.1, temperature=0.8)
    RLConfig(match_sampling=True, kl_loss_coef=0.1, temperature=1.0)
    RLConfig(kl_loss_coef=0.1, temperature=0.8)
