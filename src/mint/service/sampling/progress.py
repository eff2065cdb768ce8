"""Samples in progress: limits on their number, and what waiting ones wait for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from mint.service.results import Share

Line = tuple[str, str]
"""A base model and a user."""


@dataclass
class SamplesInProgress:
    """Counts samples. Their number is bounded, and one user cannot take all of it."""

    count: Share
    tokens: Counter[str] = field(default_factory=Counter)
    """By key: the most tokens that its samples may take."""
    came: Counter[Line] = field(default_factory=Counter)
    started: Counter[Line] = field(default_factory=Counter)

    def begin(self, base_model: str, user: str, key: str, tokens: int) -> AdmittedSample:
        """Count one more sample of a user and key."""
        line = (base_model, user)
        self.count.add(user, 1)
        self.tokens[key] += tokens
        self.came[line] += 1
        return AdmittedSample(self, line, key, tokens, self.came[line] - 1)


@dataclass
class AdmittedSample:
    """A sample in progress, and its place among the waiting ones of its user."""

    samples: SamplesInProgress
    line: Line
    key: str
    tokens: int
    number: int
    is_waiting: bool = True

    def start(self) -> None:
        """Record that the sample has started, failed or was cancelled."""
        if self.is_waiting:
            self.is_waiting = False
            self.samples.started[self.line] += 1

    def end(self) -> None:
        """Count one sample less."""
        self.start()
        self.samples.count.add(self.line[1], -1)
        self.samples.tokens[self.key] -= self.tokens

    def why_waiting(self) -> str | None:
        """Return what the sample waits for; None once it has started.

        The samplers of a user take turns, so samples that came later may have started.
        """
        if not self.is_waiting:
            return None
        came, started, (base_model, _) = self.samples.came, self.samples.started, self.line
        before = max(self.number - started[self.line], 0)
        everyone = sum(came[line] - started[line] for line in came if line[0] == base_model)
        return (
            f"queued behind {before} samples of this user; {everyone} samples in all wait "
            f"for {base_model}"
        )
