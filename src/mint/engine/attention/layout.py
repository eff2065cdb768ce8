"""The layout of the sequences in a pass, for attention."""

from dataclasses import dataclass

import numpy as np

from ..messages import IntArray


@dataclass(frozen=True)
class Chunk:
    """Some next tokens of a prompt: they see the tokens before them, which are in its blocks."""

    tokens: IntArray
    start: int  # how many tokens come before
    blocks: list[int]  # of the whole sequence, these tokens included

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def positions(self) -> IntArray:
        return np.arange(self.start, self.end, dtype=np.int64)

    def slots(self, block_size: int) -> IntArray:
        """Return where the keys and values of these tokens go in the pool."""
        blocks = np.asarray(self.blocks, np.int64)
        positions = self.positions
        return blocks[positions // block_size] * block_size + positions % block_size


@dataclass(frozen=True)
class DecodeRows:
    """One new token for each of several sequences."""

    positions: IntArray  # [B] of the new tokens
    blocks: list[list[int]]
    shared: list[int]  # first tokens of each that others may have in common: its prompt

    def slots(self, block_size: int) -> IntArray:
        """Return where the keys and values of these tokens go in the pool."""
        pairs = zip(self.blocks, self.positions // block_size, strict=True)
        blocks = np.array([blocks[number] for blocks, number in pairs], np.int64)
        return blocks * block_size + self.positions % block_size
