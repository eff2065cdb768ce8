"""Normalise rewards: within a group, within a batch, or over the whole run."""

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence


def centre(rewards_G: Sequence[float]) -> list[float]:
    """Subtract the mean of the rewards.

    >>> centre([0.0, 1.0])
    [-0.5, 0.5]
    """
    mean = sum(rewards_G) / len(rewards_G) if rewards_G else 0.0
    return [reward - mean for reward in rewards_G]


def z_scores(rewards: Sequence[float], clip: float | None = None) -> list[float]:
    """Subtract the mean and divide by the standard deviation; all zero when all are equal.

    >>> z_scores([0.0, 2.0]), z_scores([3.0, 3.0]), z_scores([0.0] * 99 + [1.0], clip=5.0)[-1]
    ([-1.0, 1.0], [0.0, 0.0], 5.0)
    """
    centred = centre(rewards)
    std = math.sqrt(sum(value * value for value in centred) / len(centred)) if centred else 0.0
    if std < 1e-12:
        return [0.0] * len(centred)
    return [_clipped(value / std, clip) for value in centred]


def min_max(rewards: Sequence[float], low: float = 0.0, high: float = 1.0) -> list[float]:
    """Stretch the rewards to ``[low, high]``; all in the middle when all are equal.

    >>> min_max([2.0, 4.0, 3.0]), min_max([5.0, 5.0])
    ([0.0, 1.0, 0.5], [0.5, 0.5])
    """
    if not rewards:
        return []
    least, most = min(rewards), max(rewards)
    if least == most:
        return [(low + high) / 2] * len(rewards)
    return [low + (high - low) * (reward - least) / (most - least) for reward in rewards]


def normalise_by_group(
    rewards: Sequence[float],
    groups: Sequence[Hashable],
    scale: bool = True,
    clip: float | None = None,
) -> list[float]:
    """Centre each reward in its own group and, with ``scale``, divide by the standard deviation.

    >>> normalise_by_group([0.0, 1.0, 5.0, 5.0], ["a", "a", "b", "b"])
    [-1.0, 1.0, 0.0, 0.0]
    """
    if len(rewards) != len(groups):
        raise ValueError(f"{len(rewards)} rewards and {len(groups)} groups: give one for each.")
    members: dict[Hashable, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    normalised = [0.0] * len(rewards)
    for indices in members.values():
        own = [rewards[index] for index in indices]
        values = z_scores(own, clip) if scale else [_clipped(v, clip) for v in centre(own)]
        for index, value in zip(indices, values, strict=True):
            normalised[index] = value
    return normalised


normalise_by_batch = z_scores


class RunningNormaliser:
    """Normalises rewards by everything seen so far (Welford's mean and variance).

    >>> normaliser = RunningNormaliser()
    >>> normaliser.update([0.0, 2.0])
    >>> normaliser.normalise([3.0])
    [2.0]
    """

    def __init__(self, clip: float | None = 10.0) -> None:
        self.clip = clip
        self.count = 0
        self.mean = 0.0
        self._squares = 0.0

    @property
    def std(self) -> float:
        """The standard deviation so far, 0.0 before the second reward."""
        return math.sqrt(self._squares / self.count) if self.count else 0.0

    def update(self, rewards: Sequence[float]) -> None:
        """Add rewards to the mean and the variance."""
        for reward in rewards:
            self.count += 1
            difference = reward - self.mean
            self.mean += difference / self.count
            self._squares += difference * (reward - self.mean)

    def normalise(self, rewards: Sequence[float]) -> list[float]:
        """Return rewards in standard deviations from the running mean."""
        if self.std < 1e-12:
            return [0.0] * len(rewards)
        return [_clipped((reward - self.mean) / self.std, self.clip) for reward in rewards]

    def state(self) -> dict[str, float]:
        """Return the state for a checkpoint."""
        return {"count": self.count, "mean": self.mean, "squares": self._squares}

    def load(self, state: dict[str, float]) -> None:
        """Restore a saved state."""
        self.count = int(state["count"])
        self.mean, self._squares = state["mean"], state["squares"]


def _clipped(value: float, limit: float | None) -> float:
    return value if limit is None else max(-limit, min(limit, value))
