"""The losses of the protocol: pure functions next to their formulas.

A function returns the loss of each token; the loss of a batch is their sum, as the formulas say.

``lp`` is log p of each target under the policy, ``q`` what the sampler reported, ``A`` the
advantage and ``r = exp(lp - q)``. All are flat over the tokens of a batch; ``datum`` says which
datum a token belongs to. A token with no weight (or, without weights, no advantage) adds nothing;
the penalty of ``dro`` does not depend on the advantage, so without weights every token has it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Inputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Loss:
    """A loss, the inputs it needs beside ``target_tokens``, and its settings with defaults."""

    function: Callable[[Tensor, Inputs, Mapping[str, Tensor], Tensor], Tensor]
    needs: tuple[str, ...]
    settings: Mapping[str, float]
    every_token: bool = False
    """Without weights, tokens whose advantage is 0 take part too."""


def cross_entropy(lp: Tensor, x: Inputs, c: Mapping[str, Tensor], datum: Tensor) -> Tensor:
    """- sum w lp"""
    return -x["weights"] * lp


def importance_sampling(lp: Tensor, x: Inputs, c: Mapping[str, Tensor], datum: Tensor) -> Tensor:
    """- sum r A"""
    ratio = _log_ratio(lp, x).exp()
    return -_weighted(ratio * x["advantages"], x)


def ppo(lp: Tensor, x: Inputs, c: Mapping[str, Tensor], datum: Tensor) -> Tensor:
    """- sum min(r A, clamp(r, low, high) A)"""
    return -_weighted(_clipped(_log_ratio(lp, x).exp(), x["advantages"], c), x)


def cispo(lp: Tensor, x: Inputs, c: Mapping[str, Tensor], datum: Tensor) -> Tensor:
    """- sum stop_gradient(clamp(r, low, high)) lp A"""
    ratio = _clamp(_log_ratio(lp, x).exp(), c).detach()
    return -_weighted(ratio * lp * x["advantages"], x)


def dro(lp: Tensor, x: Inputs, c: Mapping[str, Tensor], datum: Tensor) -> Tensor:
    """- sum (lp A - beta/2 (lp - q)^2)"""
    x = x if "weights" in x else {**x, "weights": torch.ones_like(lp)}
    penalty = 0.5 * c["beta"] * _log_ratio(lp, x) ** 2
    return -_weighted(lp * x["advantages"] - penalty, x)


def gspo(lp: Tensor, x: Inputs, c: Mapping[str, Tensor], datum: Tensor) -> Tensor:
    """- sum min(s A, clamp(s, low, high) A), with one ratio per sequence:

    s = exp(mean over the sequence of (stop_gradient(lp) - q) + lp - stop_gradient(lp)).
    """
    inside = (x["sequence_ratio_mask"] != 0).to(lp.dtype)
    count = int(datum.max()) + 1 if len(datum) else 0
    zeros = torch.zeros(count, dtype=lp.dtype, device=lp.device)
    drift = torch.where(inside != 0, lp.detach() - x["logprobs"], 0.0)
    length = zeros.index_add(0, datum, inside).clamp(min=1)
    mean = zeros.index_add(0, datum, drift) / length
    ratio = torch.where(_counts(x), mean[datum] + lp - lp.detach(), 0.0).exp()
    return -_weighted(_clipped(ratio, x["advantages"], c), x)


def _counts(x: Inputs) -> Tensor:
    """Return which tokens take part: those with a weight or, without weights, with an advantage."""
    return x["weights"] != 0 if "weights" in x else x["advantages"] != 0


def _log_ratio(lp: Tensor, x: Inputs) -> Tensor:
    """lp - q where a token takes part, else 0: padding must not become inf * 0."""
    return torch.where(_counts(x), lp - x["logprobs"], 0.0)


def _weighted(value: Tensor, x: Inputs) -> Tensor:
    weights = x.get("weights", 1.0)
    return torch.where(_counts(x), weights * value, 0.0)


def _clamp(ratio: Tensor, c: Mapping[str, Tensor]) -> Tensor:
    low, high = c["clip_low_threshold"], c["clip_high_threshold"]
    return torch.minimum(torch.maximum(ratio, low), high)


def _clipped(ratio: Tensor, advantages: Tensor, c: Mapping[str, Tensor]) -> Tensor:
    return torch.minimum(ratio * advantages, _clamp(ratio, c) * advantages)


_RL_INPUTS = ("logprobs", "advantages")

LOSSES: dict[str, Loss] = {
    "cross_entropy": Loss(cross_entropy, (), {}),
    "importance_sampling": Loss(importance_sampling, _RL_INPUTS, {}),
    "ppo": Loss(ppo, _RL_INPUTS, {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
    "cispo": Loss(cispo, _RL_INPUTS, {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}),
    "dro": Loss(dro, _RL_INPUTS, {"beta": 0.05}, every_token=True),
    "gspo": Loss(
        gspo,
        (*_RL_INPUTS, "sequence_ratio_mask"),
        {"clip_low_threshold": 1 - 3e-4, "clip_high_threshold": 1 + 4e-4},
    ),
}
