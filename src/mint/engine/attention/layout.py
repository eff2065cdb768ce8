"""The layout of the sequences in a pass, for attention."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mint.engine.messages import IntArray
from mint.engine.sampling.kv_pool import BLOCK_SIZE


@dataclass(frozen=True)
class Chunk:
    """Some next tokens of a sequence: they see the tokens before them, which are in its blocks.

    A prompt is computed in chunks of many tokens, and a decode step takes one token of each answer.
    """

    tokens: IntArray
    start: int  # how many tokens come before
    blocks: list[int]  # the blocks of the whole sequence, including these tokens
    shared: int = 0  # for an answer: the length of its prompt, which others may share

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @cached_property
    def positions(self) -> IntArray:
        return np.arange(self.start, self.end, dtype=np.int64)

    @property
    def slots(self) -> IntArray:
        """Where the keys and values of these tokens go in the pool."""
        blocks = np.asarray(self.blocks, np.int64)
        positions = self.positions
        return blocks[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
