"""The prompts of each step: the same ones at the same step, whenever the run is continued."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mint.rl.adapter import identity_of, overrides
from mint.rl.config import RLConfig
from mint.rl.curriculum import Curriculum
from mint.rl.options import ConfigError
from mint.rl.policy import seed_for
from mint.rl.split import Split
from mint.tokenizer import plain_tokenizer

_MOST_CALLS = 20
"""How often a dataset is built in vain before there is too little of it."""
_USED_UP = 3
"""How often it may give only samples that a step has had, before there are no others."""


@dataclass(frozen=True)
class Item:
    """A sample, its prompt (None for environments, which write their own), and its identity."""

    sample: Any
    prompt: tuple[int, ...] | None
    identity: str


class NotEnoughData(RuntimeError):
    """The dataset gave nothing to train on."""


class Data:
    """Where the items of a run come from."""

    def __init__(self, adapter: Any, tokenizer: Any, cfg: RLConfig) -> None:
        self.adapter = adapter
        self.tokenizer = plain_tokenizer(tokenizer)
        self.cfg = cfg
        self.curriculum = Curriculum() if cfg.curriculum else None
        self.calls = 0
        self._compared = False
        self._seed("given")
        self.given = self._items(getattr(adapter, "build_holdout", list)())
        fraction = 0.0 if self.given else cfg.holdout_fraction
        self.split = Split(fraction, [item.identity for item in self.given])

    def _seed(self, *place: object) -> None:
        """Give the adapter random numbers that depend on the place and on nothing else."""
        if self.cfg.seed is not None:
            seed = seed_for(self.cfg.seed, *place)
            random.seed(seed)
            np.random.seed(seed)

    def draw(self, step: int) -> Draw:
        """What a step may use. One that is drawn while another trains knows nothing of that one,
        however long its sampling takes."""
        known = None
        if self.curriculum is not None:
            known = self.curriculum.as_of(step - 1 - self.cfg.max_staleness)
        return Draw(self, step, known)

    def build(self) -> list[Any]:
        """One call of the adapter's ``build_dataset``, with random numbers that depend on how many
        calls came before it and on nothing else."""
        self._seed("data", self.calls)
        self.calls += 1
        return list(self.adapter.build_dataset())

    def replay(self, calls: int) -> None:
        """Bring an adapter with random numbers of its own to where it was after so many calls."""
        while self.calls < calls:
            self.build()

    def stream(self, step: int, curriculum: Curriculum | None) -> Iterator[Item]:
        """The trainable items of one more call, in the order in which a step should try them.

        Prompts are made as they are asked for, unless the order depends on all of them.
        """
        samples, seed = self.build(), self.cfg.seed
        if curriculum is not None:
            items = list(self._trainable(samples))
            names = [item.identity for item in items]
            place = seed_for(seed, "curriculum", step, self.calls)
            return iter([items[i] for i in curriculum.choose(names, len(items), place)])
        if self.cfg.data_order == "shuffled":
            kept = list(self._trainable(samples)) if self.split.active else samples
            ordered = shuffled(kept, step, self.cfg.batch_size, seed)
            return iter(ordered) if self.split.active else self._trainable(ordered)
        return self._trainable(samples)

    def _trainable(self, samples: Sequence[Any]) -> Iterator[Item]:
        items = (self._item(sample) for sample in samples)
        return (item for item in items if not self.split.holds_out(item.identity))

    def _items(self, samples: Sequence[Any]) -> list[Item]:
        return [self._item(sample) for sample in samples]

    def _item(self, sample: Any) -> Item:
        prompt = None
        if hasattr(self.adapter, "make_prompt"):
            prompt = tuple(int(t) for t in self.adapter.make_prompt(sample, self.tokenizer))
            if not prompt:
                raise ValueError(
                    f"make_prompt gave no tokens for {sample!r:.200}. A prompt needs at least one."
                )
            self._compare_once(sample, prompt)
        return Item(sample, prompt, identity_of(self.adapter, sample, prompt))

    def _compare_once(self, sample: Any, prompt: tuple[int, ...]) -> None:
        """Refuse prompts that change from call to call where prompts must be known again."""
        matters = self.cfg.holdout_fraction or self.cfg.curriculum or self.cfg.eval_every
        if self._compared or not matters or overrides(self.adapter, "identity"):
            return
        self._compared = True
        if tuple(int(t) for t in self.adapter.make_prompt(sample, self.tokenizer)) != prompt:
            raise ConfigError(
                "make_prompt gives other tokens for the same sample when it is called again, so "
                "that held-out problems could not be told from those that are trained on. Give the "
                "adapter identity(sample) -> str, which names the problem."
            )

    def items(self, samples: Sequence[Any]) -> list[Item]:
        """Return samples of a set of their own, with their prompts and identities."""
        return self._items(samples)

    def holdout(self) -> list[Item]:
        """The items to evaluate on: the adapter's own, or those that the split keeps from training.

        Random numbers of their own are used, so that evaluating changes no training data.
        """
        if self.given:
            return self.given[: self.cfg.holdout_size]
        if not self.cfg.holdout_fraction:
            raise ConfigError(
                "There is nothing to evaluate on: nothing is held out of training. Set "
                "holdout_fraction to 0.1, or give the adapter a build_holdout()."
            )
        found: dict[str, Item] = {}
        for call in range(_MOST_CALLS):
            self._seed("holdout", call)
            before = len(found)
            for item in self._items(list(self.adapter.build_dataset())):
                if self.split.holds_out(item.identity):
                    found.setdefault(item.identity, item)
            if len(found) >= self.cfg.holdout_size or (call > 3 and len(found) == before):
                break
        if not found:
            raise NotEnoughData(
                f"No sample falls into the holdout of {self.cfg.holdout_fraction:.0%}"
                " of the dataset. Raise holdout_fraction, or give the adapter a build_holdout()."
            )
        return list(found.values())[: self.cfg.holdout_size]


def shuffled(items: Sequence[Any], step: int, count: int, seed: int | None) -> list[Any]:
    """The part of a fixed dataset that a step is to see: every item once before any twice."""
    if not items:
        return []
    epoch, offset = divmod((step - 1) * count, len(items))

    def pass_of(number: int) -> list[Any]:
        order = list(items)
        random.Random(seed_for(seed or 0, "order", number)).shuffle(order)
        return order

    return [*pass_of(epoch)[offset:], *pass_of(epoch + 1)]


class Draw:
    """Items for one step: the batch first, then more in place of groups without signal."""

    def __init__(self, data: Data, step: int, curriculum: Curriculum | None) -> None:
        self.data = data
        self.step = step
        self.seen: set[str] = set()
        self._curriculum = curriculum
        self._queue = data.stream(step, curriculum)

    def batch(self, count: int) -> list[Item]:
        """The step's prompts: the first ``count`` items, fewer when the dataset is smaller."""
        taken = [item for _, item in zip(range(count), self._queue, strict=False)]
        self.seen.update(item.identity for item in taken)
        if not taken or (len(taken) < count and self.data.split.active):
            taken += self.more(count - len(taken))
        if not taken:
            raise NotEnoughData(
                "build_dataset gave no sample to train on. Return at least one that is not held "
                "out; see holdout_fraction."
            )
        return taken

    def more(self, count: int) -> list[Item]:
        """Other items than before, building the dataset again when it is used up."""
        taken: list[Item] = []
        in_vain = 0
        for _ in range(_MOST_CALLS):
            offered, seen = False, len(self.seen)
            for item in self._queue:
                offered = True
                if item.identity not in self.seen:
                    self.seen.add(item.identity)
                    taken.append(item)
                    if len(taken) == count:
                        return taken
            if offered and len(self.seen) == seen:
                in_vain += 1
            if in_vain == _USED_UP:
                break
            self._queue = self.data.stream(self.step, self._curriculum)
        return taken
