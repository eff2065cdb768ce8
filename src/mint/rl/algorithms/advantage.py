"""Advantages: how much better an answer is than expected, from the rewards of its group."""

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

Groups = Sequence[Sequence[float]]
SMALL = 1e-6  # added to standard deviations, which are nearly 0 for nearly equal rewards


def has_signal(rewards_G: Sequence[float]) -> bool:
    """Return whether some answer of a group was better than another."""
    return len(rewards_G) > 1 and max(rewards_G) - min(rewards_G) > 1e-9


def centre(rewards_G: Sequence[float]) -> list[float]:
    """r - mean(r). The default.

    >>> centre([1.0, 0.0, 0.0, 1.0])
    [0.5, -0.5, -0.5, 0.5]
    """
    if not has_signal(rewards_G):
        return [0.0] * len(rewards_G)  # the mean of equal numbers may have a rounding error
    rewards = np.asarray(rewards_G, dtype=np.float64)
    return [float(value) for value in rewards - rewards.mean()]


def standardise(rewards_G: Sequence[float]) -> list[float]:
    """(r - mean(r)) / std(r), for rewards of different scales. Favours easy and hard prompts."""
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
    """Centre in each group, then divide by the batch's standard deviation: steady step sizes."""
    centred = [centre(group) for group in rewards_P_G]
    everything = [value for group in centred for value in group]
    spread = float(np.std(everything)) if everything else 0.0
    return [[value / (spread + SMALL) for value in group] for group in centred]


def by_step(rewards_P_G: Groups) -> list[list[float]]:
    """(r - mean) / std over all answers of a step, without a baseline for each group.

    >>> [[round(a, 3) for a in group] for group in by_step([[1.0, 1.0], [1.0, -1.0]])]
    [[0.577, 0.577], [0.577, -1.732]]
    """
    centred = iter(standardise([reward for group in rewards_P_G for reward in group]))
    return [[next(centred) for _ in group] for group in rewards_P_G]


_BY_GROUP: dict[str, Callable[[Sequence[float]], list[float]]] = {
    "centre": centre,
    "standardise": standardise,
    "leave_one_out": leave_one_out,
    "dr_grpo": centre,  # its other half is the constant aggregation
}


def advantages(rewards_P_G: Groups, kind: str = "centre") -> list[list[float]]:
    """Return the advantages of every group, by the named method.

    >>> advantages([[1.0, 0.0], [0.0, 0.0]])
    [[0.5, -0.5], [0.0, 0.0]]
    """
    if kind == "batch":
        return by_batch(rewards_P_G)
    if kind == "global":
        return by_step(rewards_P_G)
    return [_BY_GROUP[kind](group) for group in rewards_P_G]


def returns_to_go(rewards_T: Sequence[float], discount: float = 1.0) -> list[float]:
    """Return R_t = r_t + discount * R_(t+1) for every turn of one rollout.

    >>> returns_to_go([0.0, 1.0, 2.0], discount=0.5)
    [1.0, 2.0, 2.0]
    """
    found = accumulate(reversed(rewards_T), lambda ahead, reward: reward + discount * ahead)
    return list(found)[::-1]


def by_turn(returns_G_T: Groups) -> list[list[float]]:
    """Return, for each turn, the returns that the rollouts of a group are compared by.

    A rollout that ended before keeps its last return.

    >>> by_turn([[1.0, 0.5], [0.0]])
    [[1.0, 0.0], [0.5, 0.0]]
    """
    longest = max((len(returns) for returns in returns_G_T), default=0)
    return [[each[min(t, len(each) - 1)] for each in returns_G_T] for t in range(longest)]
