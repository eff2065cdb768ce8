"""The block manager: which blocks of the key-value pool hold which tokens.

A full block is identified by its tokens and the block before it, so a sequence with the same prefix
as an earlier one reuses its blocks. Shared blocks are reference-counted. Unused blocks keep their
contents until they are needed; the least recently used is reused first.
"""

import itertools
from collections import OrderedDict
from weakref import WeakKeyDictionary

from mint.engine.adapters.lora import Adapter
from mint.engine.messages import IntArray
from mint.engine.sampling.kv_pool import BLOCK_SIZE

_BASE_MODEL = 0
_Key = tuple[int, bytes]  # the number of the block before (or of the adapter), and its tokens


class BlockManager:
    """Hands out the blocks 1 .. ``blocks`` - 1; block 0 is for padding."""

    def __init__(self, blocks: int) -> None:
        self.capacity = blocks - 1
        self._users = [0] * blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, blocks))
        self._known: dict[_Key, int] = {}
        self._keys: dict[int, tuple[_Key, int]] = {}  # the key and number of each known block
        self._counter = itertools.count(_BASE_MODEL + 1)
        self._adapters: WeakKeyDictionary[Adapter, int] = WeakKeyDictionary()

    @property
    def free(self) -> int:
        """The number of blocks that can be taken now."""
        return len(self._free)

    @property
    def kept(self) -> int:
        """The number of free blocks whose tokens can still be reused."""
        return sum(block in self._keys for block in self._free)

    def _root(self, adapter: Adapter | None) -> int:
        """Return the number that comes before the first block of an adapter's sequences."""
        if adapter is None:
            return _BASE_MODEL
        return self._adapters.setdefault(adapter, next(self._counter))

    def find(self, adapter: Adapter | None, tokens: IntArray) -> tuple[list[int], int]:
        """Take the cached blocks of the longest known prefix; return also the last one's number."""
        before, found = self._root(adapter), []
        for start in range(0, len(tokens) - BLOCK_SIZE + 1, BLOCK_SIZE):
            block = self._known.get((before, tokens[start : start + BLOCK_SIZE].tobytes()))
            if block is None:
                break
            found.append(block)
            before = self._keys[block][1]
        for block in found:
            self.share(block)
        return found, before

    def share(self, block: int) -> None:
        """Count one more user of a block."""
        if self._users[block] == 0:
            del self._free[block]
        self._users[block] += 1

    def take(self) -> int | None:
        """Take a block for new tokens; None when all are in use."""
        if not self._free:
            return None
        block, _ = self._free.popitem(last=False)
        self._forget(block)
        self._users[block] = 1
        return block

    def release(self, blocks: list[int]) -> None:
        """Release the blocks of a sequence. Its last blocks are reused first."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                self._free[block] = None
                if block not in self._keys:
                    self._free.move_to_end(block, last=False)

    def learn(self, block: int, before: int, tokens: IntArray) -> int:
        """Record the tokens of a full block; return its number, which identifies the next block."""
        key = (before, tokens.tobytes())
        known = self._known.get(key)
        if known is not None:
            return self._keys[known][1]
        self._forget(block)
        self._known[key] = block
        self._keys[block] = key, (number := next(self._counter))  # a number is never reused
        return number

    def forget_all(self) -> None:
        """Forget the contents of all blocks: after a failure they are unknown."""
        for block in list(self._keys):
            self._forget(block)

    def _forget(self, block: int) -> None:
        if block in self._keys:
            key, _ = self._keys.pop(block)
            del self._known[key]
