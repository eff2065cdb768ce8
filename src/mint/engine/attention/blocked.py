"""Sums of attention on a CPU whose bits do not depend on what else is computed beside them.

A matrix library chooses its kernels by the sizes of the matrices, and kernels add in different
orders. So keys are taken in blocks of ``WIDTH``, counted from the begin of the sequence, the blocks
are added one after the other, and rows are filled up to a multiple of ``precision.ROWS``. A row
then gets the same bits in a prefill of any chunks, in decoding, and in any batch.
"""

import numpy as np
import torch
from torch import Tensor, nn

from mint.engine.model.precision import fill_up
from mint.engine.sampling.kv_pool import BLOCK_SIZE, KVPool, find_pool

from .layout import Chunk
from .reference import store

WIDTH = 64  # keys of a block
_QUERIES = 256  # tokens whose scores are in memory at a time


def padded(length: int) -> int:
    """Return a number of keys rounded up to whole blocks."""
    return -(-length // WIDTH) * WIDTH


def weigh(weights: Tensor, values: Tensor, before: Tensor | None = None) -> Tensor:
    """Multiply weights [B, R, L] by values [B, L, D], block by block, onto what came before."""
    start, output = 0, before
    if output is None:
        start, output = WIDTH, torch.bmm(weights[:, :, :WIDTH], values[:, :WIDTH])
    for at in range(start, weights.shape[2], WIDTH):
        output.baddbmm_(weights[:, :, at : at + WIDTH], values[:, at : at + WIDTH])
    return output


class BlockedPrefill:
    """Chunks of prompts: keys and values go to the pool, and each token sees its own blocks."""

    def __init__(self, pool: KVPool, chunks: list[Chunk]) -> None:
        self._chunks = chunks
        self._tables = [_table(chunk) for chunk in chunks]
        self._slots = torch.as_tensor(np.concatenate([c.slots(BLOCK_SIZE) for c in chunks]))
        self._hidden: dict[tuple[int, int, int], Tensor] = {}

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int,
        softcap: float, sinks: Tensor | None,
    ) -> Tensor:  # fmt: skip
        pool = find_pool(module)
        store(pool, k, v, self._slots)
        output, at = torch.empty_like(q), 0
        heads, repeat = k.shape[1], q.shape[1] // k.shape[1]
        for number, (chunk, table) in enumerate(zip(self._chunks, self._tables, strict=True)):
            pairs = pool[:, table].transpose(1, 2).flatten(2, 3).to(q.dtype)  # [2, Hkv, L, D]
            pairs[:, :, chunk.end :] = 0.0  # whatever was there must not be multiplied by 0
            for start in range(chunk.start, chunk.end, _QUERIES):
                stop = min(start + _QUERIES, chunk.end)
                first = max(start - window + 1, 0) // WIDTH * WIDTH if window else 0
                keys, values = pairs[:, :, first : padded(stop)]
                rows = q[at : at + stop - start].view(stop - start, heads, repeat, -1)
                flat = fill_up(rows.transpose(0, 1).flatten(1, 2))
                scores = torch.bmm(flat, keys.transpose(1, 2)).mul_(scale)
                if softcap:
                    scores = softcap * torch.tanh(scores / softcap)
                count = (stop - start) * repeat
                grid = scores[:, :count].view(heads, stop - start, repeat, -1)
                grid.masked_fill_(self._hide(number, start, stop, first, window), float("-inf"))
                weights = softmax(scores, sinks, repeat)
                result = weigh(weights, values)[:, :count]
                output[at : at + stop - start] = (
                    result.view(heads, stop - start, repeat, -1).transpose(0, 1).flatten(1, 2)
                )
                at += stop - start
        return output

    def _hide(self, number: int, start: int, stop: int, first: int, window: int) -> Tensor:
        """Return which keys the tokens of a slice do not see, [rows, 1, keys]."""
        key = (number, start, window)
        if key not in self._hidden:
            distance = torch.arange(start, stop)[:, None] - torch.arange(first, padded(stop))
            hidden = distance < 0
            self._hidden[key] = (hidden | (distance >= window) if window else hidden)[:, None]
        return self._hidden[key]


def softmax(scores: Tensor, sinks: Tensor | None, repeat: int) -> Tensor:
    """Normalize scores [Hkv, rows * repeat (filled up), L], with a learned score beside them."""
    if sinks is None:
        return torch.softmax(scores, -1)
    heads, rows, length = scores.shape
    columns = sinks.float().view(heads, 1, repeat).repeat(1, -(-rows // repeat), 1)
    columns = columns.flatten(1)[:, :rows, None]
    return torch.softmax(torch.cat([scores, columns], -1), -1)[..., :length]


def _table(chunk: Chunk) -> Tensor:
    """Return a chunk's blocks up to its end, and block 0 for what fills the last block of keys."""
    count = padded(chunk.end) // BLOCK_SIZE
    blocks = chunk.blocks[: -(-chunk.end // BLOCK_SIZE)]
    return torch.tensor(blocks + [0] * (count - len(blocks)))
