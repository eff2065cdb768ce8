"""Curricula: weights that depend on the step, and difficulty that depends on skill."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mint.rewards.shaping.composition import Weights


def linear_weights(start: Weights, end: Weights, steps: int) -> Callable[[int], Weights]:
    """Return weights that change linearly from ``start`` to ``end`` over ``steps`` steps.

    >>> linear_weights({"format": 1.0}, {"format": 0.0}, steps=10)(5)
    {'format': 0.5}
    """
    if steps < 1 or set(start) != set(end):
        raise ValueError("linear_weights() needs steps >= 1 and the same names at both ends.")

    def at(step: int) -> Mapping[str, float]:
        share = max(0.0, min(1.0, step / steps))
        return {name: (1 - share) * start[name] + share * end[name] for name in start}

    return at


def staged_weights(stages: Mapping[int, Weights]) -> Callable[[int], Weights]:
    """Return weights by stage: ``{first step: weights}``.

    >>> weights = staged_weights({0: {"format": 1.0}, 100: {"format": 0.3}})
    >>> weights(99), weights(100)
    ({'format': 1.0}, {'format': 0.3})
    """
    if 0 not in stages:
        raise ValueError("staged_weights() needs a stage that begins at step 0.")
    return lambda step: stages[max(first for first in stages if first <= max(0, step))]


@dataclass
class SkillCurriculum:
    """Moves to harder tasks when most succeed, and to easier ones when most fail.

    >>> curriculum = SkillCurriculum(levels=["easy", "hard"], window=2)
    >>> curriculum.record([1.0, 1.0])
    >>> curriculum.level
    'hard'
    """

    levels: Sequence[str]
    promote_at: float = 0.8
    demote_at: float = 0.2
    window: int = 64

    def __post_init__(self) -> None:
        if not self.levels or self.window < 1 or not self.demote_at < self.promote_at:
            raise ValueError(
                "A curriculum needs levels, window >= 1 and demote_at < promote_at; got "
                f"{len(self.levels)} levels, {self.window}, {self.demote_at}, {self.promote_at}."
            )
        self._position = 0
        self._recent: deque[float] = deque(maxlen=self.window)

    @property
    def level(self) -> str:
        """The level from which to draw tasks now."""
        return self.levels[self._position]

    def record(self, rewards: Sequence[float]) -> None:
        """Record the rewards of the current level, and change the level when a window is full."""
        for reward in rewards:
            self._recent.append(reward)
            if len(self._recent) < self.window:
                continue
            mean = sum(self._recent) / self.window
            move = (mean >= self.promote_at) - (mean <= self.demote_at)
            position = max(0, min(len(self.levels) - 1, self._position + move))
            if position != self._position:
                self._position = position
                self._recent.clear()
