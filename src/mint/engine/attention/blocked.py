"""Attention from the pool on a CPU without C kernels: prefill and decoding alike.

A matrix library chooses its kernels by the sizes of the matrices, and kernels add in different
orders. So keys are taken in blocks of ``WIDTH``, counted from the start of the sequence, the blocks
are added one after the other, and rows are filled up to a multiple of ``precision.ROWS``. A row
then gets the same bits in a prefill of any chunks, in decoding, and in any batch.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from mint.engine.messages import IntArray
from mint.engine.model.context import Scores
from mint.engine.model.precision import fill_up
from mint.engine.sampling.kv_pool import BLOCK_SIZE, find_pool

from .layout import Chunk
from .reference import store

WIDTH = 64  # keys of a block
_QUERIES = 256  # tokens of a prompt whose scores are in memory at a time
_KEYS = 1 << 14  # gathered at a time
_GROUP = 8  # answers that read their prompt together; each is also multiplied by the others' keys


@dataclass(frozen=True)
class _Group:
    """Tokens that read the same blocks of the pool."""

    rows: list[int]  # numbers of rows in the pass
    blocks: list[int]  # whole blocks of keys; block 0, which holds zeros, fills them up
    distance: IntArray  # [rows, keys] in tokens; negative where a token does not see a key

    @classmethod
    def of_answers(cls, members: list[tuple[int, Chunk]], common: tuple[int, ...]) -> Self:
        """Return the group of rows of single tokens whose sequences have blocks in common."""
        rows, chunks = [row for row, _ in members], [chunk for _, chunk in members]
        blocks, start = [*common], len(common) * BLOCK_SIZE
        ends = [_padded(chunk.end) for chunk in chunks]
        distance = np.full((len(rows), start + sum(end - start for end in ends)), -1)
        distance[:, :start] = np.array([chunk.start for chunk in chunks])[:, None] - np.arange(
            start
        )
        for line, chunk, end in zip(distance, chunks, ends, strict=True):
            at = len(blocks) * BLOCK_SIZE
            line[at : at + end - start] = chunk.start - np.arange(start, end)
            blocks += _fill(chunk.blocks, end)[len(common) :]
        return cls(rows, blocks, distance)


class BlockedAttention:
    """One pass: keys and values go to the pool, and each token sees its own blocks."""

    def __init__(self, chunks: list[Chunk]) -> None:
        self._slots = torch.as_tensor(np.concatenate([chunk.slots for chunk in chunks]))
        self._begun = self._slots[self._slots % BLOCK_SIZE == 0] // BLOCK_SIZE
        alike: dict[tuple[int, int], list[_Group]] = {}
        for group in _find_groups(chunks):
            alike.setdefault((len(group.rows), group.distance.shape[1]), []).append(group)
        self._parts = []
        for (_, keys), members in alike.items():
            most = max(_KEYS // keys, 1)
            self._parts += [_Part(members[at : at + most]) for at in range(0, len(members), most)]

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, how: Scores) -> Tensor:
        pool = find_pool(module)
        pool[:, self._begun] = 0.0  # whatever was there must not be multiplied by 0
        store(pool, k, v, self._slots)
        output = torch.empty_like(q)
        for part in self._parts:
            output[part.rows] = part.attend(pool, q[part.rows], how)
        return output


class _Part:
    """Groups of the same size, which are computed together."""

    def __init__(self, groups: list[_Group]) -> None:
        self.rows = torch.tensor([row for group in groups for row in group.rows])
        self._blocks = torch.tensor([group.blocks for group in groups])
        self._distance = torch.as_tensor(np.stack([group.distance for group in groups]))
        self._seen: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, pool: Tensor, q: Tensor, how: Scores) -> Tensor:
        (_, total, heads, _, dim), (groups, queries, _) = pool.shape, self._distance.shape
        blocks, hidden = self._visible(how.window)
        sides, each = torch.arange(2)[:, None, None, None], torch.arange(heads)[:, None]
        places = ((sides * total + blocks[:, None]) * heads + each).flatten()  # groups, heads
        keys, values = (
            pool.view(-1, BLOCK_SIZE * dim)
            .index_select(0, places)
            .to(q.dtype)
            .view(2, groups * heads, -1, dim)
        )
        rows = q.view(groups, queries, heads, -1, dim).transpose(1, 2)
        repeat, count = rows.shape[3], queries * rows.shape[3]
        rows = fill_up(rows.reshape(groups * heads, count, dim))
        scores = torch.bmm(rows, keys.transpose(1, 2)).mul_(how.scale)
        if how.softcap:
            scores = how.softcap * torch.tanh(scores / how.softcap)
        scores[:, :count].view(groups, heads, queries, repeat, -1).masked_fill_(
            hidden, float("-inf")
        )
        if how.sinks is not None:
            column = how.sinks.float().view(heads, 1, repeat).expand(groups, -1, queries, -1)
            column = fill_up(column.reshape(groups * heads, count, 1))
            scores = torch.cat([scores, column], -1)
        weights = torch.softmax(scores, -1)
        output = torch.bmm(weights[:, :, :WIDTH], values[:, :WIDTH])
        for at in range(WIDTH, values.shape[1], WIDTH):
            output.baddbmm_(weights[:, :, at : at + WIDTH], values[:, at : at + WIDTH])
        output = output[:, :count].view(groups, heads, queries, repeat, dim)
        return output.transpose(1, 2).reshape(q.shape)

    def _visible(self, window: int) -> tuple[Tensor, Tensor]:
        """Return the pool's blocks that some token sees, and which of their keys each does not.

        They are [groups, blocks] and [groups, 1, tokens, 1, keys].
        """
        if window not in self._seen:
            hidden = self._distance < 0
            if window:
                hidden |= self._distance >= window
            groups, tokens, _ = hidden.shape
            hidden = hidden.view(groups, tokens, -1, WIDTH)
            used = ~hidden.all(-1).flatten(0, 1).all(0)
            blocks = self._blocks.view(groups, -1, WIDTH // BLOCK_SIZE)[:, used].flatten(1)
            self._seen[window] = blocks, hidden[:, :, used].flatten(-2)[:, None, :, None]
        return self._seen[window]


def _find_groups(chunks: list[Chunk]) -> list[_Group]:
    """Divide the tokens of a pass: chunks of prompts by their size, answers by their prompt."""
    groups, row = [], 0
    answers: dict[tuple[int, ...], list[tuple[int, Chunk]]] = {}
    for chunk in chunks:
        if common := chunk.shared // WIDTH * WIDTH // BLOCK_SIZE:
            answers.setdefault(tuple(chunk.blocks[:common]), []).append((row, chunk))
            row += 1
            continue
        for start in range(chunk.start, chunk.end, _QUERIES):
            positions = np.arange(start, min(start + _QUERIES, chunk.end))
            end = _padded(positions[-1] + 1)
            rows = list(range(row, row + len(positions)))
            distance = positions[:, None] - np.arange(end)
            groups.append(_Group(rows, _fill(chunk.blocks, end), distance))
            row += len(positions)
    for blocks, members in answers.items():
        for at in range(0, len(members), _GROUP):
            groups.append(_Group.of_answers(members[at : at + _GROUP], blocks))
    return groups


def _padded(length: int) -> int:
    """Return a number of keys rounded up to whole blocks."""
    return -(-length // WIDTH) * WIDTH


def _fill(blocks: list[int], end: int) -> list[int]:
    """Return the blocks up to a token, with block 0 for those that are missing."""
    blocks = blocks[: end // BLOCK_SIZE]
    return blocks + [0] * (end // BLOCK_SIZE - len(blocks))
