"""Attention straight from the pool, by the kernels of a CPU: prefill and decoding alike.

Each token attends to the blocks of its sequence one after the other, counted from the beginning.
Tokens that have blocks in common go through them together; what each one sums, and in which order,
does not depend on that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, count, groupby

import numpy as np
import torch
from torch import Tensor, nn

from mint.engine.messages import IntArray
from mint.engine.model.context import Scores
from mint.engine.native.layers import AttentionLayer, Layout
from mint.engine.sampling.kv_pool import BLOCK_SIZE, find_pool

from .layout import Chunk, DecodeRows

_GROUP = 16  # rows at most: more groups keep more cores busy


class PagedAttention:
    """One pass."""

    def __init__(
        self, tables: Sequence[list[int]], table: IntArray, positions: IntArray,
        groups: list[list[int]], common: list[int],
    ) -> None:  # fmt: skip
        """Take the blocks of sequences; of each row its sequence and its position; and groups."""
        starts = np.array([0, *accumulate(len(blocks) for blocks in tables)], np.int64)
        flat = np.fromiter(chain.from_iterable(tables), np.int64, starts[-1])
        table_of = starts[table]
        blocks = flat[table_of + positions // BLOCK_SIZE]
        ends = [0, *accumulate(len(group) for group in groups)]
        rows = [row for group in groups for row in group]
        parts = (positions, blocks * BLOCK_SIZE + positions % BLOCK_SIZE, flat, table_of)
        self.layout = Layout(
            *(torch.as_tensor(part) for part in parts),
            *(torch.tensor(part, dtype=torch.int64) for part in (rows, ends, common)),
        )

    @classmethod
    def of_chunks(cls, chunks: list[Chunk]) -> PagedAttention:
        """Return the attention of chunks of prompts."""
        groups, common, row = [], [], count()
        for chunk in chunks:
            for block, tokens in groupby((chunk.positions // BLOCK_SIZE).tolist()):
                groups.append([next(row) for _ in tokens])
                common.append(block + 1)
        return cls(
            [chunk.blocks for chunk in chunks],
            np.repeat(np.arange(len(chunks)), [len(chunk.tokens) for chunk in chunks]),
            np.concatenate([chunk.positions for chunk in chunks]),
            groups,
            common,
        )

    @classmethod
    def of_rows(cls, rows: DecodeRows) -> PagedAttention:
        """Return the attention of one new token per sequence."""
        groups, common = [], []
        for shared, members in rows.by_prompt(BLOCK_SIZE).items():
            for at in range(0, len(members), _GROUP):
                groups.append(members[at : at + _GROUP])
                common.append(len(shared))
        return cls(rows.blocks, np.arange(len(rows.blocks)), rows.positions, groups, common)

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, how: Scores) -> Tensor:
        layer = AttentionLayer(find_pool(module), q.shape[1], *how)
        x = torch.cat([part.flatten(1) for part in (q, k, v)], 1)
        layer.store(x, self.layout.slots)
        return layer.attend(x, self.layout.struct).view(q.shape)
