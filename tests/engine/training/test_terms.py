"""Terms that are added to a loss, against float64 references written from their formulas."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mint.engine.messages import Datum, ForwardBackward, LoraSpec, UserError
from mint.engine.model.base_model import BaseModel
from mint.engine.training.terms import Terms
from mint.engine.training.trainer import LoraTrainer
from tests.engine.training.test_trainer import PlainModel, assert_close, gradients, group, randomise

Row = dict[str, float]


def random_rows(seed: int) -> list[Row]:
    rng = np.random.default_rng(seed)
    return [
        {
            "lp": lp,
            "reference": lp + rng.normal(0, 0.7),
            "q": lp + rng.normal(0, 0.4),
            "w": float(rng.choice([0.0, 1.0, 0.25])),
        }
        for lp in -rng.exponential(1.0, 20)
    ]


def value_of(rows: list[Row], name: str, ratio: bool) -> float:
    """The KL term with coefficient 1, one token at a time."""
    total = 0.0
    for row in rows:
        p, ref = math.exp(row["lp"]), math.exp(row["reference"])
        each = {
            "kl_k1": math.log(p / ref),
            "kl_k2": math.log(p / ref) ** 2 / 2,
            "kl_k3": ref / p - 1 - math.log(ref / p),
        }[name]
        total += row["w"] * each * (p / math.exp(row["q"]) if ratio else 1.0)
    return total


def slopes_of(rows: list[Row], name: str, ratio: bool) -> np.ndarray:
    """The derivative by each token's logprob, worked out by hand."""
    found = []
    for row in rows:
        d, r = row["lp"] - row["reference"], math.exp(row["lp"] - row["q"])
        value, slope = {
            "kl_k1": (d, 1.0),
            "kl_k2": (d * d / 2, d),
            "kl_k3": (math.exp(-d) - 1 + d, 1 - math.exp(-d)),
        }[name]
        found.append(row["w"] * (r * (value + slope) if ratio else slope))
    return np.asarray(found)


@pytest.mark.parametrize("ratio", [False, True])
@pytest.mark.parametrize("name", ["kl_k1", "kl_k2", "kl_k3"])
def test_the_kl_term_and_its_gradient_follow_the_formula(name: str, ratio: bool) -> None:
    rows, coefficient = random_rows(1), 0.3

    def column(key: str) -> torch.Tensor:
        return torch.tensor([row[key] for row in rows], dtype=torch.float64)

    lp = column("lp").requires_grad_()
    inputs = {
        "weights": column("w"),
        "reference_logprobs": column("reference"),
        "logprobs": column("q"),
    }
    settings: dict[str, float] = {name: coefficient, "kl_ratio": float(ratio)}
    found = Terms(**settings).kl(lp, inputs).sum()
    (slope,) = torch.autograd.grad(found, lp)
    assert found.item() == pytest.approx(coefficient * value_of(rows, name, ratio), rel=1e-12)
    np.testing.assert_allclose(slope, coefficient * slopes_of(rows, name, ratio), rtol=1e-10)


def test_on_policy_only_k2_and_weighed_terms_have_the_gradient_of_the_kl() -> None:
    """Over a whole distribution: the mean of the terms' gradients, against that of the KL."""
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    ref = torch.log_softmax(torch.tensor([0.0, 0.5, -0.4, 1.0], dtype=torch.float64), -1)
    exact = (torch.log_softmax(logits, -1).exp() * (torch.log_softmax(logits, -1) - ref)).sum()
    (wanted,) = torch.autograd.grad(exact, logits)

    def mean_gradient(**settings: float) -> torch.Tensor:
        lp = torch.log_softmax(logits, -1)
        inputs = {"weights": lp.exp().detach(), "reference_logprobs": ref, "logprobs": lp.detach()}
        (found,) = torch.autograd.grad(Terms(**settings).kl(lp, inputs).sum(), logits)
        return found

    same = [{"kl_k2": 1.0}, {"kl_k1": 1.0, "kl_ratio": 1.0}, {"kl_k3": 1.0, "kl_ratio": 1.0}]
    for settings in same:
        torch.testing.assert_close(mean_gradient(**settings), wanted, rtol=1e-10, atol=1e-12)
    assert mean_gradient(kl_k1=1.0).abs().max() < 1e-12  # no gradient at all on average
    backwards = (ref.exp() * (ref - torch.log_softmax(logits, -1))).sum()
    (other,) = torch.autograd.grad(backwards, logits)
    torch.testing.assert_close(mean_gradient(kl_k3=1.0), other, rtol=1e-10, atol=1e-12)
    assert (other - wanted).abs().max() > 0.01


def with_reference(data: list[Datum]) -> list[Datum]:
    rng = np.random.default_rng(9)
    found = []
    for datum in data:
        reference = -rng.exponential(3.0, len(datum.tokens)).astype(np.float32)
        found.append(Datum(datum.tokens, {**datum.inputs, "reference_logprobs": reference}))
    return found


def test_trained_through_packed_trees_it_is_that_of_a_plain_float64_model(
    base: BaseModel, tiny_model: Path
) -> None:
    run = LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024)
    randomise(run.adapter)
    data = with_reference(group(seed=5))
    settings: dict[str, Any] = {"kl_k2": 0.5, "kl_k3": 0.02}
    [result] = run.forward_backward([ForwardBackward(data, "importance_sampling", settings)])

    plain = PlainModel(tiny_model, run.adapter)
    total = kl = torch.zeros((), dtype=torch.float64)
    for datum in data:
        x = {key: torch.as_tensor(value).double() for key, value in datum.inputs.items()}
        lp = plain.logprobs(datum)[:, 0]
        d = lp - x["reference_logprobs"]
        kl = kl + (x["weights"] * (0.25 * d**2 + 0.02 * (torch.exp(-d) - 1 + d))).sum()
        total = total - (x["weights"] * torch.exp(lp - x["logprobs"]) * x["advantages"]).sum()
    (total + kl).backward()
    assert result.metrics["kl_loss:sum"] == pytest.approx(kl.item(), rel=1e-4)
    assert result.metrics["loss:sum"] == pytest.approx((total + kl).item(), rel=1e-4)
    assert sum(float(each.sum()) for each in result.losses) == pytest.approx(
        result.metrics["loss:sum"], rel=1e-4
    )
    for name, pair in gradients(run).items():
        for mine, reference in zip(pair, plain.pairs[name], strict=True):
            assert_close(mine, reference.grad, name)


@pytest.mark.parametrize(
    ("config", "drop", "text"),
    [
        ({"kl_k3": 0.1}, "reference_logprobs", "no 'reference_logprobs', which the terms"),
        ({"kl_k3": 0.1}, "weights", "no 'weights', which the terms"),
        ({"kl_k3": 0.1, "kl_ratio": 2.0}, "", "it must be 0 or 1"),
        ({"kl_k4": 0.1}, "", "has the settings: clip_low_threshold, clip_high_threshold, kl_k1"),
        ({"kl_k3": "much"}, "", "must be a finite number"),
        ({"temperature": 0}, "", "must be 1e-5 or more"),
        ({"temperature": 1e-45}, "", "must be 1e-5 or more"),
        ({"kl_k3": float("nan")}, "", "must be a finite number"),
        ({"clip_high_threshold": 1e308}, "", "must be a finite number"),
        ({"clip_low_threshold": -(2**130)}, "", "must be a finite number"),
        ({"kl_k1": 10**400}, "", "must be a finite number"),
    ],
)
def test_missing_inputs_and_unknown_settings_are_reported(
    base: BaseModel, config: dict[str, Any], drop: str, text: str
) -> None:
    run = LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024)
    data = [
        Datum(d.tokens, {k: v for k, v in d.inputs.items() if k != drop})
        for d in with_reference(group(1))
    ]
    with pytest.raises(UserError, match=text):
        run.forward_backward([ForwardBackward(data, "ppo", config)])
