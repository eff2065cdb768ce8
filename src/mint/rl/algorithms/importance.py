"""Importance ratios between the policy that trains and the one that sampled, and their clipping."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
BOUNDS = {"ppo": (0.8, 1.2), "cispo": (0.0, 4.0), "gspo": (1 - 3e-4, 1 + 4e-4)}
"""The protocol's own thresholds, where the config sets none."""
_WIDEST = 20.0  # larger log ratios are treated as infinite


def bounded_ratio(log_ratio: Array) -> Array:
    """exp(log_ratio), without overflow."""
    return np.asarray(np.exp(np.clip(log_ratio, -_WIDEST, _WIDEST)))


@dataclass(frozen=True)
class Correction:
    """Weights of tokens by p_trainer / p_sampler.

    The ratio is that of a ``token``, of a ``sequence`` (the product of its tokens'), or
    ``geometric`` (the geometric mean of them). Ratios above ``limit`` are reduced to it
    (``truncate``); or tokens with ratios above ``limit`` or below ``low`` are left out (``mask``).

    >>> trainer, sampler = np.log([0.5, 0.9]), np.log([0.5, 0.1])
    >>> [float(w) for w in Correction(2.0).weights(trainer, sampler)]
    [1.0, 2.0]
    >>> [float(w) for w in Correction(2.0, rule="mask").weights(trainer, sampler)]
    [1.0, 0.0]
    >>> [round(float(w), 6) for w in Correction(99.0, level="sequence").weights(trainer, sampler)]
    [9.0, 9.0]
    """

    limit: float
    level: str = "token"
    rule: str = "truncate"
    low: float = 0.0

    def weights(self, trainer: Array, sampler: Array) -> Array:
        """Return the weight of each sampled token of one sequence."""
        log_ratio = trainer - sampler
        if self.level != "token" and len(log_ratio):
            whole = log_ratio.sum() if self.level == "sequence" else log_ratio.mean()
            log_ratio = np.full_like(log_ratio, whole)
        ratio = bounded_ratio(log_ratio)
        if self.rule == "truncate":
            return np.asarray(np.minimum(ratio, self.limit))
        return np.where((ratio >= self.low) & (ratio <= self.limit), ratio, 0.0)


def is_clipped(
    loss_fn: str, log_ratio: Array, advantages: Array, low: Array | float, high: Array | float
) -> NDArray[np.bool_]:
    """Return which tokens have a clipped ratio.

    ``ppo`` and ``gspo`` clip a ratio beyond a bound in the direction of the advantage, which then
    has no gradient; ``cispo`` clips every ratio outside of its bounds.

    >>> is_clipped("ppo", np.log([1.5, 1.5]), np.array([1.0, -1.0]), 0.8, 1.2).tolist()
    [True, False]
    """
    ratio = bounded_ratio(log_ratio)
    above, below = ratio > high, ratio < low
    if loss_fn == "cispo":
        return np.asarray(above | below)
    return np.asarray(np.where(advantages > 0, above, below))


def mismatch_figures(differences: Array) -> dict[str, float]:
    """Return how trainer and sampler differ, from the differences of their logprobs."""
    if not len(differences):
        return {}
    ratio = bounded_ratio(differences)
    effective = ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())
    return {
        "mismatch/mean": float(np.abs(differences).mean()),
        "mismatch/max": float(np.abs(differences).max()),
        "mismatch/k3": float((ratio - 1 - differences).mean()),
        "mismatch/effective_share": float(effective),
    }


def entropy(logprobs: Sequence[float]) -> float:
    """Return the policy's entropy per token, estimated as the mean of -log p of its samples."""
    return float(-np.mean(np.asarray(logprobs, dtype=np.float64))) if len(logprobs) else 0.0
