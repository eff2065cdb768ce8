"""The layout of the sequences in a pass, for attention."""

from dataclasses import dataclass

import numpy as np

from mint.engine.messages import IntArray
from mint.engine.sampling.kv_pool import BLOCK_SIZE


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

    @property
    def slots(self) -> IntArray:
        """Where the keys and values of these tokens go in the pool."""
        blocks = np.asarray(self.blocks, np.int64)
        positions = self.positions
        return blocks[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE


@dataclass(frozen=True)
class DecodeRows:
    """One new token for each of several sequences."""

    positions: IntArray  # [B] of the new tokens
    blocks: list[list[int]]
    shared: list[int]  # first tokens of each that others may have in common: its prompt

    @property
    def slots(self) -> IntArray:
        """Where the keys and values of these tokens go in the pool."""
        pairs = zip(self.blocks, self.positions // BLOCK_SIZE, strict=True)
        blocks = np.array([blocks[number] for blocks, number in pairs], np.int64)
        return blocks * BLOCK_SIZE + self.positions % BLOCK_SIZE

    def by_prompt(self, width: int) -> dict[tuple[int, ...], list[int]]:
        """Return the rows by the blocks of their prompts, up to a multiple of so many tokens."""
        rows: dict[tuple[int, ...], list[int]] = {}
        for row, blocks in enumerate(self.blocks):
            common = self.shared[row] // width * width // BLOCK_SIZE
            rows.setdefault(tuple(blocks[:common]), []).append(row)
        return rows
