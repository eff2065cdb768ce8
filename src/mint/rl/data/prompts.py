"""Choose the prompts of each step: the same ones again when a run is resumed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mint.config_error import ConfigError
from mint.rl.data.curriculum import Curriculum
from mint.rl.data.epochs import Epochs
from mint.rl.data.split import Split
from mint.rl.rollouts.policy import seed_for
from mint.rl.settings.config import RLConfig
from mint.rl.task import identify, overrides
from mint.tokenizer import plain_tokenizer

_RandomState = tuple[Any, Any]  # the states of ``random`` and ``numpy.random``
_MOST_CALLS = 20  # to ``build_dataset`` for one step, before it accepts fewer items
_USED_UP = 3  # calls that return nothing new to a step, before the dataset is used up
_NO_MORE_HELD_OUT = 5  # calls in a row without a new item, before the holdout is complete


@dataclass(frozen=True)
class Item:
    """A sample, its prompt (None for environments), its identity, and the call it came from."""

    sample: Any
    prompt: tuple[int, ...] | None
    identity: str
    call: int = 0


class NotEnoughData(RuntimeError):
    """The dataset has nothing to train on."""


class Data:
    """Draws the items of every step from an adapter's dataset."""

    def __init__(self, adapter: Any, tokenizer: Any, cfg: RLConfig) -> None:
        self.adapter = adapter
        self.tokenizer = plain_tokenizer(tokenizer)
        self.cfg = cfg
        self.curriculum = Curriculum() if cfg.curriculum else None
        self.calls = 0
        self._ahead: list[tuple[list[Any], _RandomState]] = []  # calls made ahead
        self._samples: list[Any] = []  # samples of the last call
        self._known: dict[int, tuple[Any, str]] = {}
        self._compared = False
        self._seed("given")
        self.given = self.items(getattr(adapter, "build_holdout", list)())
        fraction = 0.0 if self.given else cfg.holdout_fraction
        self.split = Split(fraction, [item.identity for item in self.given])

    def _seed(self, *place: object) -> None:
        """Seed the adapter's random numbers from nothing but the place where they are used."""
        if self.cfg.seed is not None:
            seed = seed_for(self.cfg.seed, *place)
            random.seed(seed)
            np.random.seed(seed)

    @cached_property
    def epochs(self) -> Epochs | None:
        """The order of a fixed dataset; None if every step calls ``build_dataset``.

        With ``data_order=auto`` the first two calls are compared, and used later as they are, so
        that the adapter's random numbers stay what they were.
        """
        order = self.cfg.data_order
        fixed = order == "shuffled" or (order == "auto" and self._is_fixed())
        return Epochs(self.cfg.seed) if fixed else None

    def decide_order(self) -> str:
        """Decide in which order a run uses its dataset, and describe the decision."""
        if self.epochs is None:
            used = "the curriculum's choice" if self.curriculum else "the first samples"
            how, found = f"each step calls build_dataset and uses {used}", "new"
        else:
            used = "in the curriculum's order" if self.curriculum else "shuffled"
            how, found = f"steps iterate over the whole dataset in epochs, {used}", "the same"
        why = f": build_dataset returns {found} samples at every call"
        return f"Data: {how}{why if self.cfg.data_order == 'auto' else ''}."

    def _is_fixed(self) -> bool:
        """Return whether two calls give the same samples, in whatever order."""
        state = _random_state()
        self._ahead = [self._build(0), self._build(1)]
        named = [[(s, self._identity(s)) for s in samples] for samples, _ in self._ahead]
        self._known = {id(sample): (sample, name) for sample, name in [*named[0], *named[1]]}
        _restore(state)
        first, second = (sorted(name for _, name in each) for each in named)
        return bool(first) and first == second

    def draw(self, step: int) -> Draw:
        """Draw the items of a step. They do not depend on steps that are still being sampled."""
        known = None
        if self.curriculum is not None:
            known = self.curriculum.as_of(step - 1 - self.cfg.max_staleness)
        return Draw(self, step, known)

    def _build(self, call: int) -> tuple[list[Any], _RandomState]:
        """Return the samples of a call, and the state of the random numbers after it."""
        self._seed("data", call)
        return list(self.adapter.build_dataset()), _random_state()

    def build(self) -> list[Any]:
        """Call ``build_dataset``, with a seed that depends only on the number of earlier calls."""
        self._samples, state = self._ahead.pop(0) if self._ahead else self._build(self.calls)
        _restore(state)
        self.calls += 1
        return self._samples

    def resume(
        self,
        calls: int,
        position: Mapping[str, Any] | None = None,
        draw: Mapping[str, Any] | None = None,
        wanted: Sequence[tuple[int, str]] = (),
    ) -> tuple[Draw | None, dict[tuple[int, str], Item]]:
        """Continue after so many calls of ``build_dataset``. Return the draw that was in use, and
        the ``wanted`` items, by call and identity, that the calls return again."""
        epochs = self.epochs  # decided before the first call
        found: dict[tuple[int, str], Item] = {}
        latest = None
        while (call := self.calls) < calls:
            if draw is not None and call == draw["call"]:
                latest = self.draw(draw["step"])
                latest.seen = set(draw["seen"])
            else:
                self.build()
            if any(of == call for of, _ in wanted):
                items = (self.item(sample, call) for sample in self._samples)
                found |= {(call, i.identity): i for i in items if (call, i.identity) in wanted}
        if epochs is not None and position is not None:
            epochs.load(position)
        return latest, found

    def stream(self, step: int, curriculum: Curriculum | None) -> Iterator[Item]:
        """Return the trainable items of one more call, in the order of use."""
        call, samples = self.calls, self.build()
        items = (self.item(sample, call) for sample in samples)
        trainable = (item for item in items if not self.split.holds_out(item.identity))
        if curriculum is None:
            return trainable
        known = list(trainable)
        seed = seed_for(self.cfg.seed, "curriculum", step, self.calls)
        order = curriculum.choose([item.identity for item in known], len(known), seed)
        return iter([known[i] for i in order])

    def identified(self) -> list[tuple[Any, str]]:
        """Return the trainable samples of one more call with their identities."""
        found = [(sample, self._identity(sample)) for sample in self.build()]
        self._known = {id(sample): (sample, name) for sample, name in found}
        return [(sample, name) for sample, name in found if not self.split.holds_out(name)]

    def _identity(self, sample: Any) -> str:
        known = self._known.get(id(sample))
        if known is not None and known[0] is sample:
            return known[1]
        own = overrides(self.adapter, "identity") and self.adapter.identity(sample) is not None
        if hasattr(self.adapter, "make_prompt") and not own:
            return self.item(sample).identity
        return identify(self.adapter, sample, None)

    def item(self, sample: Any, call: int = 0) -> Item:
        prompt = None
        if hasattr(self.adapter, "make_prompt"):
            prompt = tuple(int(t) for t in self.adapter.make_prompt(sample, self.tokenizer))
            if not prompt:
                raise ValueError(
                    f"make_prompt returned no tokens for {sample!r:.200}. A prompt needs at "
                    "least one."
                )
            self._compare_once(sample, prompt)
        return Item(sample, prompt, identify(self.adapter, sample, prompt), call)

    def _compare_once(self, sample: Any, prompt: tuple[int, ...]) -> None:
        """Reject prompts that change from call to call, if the run must recognise prompts."""
        matters = self.cfg.holdout_fraction or self.cfg.curriculum or self.cfg.eval_every
        if self._compared or not matters or overrides(self.adapter, "identity"):
            return
        self._compared = True
        if tuple(int(t) for t in self.adapter.make_prompt(sample, self.tokenizer)) != prompt:
            raise ConfigError(
                "make_prompt returns different tokens when it is called again for the same "
                "sample, so held-out problems cannot be kept out of training. Define "
                "identity(sample) -> str on the adapter."
            )

    def items(self, samples: Sequence[Any]) -> list[Item]:
        return [self.item(sample) for sample in samples]

    def holdout(self) -> list[Item]:
        """Return the items to evaluate on: the adapter's own, or those of the split."""
        if self.given:
            return self.given[: self.cfg.holdout_size]
        if not self.cfg.holdout_fraction:
            raise ConfigError(
                "There is nothing to evaluate on, because nothing is held out. Set "
                "holdout_fraction=0.1, or define build_holdout() on the adapter."
            )
        found: dict[str, Item] = {}
        call = in_vain = 0
        while len(found) < self.cfg.holdout_size and in_vain < _NO_MORE_HELD_OUT:
            self._seed("holdout", call)  # its own: evaluating changes no training data
            before = len(found)
            for item in self.items(self.adapter.build_dataset()):
                if self.split.holds_out(item.identity):
                    found.setdefault(item.identity, item)
            in_vain = in_vain + 1 if len(found) == before else 0
            call += 1
        if not found:
            raise NotEnoughData(
                f"No sample falls into the holdout of {self.cfg.holdout_fraction:.0%}"
                " of the dataset. Raise holdout_fraction, or define build_holdout() on the adapter."
            )
        return list(found.values())[: self.cfg.holdout_size]


def _random_state() -> _RandomState:
    return random.getstate(), np.random.get_state()


def _restore(state: _RandomState) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])


class Draw:
    """Items for one step: the batch first, then more in place of groups without signal."""

    def __init__(self, data: Data, step: int, curriculum: Curriculum | None) -> None:
        self.data = data
        self.step = step
        self.seen: set[str] = set()
        self.call = data.calls  # the one that it begins with
        self._curriculum = curriculum
        self._fixed = data.identified() if data.epochs is not None else []
        self._queue = iter(()) if data.epochs is not None else data.stream(step, curriculum)

    def batch(self, count: int) -> list[Item]:
        """Return the step's prompts: the first ``count`` items, or fewer of a smaller dataset."""
        if self.data.epochs is not None:
            taken = self._next(self.data.epochs, count)
        else:
            taken = list(itertools.islice(self._queue, count))
            self.seen.update(item.identity for item in taken)
            if not taken or (len(taken) < count and self.data.split.active):
                taken += self.more(count - len(taken))
        if not taken:
            raise NotEnoughData(
                "build_dataset returned no sample to train on. Return at least one that is not "
                "held out, or lower holdout_fraction."
            )
        return taken

    def more(self, count: int) -> list[Item]:
        """Return further items, building the dataset again when it is used up."""
        if self.data.epochs is not None:
            return self._next(self.data.epochs, count)
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

    def _next(self, epochs: Epochs, count: int) -> list[Item]:
        names = [name for _, name in self._fixed]
        chosen = epochs.take(names, count, self.seen, self._curriculum, self.step)
        return [self.data.item(self._fixed[i][0], self.call) for i in chosen]

    def state(self) -> dict[str, Any]:
        """Return what :meth:`Data.resume` needs to draw it again."""
        return {"step": self.step, "call": self.call, "seen": sorted(self.seen)}
