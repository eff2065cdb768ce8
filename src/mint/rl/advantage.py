"""From the rewards of groups to advantages: how much better an answer was than expected."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Groups = Sequence[Sequence[float]]
SMALL = 1e-6
"""Added to standard deviations, so that a group of nearly equal rewards is not blown up."""


def has_signal(rewards_G: Sequence[float]) -> bool:
    """Whether some answer of a group was better than another."""
    return len(rewards_G) > 1 and max(rewards_G) - min(rewards_G) > 1e-9


def centre(rewards_G: Sequence[float]) -> list[float]:
    """r - mean(r). The default.

    >>> centre([1.0, 0.0, 0.0, 1.0])
    [0.5, -0.5, -0.5, 0.5]
    """
    if not has_signal(rewards_G):
        return [0.0] * len(rewards_G)  # the mean of equal numbers may be off by a rounding
    rewards = np.asarray(rewards_G, dtype=np.float64)
    return [float(value) for value in rewards - rewards.mean()]


def standardise(rewards_G: Sequence[float]) -> list[float]:
    """(r - mean(r)) / std(r). For rewards of different scales; favours very easy and very hard
    prompts, whose groups have the smallest spread."""
    spread = float(np.std(np.asarray(rewards_G, dtype=np.float64))) if len(rewards_G) else 0.0
    return [value / (spread + SMALL) for value in centre(rewards_G)]


def leave_one_out(rewards_G: Sequence[float]) -> list[float]:
    """r_i - mean of the others: unbiased in small groups.

    >>> leave_one_out([1.0, 0.0])
    [1.0, -1.0]
    """
    count = len(rewards_G)
    factor = count / (count - 1) if count > 1 else 0.0
    return [value * factor for value in centre(rewards_G)]


def by_batch(rewards_P_G: Groups) -> list[list[float]]:
    """Centred in each group, then in standard deviations of the whole batch: steady step sizes
    without favouring easy or hard prompts."""
    centred = [centre(group) for group in rewards_P_G]
    everything = [value for group in centred for value in group]
    spread = float(np.std(everything)) if everything else 0.0
    return [[value / (spread + SMALL) for value in group] for group in centred]


_BY_GROUP: dict[str, Callable[[Sequence[float]], list[float]]] = {
    "centre": centre,
    "standardise": standardise,
    "leave_one_out": leave_one_out,
    "dr_grpo": centre,  # its other half is the constant aggregation
}


def advantages(rewards_P_G: Groups, kind: str = "centre") -> list[list[float]]:
    """The advantages of every group, computed in the named way.

    >>> advantages([[1.0, 0.0], [0.0, 0.0]])
    [[0.5, -0.5], [0.0, 0.0]]
    """
    if kind == "batch":
        return by_batch(rewards_P_G)
    return [_BY_GROUP[kind](group) for group in rewards_P_G]
