"""Attention of decoding in its plainest form, which the others are compared with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mint.engine.attention.layout import Chunk
from mint.engine.attention.reference import attend, store
from mint.engine.model.context import Scores
from mint.engine.sampling.kv_pool import BLOCK_SIZE, KVPool, find_pool


class ReferenceDecode:
    """One new token per sequence, which sees its own blocks: gathered again for every layer."""

    def __init__(self, pool: KVPool, rows: list[Chunk]) -> None:
        positions = torch.tensor([row.start for row in rows], device=pool.device)
        width = max(len(row.blocks) for row in rows)
        table = [[*row.blocks, *[0] * (width - len(row.blocks))] for row in rows]
        self._table = torch.tensor(table, device=pool.device)
        self._positions = positions
        current = self._table.gather(1, (positions // BLOCK_SIZE)[:, None]).squeeze(1)
        self._slots = current * BLOCK_SIZE + positions % BLOCK_SIZE

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, how: Scores) -> Tensor:
        pool = find_pool(module)
        store(pool, k, v, self._slots)
        keys, values = (part[self._table].transpose(1, 2).flatten(2, 3) for part in pool)
        distance = self._positions[:, None] - torch.arange(keys.shape[2], device=q.device)
        mask = distance >= 0
        if how.window:
            mask &= distance < how.window
        output = attend(q[:, :, None], keys, values, mask[:, None, None], how)
        return output[:, :, 0]
