"""Samples that wait for their turn in an engine, and what their clients hear about it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

Line = tuple[str, str]
"""A base model and a user."""


@dataclass
class WaitingSamples:
    """Counts the samples of each model and user that have not started."""

    _came: Counter[Line] = field(default_factory=Counter)
    _left: Counter[Line] = field(default_factory=Counter)

    def enter(self, base_model: str, user: str) -> Place:
        """Count one more sample; its place says how many are before it."""
        line = (base_model, user)
        self._came[line] += 1
        return Place(self, line, self._came[line] - 1)

    def leave(self, line: Line) -> None:
        self._left[line] += 1
        if self._left[line] == self._came[line]:
            del self._left[line], self._came[line]

    def before(self, place: Place) -> int:
        """Return how many samples of the same line came before and have not started.

        The samplers of a user take turns, so later ones may have started meanwhile.
        """
        return max(place.number - self._left[place.line], 0)

    def of_model(self, base_model: str) -> int:
        """Return how many samples wait for a model, of all users."""
        return sum(
            count - self._left[line] for line, count in self._came.items() if line[0] == base_model
        )


@dataclass
class Place:
    """A sample's place among those that wait; ``leave`` it when the sample starts or ends."""

    samples: WaitingSamples
    line: Line
    number: int
    is_waiting: bool = True

    def leave(self) -> None:
        """Note that the sample has started, failed or was cancelled."""
        if self.is_waiting:
            self.is_waiting = False
            self.samples.leave(self.line)

    def describe(self) -> str | None:
        """Say what the sample waits for; None once it has started."""
        if not self.is_waiting:
            return None
        base_model, _ = self.line
        return (
            f"queued behind {self.samples.before(self)} samples of this key; "
            f"{self.samples.of_model(base_model)} samples of all keys wait for {base_model}"
        )
