"""The prefix cache: keys and values of tokens seen before, found again by the tokens before them.

An entry is one token in its context, named by the entry that it follows and its token id, so that
the entries of all sequences are a prefix tree. They are ordered by their last use, each before the
one that it follows: the first entry ends a sequence, and can go without cutting another in two.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor

from .lora import Adapter
from .messages import IntArray

_FIRST_SLOTS = 1024
_BASE_MODEL = 0

_Key = tuple[int, int]  # the number of the entry before (or of the adapter), and a token id


@dataclass(slots=True)
class _Entry:
    number: int  # never used for another entry or adapter
    slot: int


class NewEntry(NamedTuple):
    """An entry whose keys and values are still to be written: those of one token of a sequence."""

    sequence: int
    position: int
    slot: int


class PrefixCache:
    """Remembers tokens per adapter, in a number of slots that grows up to what a caller allows."""

    def __init__(self) -> None:
        self.layers: dict[int, Tensor] = {}  # layer -> [slots, 2, Hkv, head]
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()
        self._adapters: WeakKeyDictionary[Adapter, int] = WeakKeyDictionary()
        self._dropped: WeakSet[Adapter] = WeakSet()
        self._numbers = itertools.count(_BASE_MODEL + 1)
        self._slots = 0
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, adapter: Adapter | None, tokens: IntArray) -> list[int]:
        """The slots of the longest prefix that is kept. It counts as used now."""
        path = self._path(adapter, tokens)
        return [self._entries[key].slot for key in path]

    def add(
        self, sequences: Sequence[tuple[Adapter | None, IntArray]], limit: int
    ) -> list[NewEntry]:
        """Make entries for tokens that have none, while there is room; then ``write`` them.

        The least recently used make way for them, but none that these sequences share.
        """
        new: list[NewEntry] = []
        in_use: set[_Key] = set()
        for index, (adapter, tokens) in enumerate(sequences):
            if adapter in self._dropped:
                continue
            path = self._path(adapter, tokens)
            in_use.update(path)
            before = self._entries[path[-1]].number if path else self._number(adapter)
            for position in range(len(path), len(tokens)):
                slot = self._take_slot(limit, in_use)
                if slot is None:
                    break
                key, entry = (before, int(tokens[position])), _Entry(next(self._numbers), slot)
                self._entries[key] = entry
                in_use.add(key)
                path.append(key)
                new.append(NewEntry(index, position, slot))
                before = entry.number
            self._use(path)
        return new

    def write(self, new: list[NewEntry], layers: Iterable[tuple[int, Tensor]]) -> None:
        """Store the keys and values of new entries: for each layer, [entries, 2, Hkv, head]."""
        if not new:
            return
        slots = torch.tensor([entry.slot for entry in new])
        for layer, values in layers:
            pool = self.layers.get(layer, values[:0])
            if len(pool) < self._slots:
                grown = values.new_empty(self._slots, *values.shape[1:])
                grown[: len(pool)] = pool
                pool = self.layers[layer] = grown
            pool[slots.to(pool.device)] = values

    def shrink(self, slots: int) -> None:
        """Hold no more than so many slots: what was not used for longest goes."""
        if slots >= self._slots:
            return
        while len(self._entries) > slots:
            self._entries.popitem(last=False)
        left = torch.tensor([entry.slot for entry in self._entries.values()], dtype=torch.long)
        for layer, pool in self.layers.items():
            self.layers[layer] = pool[left.to(pool.device)]
        for slot, entry in enumerate(self._entries.values()):
            entry.slot = slot
        self._slots, self._free = slots, list(range(len(left), slots))

    def forget(self, adapter: Adapter) -> None:
        """Drop all that is kept for an adapter, and keep no more for it."""
        self._dropped.add(adapter)
        gone = {self._adapters.pop(adapter, None)}
        for key, entry in reversed(list(self._entries.items())):  # the one before comes first
            if key[0] in gone:
                gone.add(entry.number)
                self._free.append(entry.slot)
                del self._entries[key]
        if not self._entries:
            self.shrink(0)

    def _path(self, adapter: Adapter | None, tokens: IntArray) -> list[_Key]:
        """The entries of the longest prefix that is kept, as of now the last used."""
        before, path = self._number(adapter), []
        for token in tokens.tolist():
            entry = self._entries.get((before, token))
            if entry is None:
                break
            path.append((before, token))
            before = entry.number
        self._use(path)
        return path

    def _use(self, path: list[_Key]) -> None:
        for key in reversed(path):
            self._entries.move_to_end(key)

    def _number(self, adapter: Adapter | None) -> int:
        if adapter is None:
            return _BASE_MODEL
        if adapter not in self._adapters:
            self._adapters[adapter] = next(self._numbers)
        return self._adapters[adapter]

    def _take_slot(self, limit: int, in_use: set[_Key]) -> int | None:
        if not self._free and self._slots < limit:
            slots = min(max(2 * self._slots, _FIRST_SLOTS), limit)
            self._free = list(range(self._slots, slots))
            self._slots = slots
        if self._free:
            return self._free.pop()
        oldest = next(iter(self._entries), None)
        if oldest is None or oldest in in_use:
            return None
        return self._entries.pop(oldest).slot
