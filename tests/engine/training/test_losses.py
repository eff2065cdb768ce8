"""Each loss against a float64 reference written from the formulas, values and gradients.

The references are plain Python over one token at a time; gradients are taken numerically.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from mint.engine.training.losses import LOSSES

Row = dict[str, float]


def reference_cross_entropy(rows: list[Row], c: Row) -> float:
    return -sum(row["weights"] * row["lp"] for row in rows)


def reference_importance_sampling(rows: list[Row], c: Row) -> float:
    return -sum(row["weights"] * math.exp(row["lp"] - row["q"]) * row["A"] for row in rows)


def reference_ppo(rows: list[Row], c: Row) -> float:
    total = 0.0
    for row in rows:
        r = math.exp(row["lp"] - row["q"])
        clipped = min(max(r, c["clip_low_threshold"]), c["clip_high_threshold"])
        total -= row["weights"] * min(r * row["A"], clipped * row["A"])
    return total


def reference_cispo(rows: list[Row], c: Row) -> float:
    total = 0.0
    for row in rows:
        r = math.exp(row["lp0"] - row["q"])  # lp0: the logprob whose gradient is stopped
        clipped = min(max(r, c["clip_low_threshold"]), c["clip_high_threshold"])
        total -= row["weights"] * clipped * row["lp"] * row["A"]
    return total


def reference_dro(rows: list[Row], c: Row) -> float:
    return -sum(
        row["weights"] * (row["lp"] * row["A"] - c["beta"] / 2 * (row["lp"] - row["q"]) ** 2)
        for row in rows
    )


def reference_gspo(rows: list[Row], c: Row) -> float:
    total = 0.0
    for datum in {row["datum"] for row in rows}:
        mine = [row for row in rows if row["datum"] == datum]
        inside = [row for row in mine if row["mask"] != 0]
        mean = sum(row["lp0"] - row["q"] for row in inside) / len(inside)
        for row in mine:
            s = math.exp(mean + row["lp"] - row["lp0"])
            clipped = min(max(s, c["clip_low_threshold"]), c["clip_high_threshold"])
            total -= row["weights"] * min(s * row["A"], clipped * row["A"])
    return total


REFERENCES: dict[str, Callable[[list[Row], Row], float]] = {
    "cross_entropy": reference_cross_entropy,
    "importance_sampling": reference_importance_sampling,
    "ppo": reference_ppo,
    "cispo": reference_cispo,
    "dro": reference_dro,
    "gspo": reference_gspo,
}


def random_rows(seed: int) -> list[Row]:
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(24):
        lp = -rng.exponential(1.0)
        rows.append(
            {
                "lp": lp,
                "lp0": lp,
                "q": lp + rng.normal(0, 0.4),
                "A": rng.normal(),
                "weights": float(rng.choice([0.0, 1.0, 0.5, -1.0])),
                "mask": 1.0 if index % 6 else 0.0,
                "datum": index // 6,
            }
        )
    return rows


def ours(name: str, rows: list[Row], config: Row, with_weights: bool) -> tuple[float, np.ndarray]:
    def column(key: str) -> torch.Tensor:
        return torch.tensor([row[key] for row in rows], dtype=torch.float64)

    lp = column("lp").requires_grad_()
    inputs = {
        "logprobs": column("q"),
        "advantages": column("A"),
        "sequence_ratio_mask": column("mask"),
    }
    if with_weights:
        inputs["weights"] = column("weights")
    settings = {key: torch.tensor(value, dtype=torch.float64) for key, value in config.items()}
    loss = LOSSES[name].function(lp, inputs, settings, column("datum").long()).sum()
    (gradient,) = torch.autograd.grad(loss, lp)
    return loss.item(), gradient.numpy()


def numeric_gradient(name: str, rows: list[Row], config: Row) -> np.ndarray:
    step = 1e-6
    gradient = []
    for row in rows:
        middle = row["lp"]
        row["lp"] = middle + step
        above = REFERENCES[name](rows, config)
        row["lp"] = middle - step
        below = REFERENCES[name](rows, config)
        row["lp"] = middle
        gradient.append((above - below) / (2 * step))
    return np.array(gradient)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_follow_the_formula(name: str, seed: int) -> None:
    rows, config = random_rows(seed), dict(LOSSES[name].settings)
    value, gradient = ours(name, rows, config, with_weights=True)
    assert value == pytest.approx(REFERENCES[name](rows, config), rel=1e-12)
    np.testing.assert_allclose(gradient, numeric_gradient(name, rows, config), atol=1e-7)


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "cross_entropy"])
def test_without_weights_every_token_with_an_advantage_counts_once(name: str) -> None:
    rows, config = random_rows(7), dict(LOSSES[name].settings)
    for row in rows:
        row["weights"] = 1.0
    value, _ = ours(name, rows, config, with_weights=False)
    assert value == pytest.approx(REFERENCES[name](rows, config), rel=1e-12)


@pytest.mark.parametrize("with_weights", [True, False])
def test_the_penalty_of_dro_alone_is_a_loss(with_weights: bool) -> None:
    """A review found 0.0 in place of 8.875 without weights."""
    gaps = [1.0, -1.5, 3.5, -1.5]
    rows = [
        {"lp": g - 5, "lp0": g - 5, "q": -5.0, "A": 0.0, "weights": 1.0, "mask": 1.0, "datum": 0}
        for g in gaps
    ]
    value, gradient = ours("dro", rows, {"beta": 1.0}, with_weights)
    assert value == 8.875
    np.testing.assert_allclose(gradient, gaps, rtol=1e-12)


@pytest.mark.parametrize("with_weights", [True, False])
def test_dro_keeps_its_penalty_where_the_advantage_is_zero(with_weights: bool) -> None:
    lp, q, beta = [-1.0, -2.5, -0.5, -4.0], [-2.0, -1.0, -4.0, -0.5], 0.05
    wanted = sum(beta / 2 * (a - b) ** 2 for a, b in zip(lp, q, strict=True))
    rows = [
        {"lp": a, "lp0": a, "q": b, "A": 0.0, "weights": 1.0, "mask": 1.0, "datum": 0}
        for a, b in zip(lp, q, strict=True)
    ]
    value, gradient = ours("dro", rows, {"beta": beta}, with_weights)
    assert value == pytest.approx(wanted, rel=1e-12)
    assert value > 0.6
    expected = [beta * (a - b) for a, b in zip(lp, q, strict=True)]
    np.testing.assert_allclose(gradient, expected, rtol=1e-12)


PER_ADVANTAGE = [n for n, loss in LOSSES.items() if n != "cross_entropy" and not loss.every_token]


@pytest.mark.parametrize("name", PER_ADVANTAGE)
def test_padding_with_an_absurd_logprob_adds_nothing(name: str) -> None:
    rows, config = random_rows(3), dict(LOSSES[name].settings)
    padding = [{**row, "q": -1e9, "A": 0.0, "mask": 0.0} for row in rows]
    for row in rows:
        row["weights"] = 1.0
    value, _ = ours(name, rows, config, with_weights=False)
    padded, gradient = ours(name, rows + padding, config, with_weights=False)
    assert padded == pytest.approx(value, rel=1e-12)
    assert np.isfinite(gradient).all()
    assert not gradient[len(rows) :].any()


def test_gspo_token_is_gspo_where_the_tokens_of_an_answer_have_one_advantage() -> None:
    """GSPO: - mean over answers of min(s A, clamp(s) A), with s = exp(mean(lp - q))."""
    rng = np.random.default_rng(5)
    config = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.2}
    answers = [(n, rng.normal()) for n in (3, 7, 1, 5)]
    rows = []
    for datum, (n, advantage) in enumerate(answers):
        for lp in -rng.exponential(1.0, n):
            each = {"lp": lp, "lp0": lp, "q": lp + rng.normal(0, 0.3), "A": advantage}
            rows.append({**each, "mask": 1.0, "datum": datum, "weights": 1 / (n * len(answers))})
    value, gradient = ours("gspo", rows, config, with_weights=True)
    lp = torch.tensor([row["lp"] for row in rows], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([row["q"] for row in rows], dtype=torch.float64)
    wanted, at = torch.zeros((), dtype=torch.float64), 0
    for n, advantage in answers:
        s = (lp[at : at + n] - q[at : at + n]).mean().exp()
        wanted = wanted - torch.minimum(s * advantage, s.clamp(0.9, 1.2) * advantage) / len(answers)
        at += n
    wanted.backward()
    assert lp.grad is not None
    assert value == pytest.approx(wanted.item(), rel=1e-12)
    np.testing.assert_allclose(gradient, lp.grad, rtol=1e-9, atol=1e-15)
    assert 0 < (gradient == 0).sum() < len(rows)  # some answers are clipped, others are not


def test_thresholds_are_ratio_bounds_not_epsilons() -> None:
    assert LOSSES["ppo"].settings == {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    assert LOSSES["cispo"].settings == {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}
