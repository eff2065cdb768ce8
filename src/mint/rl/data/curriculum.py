"""The curriculum: prefer prompts that are solved sometimes, neither always nor never."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Literal, Self

from mint.rl.rollouts.rollout import Group

Pool = Literal["new", "learning", "saturated", "hopeless"]
_DROPPED: tuple[Pool, ...] = ("saturated", "hopeless")
_MEMORY = 0.7  # the weight of earlier groups in a prompt's success rate
_EASY_AT, _EASY_AFTER = 0.95, 2  # the success rate of a saturated prompt, and its fewest groups
_HARD_AT, _HARD_AFTER = 0.02, 4


@dataclass
class PromptRecord:
    """The history of one prompt."""

    groups: int = 0
    success: float = 0.5


class Curriculum:
    """Prefers prompts that are solved sometimes, and drops saturated and hopeless ones.

    >>> curriculum = Curriculum()
    >>> for _ in range(3):
    ...     curriculum.record("easy", 1.0); curriculum.record("fine", 0.5)
    >>> curriculum.pool("easy"), curriculum.pool("fine"), curriculum.pool("unseen")
    ('saturated', 'learning', 'new')
    """

    def __init__(self) -> None:
        self.known: dict[str, PromptRecord] = {}
        self.step = 0  # the last step that was learned from
        self._before: dict[str, PromptRecord] = {}  # the records of its prompts before it

    def record(self, identity: str, success: float) -> None:
        """Add one group's share of right answers."""
        progress = self.known.setdefault(identity, PromptRecord())
        memory = _MEMORY if progress.groups else 0.0
        progress.success = memory * progress.success + (1 - memory) * success
        progress.groups += 1

    def learn_from(self, groups: Sequence[Group], threshold: float, step: int) -> dict[str, float]:
        """Take a step's groups into account, and return how many prompts are in each pool."""
        before = self.pools()
        scored = [group for group in groups if group.rewards]
        self.step = step
        self._before = {g.identity: replace(self._record(g.identity)) for g in scored}
        for group in scored:
            self.record(group.identity, group.success(threshold))
        now = self.pools()
        if any(before[pool] != now[pool] for pool in _DROPPED):
            shown = ", ".join(f"{count} {pool}" for pool, count in now.items())
            print(f"  curriculum: {shown}", flush=True)
        return {f"curriculum/{pool}": float(count) for pool, count in now.items()}

    def as_of(self, step: int) -> Self:
        """Return a copy, as it was after a step: the last one, or the one before it."""
        past = type(self)()
        known = self.known if step >= self.step else {**self.known, **self._before}
        past.known = {name: replace(progress) for name, progress in known.items()}
        past.step = step
        return past

    def _record(self, identity: str) -> PromptRecord:
        return self.known.get(identity, PromptRecord())

    def pool(self, identity: str) -> Pool:
        progress = self._record(identity)
        if not progress.groups:
            return "new"
        if progress.success >= _EASY_AT and progress.groups >= _EASY_AFTER:
            return "saturated"
        if progress.success <= _HARD_AT and progress.groups >= _HARD_AFTER:
            return "hopeless"
        return "learning"

    def is_dropped(self, identity: str) -> bool:
        """Return whether a prompt is used only when nothing else is left."""
        return self.pool(identity) in _DROPPED

    def weight(self, identity: str) -> float:
        """Return the weight of a prompt: highest when half of its answers are right."""
        success = self._record(identity).success
        return 0.05 + success * (1 - success)

    def choose(self, identities: Sequence[str], count: int, seed: int | None) -> list[int]:
        """Return the positions of the prompts to use, drawn by weight, dropped ones last."""
        draw = random.Random(seed)
        keys = [draw.random() ** (1 / self.weight(identity)) for identity in identities]
        dropped = [self.is_dropped(identity) for identity in identities]
        order = sorted(range(len(identities)), key=lambda i: (dropped[i], -keys[i]))
        return order[:count]

    def pools(self) -> dict[Pool, int]:
        counts = Counter(self.pool(identity) for identity in self.known)
        return {pool: counts[pool] for pool in ("learning", *_DROPPED)}

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "known": {name: astuple(progress) for name, progress in self.known.items()},
            "before": {name: astuple(progress) for name, progress in self._before.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.step = state["step"]
        self.known = {name: PromptRecord(*values) for name, values in state["known"].items()}
        self._before = {name: PromptRecord(*values) for name, values in state["before"].items()}
