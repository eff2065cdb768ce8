"""The order of a fixed dataset: every item once before any twice.

Only the items drawn in the current pass are stored: a resumed run has the same order as one that
was not interrupted, however many prompts its steps drew to replace others.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mint.rl.data.curriculum import Curriculum
from mint.rl.rollouts.policy import seed_for


class Epochs:
    """The order of a dataset's items.

    >>> epochs = Epochs(seed=0)
    >>> first = epochs.take(["a", "b", "c"], 2, set())
    >>> sorted(first + epochs.take(["a", "b", "c"], 1, set()))
    [0, 1, 2]
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = random.SystemRandom().getrandbits(64) if seed is None else seed
        self.epoch = 0
        self.used: set[str] = set()
        self._shuffled: tuple[list[str], int, list[int]] | None = None

    def take(
        self,
        identities: Sequence[str],
        count: int,
        seen: set[str],
        curriculum: Curriculum | None = None,
        step: int = 0,
    ) -> list[int]:
        """Return the positions of the next ``count`` items that a step has not ``seen``, or fewer.

        A curriculum decides the order of a pass. Prompts that it drops are taken after all others.
        """
        keys = _distinct(identities)
        order = self._order(keys, identities, curriculum, step)
        is_dropped = curriculum.is_dropped if curriculum is not None else lambda identity: False
        taken: list[int] = []
        for dropped in (False, True):
            pool = [i for i in order if is_dropped(identities[i]) is dropped]
            while len(taken) < count:
                fresh = [i for i in pool if keys[i] not in self.used and keys[i] not in seen]
                chosen = fresh[: count - len(taken)]
                taken += chosen
                self.used.update(keys[i] for i in chosen)
                seen.update(keys[i] for i in chosen)
                if chosen:
                    continue
                if all(keys[i] in seen for i in pool):
                    break
                self.epoch += 1
                self.used.difference_update(keys[i] for i in pool)
                if curriculum is None:
                    pool = self._order(keys, identities, None, step)
        return taken

    def _order(
        self,
        keys: list[str],
        identities: Sequence[str],
        curriculum: Curriculum | None,
        step: int,
    ) -> list[int]:
        """Return all positions: as the curriculum prefers, or in the order of this pass."""
        if curriculum is not None:
            seed = seed_for(self.seed, "curriculum", step)
            return curriculum.choose(identities, len(identities), seed)
        if self._shuffled is None or self._shuffled[:2] != (keys, self.epoch):
            begin = f"{self.seed} {self.epoch} "
            ranks = [hashlib.sha256((begin + key).encode()).digest() for key in keys]
            order = sorted(range(len(keys)), key=ranks.__getitem__)
            self._shuffled = (keys, self.epoch, order)
        return self._shuffled[2]

    def state(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "used": sorted(self.used)}

    def load(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.used = int(state["epoch"]), set(state["used"])


def _distinct(identities: Sequence[str]) -> list[str]:
    """Return a key for every row, also where several rows are the same problem.

    >>> _distinct(["a", "b", "a"])
    ['a', 'b', 'a 2']
    """
    counts: Counter[str] = Counter()
    keys = []
    for name in identities:
        counts[name] += 1
        keys.append(name if counts[name] == 1 else f"{name} {counts[name]}")
    return keys
