"""Attention straight from the pool, by the kernels of a CPU: prefill and decoding alike.

Each token attends to the blocks of its sequence one after the other, counted from the beginning.
Tokens that have blocks in common go through them together; what each one sums, and in which order,
does not depend on that.
"""

from itertools import accumulate, chain, groupby

import numpy as np
import torch
from torch import Tensor, nn

from mint.engine.model.context import Scores
from mint.engine.native.layers import AttentionLayer, Layout
from mint.engine.sampling.kv_pool import BLOCK_SIZE, find_pool

from .layout import Chunk

_GROUP = 16  # rows at most: more groups keep more cores busy


class PagedAttention:
    """One pass."""

    def __init__(self, chunks: list[Chunk]) -> None:
        lengths = [len(chunk.tokens) for chunk in chunks]
        positions = np.concatenate([chunk.positions for chunk in chunks])
        tables = [chunk.blocks for chunk in chunks]
        starts = np.array([0, *accumulate(map(len, tables))], np.int64)
        flat = np.fromiter(chain.from_iterable(tables), np.int64, starts[-1])
        table_of = np.repeat(starts[:-1], lengths)
        slots = flat[table_of + positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        alike: dict[tuple[int, ...], list[int]] = {}  # rows by the blocks that they have in common
        numbers, blocks = np.repeat(range(len(chunks)), lengths), positions // BLOCK_SIZE
        places = [*zip(numbers.tolist(), blocks.tolist(), strict=True)]
        for (number, block), rows in groupby(range(len(places)), places.__getitem__):
            chunk = chunks[number]
            common = chunk.shared // BLOCK_SIZE if chunk.shared else block + 1
            alike.setdefault(tuple(chunk.blocks[:common]), []).extend(rows)
        groups, commons = [], []
        for shared, members in alike.items():
            for at in range(0, len(members), _GROUP):
                groups.append(members[at : at + _GROUP])
                commons.append(len(shared))
        ends = [0, *accumulate(map(len, groups))]
        self.layout = Layout(
            *(torch.as_tensor(part) for part in (positions, slots, flat, table_of)),
            *(torch.tensor(part) for part in ([*chain(*groups)], ends, commons)),
        )

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, how: Scores) -> Tensor:
        layer = AttentionLayer(find_pool(module), q.shape[1], *how)
        x = torch.cat([part.flatten(1) for part in (q, k, v)], 1)
        layer.store(x, self.layout.slots)
        return layer.attend(x, self.layout.struct).view(q.shape)
