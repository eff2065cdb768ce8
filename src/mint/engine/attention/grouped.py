"""Decoding on a CPU: the answers of a group attend to their common prompt in one product.

The pool's blocks are scattered, and a CPU multiplies contiguous matrices. So the keys and values of
running rows are kept a second time in a dense workspace: those of a prompt once per group, those of
an answer once per row. Rows of similar length share a workspace, a *tier*, so that padding stays
small. A tier is gathered from the pool when its rows change; each step appends to it.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn

from ..pool import BLOCK_SIZE, KVPool, pool_of
from .layout import DecodeRows
from .reference import store

_SHORTEST = 64  # tokens of the smallest tier
_WASTE = 1.5  # places per row that a layout of groups may have


class GroupedDecode:
    """Attention of one new token per sequence. It lives as long as the pool does."""

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._tiers: dict[tuple[int, int], _Tier] = {}
        self._slots = torch.empty(0, dtype=torch.long)

    def update(self, rows: DecodeRows) -> None:
        """Prepare the next step, which is about these rows."""
        members: dict[tuple[int, int], list[int]] = {}
        slots = []
        for row, position in enumerate(rows.positions.tolist()):
            key = (_bucket(rows.shared[row]), _bucket(position + 1 - rows.shared[row]))
            members.setdefault(key, []).append(row)
            block = rows.blocks[row][position // BLOCK_SIZE]
            slots.append(block * BLOCK_SIZE + position % BLOCK_SIZE)
        self._slots = torch.tensor(slots)
        tiers = {}
        for key, numbers in members.items():
            tier = self._tiers.get(key)
            if tier is None or not tier.holds([rows.ids[row] for row in numbers]):
                tier = _Tier(self._pool, rows, numbers, *key)
            tier.update(rows, numbers)
            tiers[key] = tier
        self._tiers = tiers

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int,
        softcap: float, sinks: Tensor | None,
    ) -> Tensor:  # fmt: skip
        store(pool_of(module), k, v, self._slots)
        tiers = list(self._tiers.values())
        if len(tiers) == 1:
            return tiers[0].attend(module, q, k, v, scale, window, softcap, sinks)
        output = torch.empty_like(q)
        for tier in tiers:
            rows, keys, values = (tensor[tier.rows] for tensor in (q, k, v))
            output[tier.rows] = tier.attend(
                module, rows, keys, values, scale, window, softcap, sinks
            )
        return output


class _Tier:
    """A workspace of rows [P groups, G places]: prompts [P, L] and answers [P, G, S], dense."""

    def __init__(
        self, pool: KVPool, rows: DecodeRows, numbers: list[int], prompt: int, answer: int
    ) -> None:
        self._size = _group_size([rows.groups[row] for row in numbers])
        groups: dict[tuple[int, int], list[int]] = {}
        counts: dict[int, int] = {}
        for row in numbers:
            count = counts[rows.groups[row]] = counts.get(rows.groups[row], -1) + 1
            groups.setdefault((rows.groups[row], count // self._size), []).append(row)
        self._places = {
            rows.ids[row]: group * self._size + place
            for group, members in enumerate(groups.values())
            for place, row in enumerate(members)
        }
        self._groups = len(groups)
        firsts = [members[0] for members in groups.values()]
        self._shared = torch.tensor([rows.shared[row] for row in firsts])
        self._answer = answer
        width = max(-(-rows.shared[row] // BLOCK_SIZE) for row in firsts)
        table = torch.tensor([_padded(rows.blocks[row], width) for row in firsts])
        self._prompts = {
            module: pool_of(module)[:, table].transpose(2, 3).flatten(3, 4).float()
            for module in pool.modules()
        }  # [2, P, Hkv, L, D]
        self._answers = self._gather_answers(pool, rows, numbers)
        self.rows = torch.empty(0, dtype=torch.long)

    def _gather_answers(
        self, pool: KVPool, rows: DecodeRows, numbers: list[int]
    ) -> dict[nn.Module, Tensor]:
        """Return the answers' keys and values so far, [2, P, Hkv, G, S, D] of each layer."""
        positions = torch.zeros(self._groups * self._size, self._answer, dtype=torch.long)
        blocks = torch.zeros_like(positions)
        for row in numbers:
            place, start = self._places[rows.ids[row]], rows.shared[row]
            span = torch.arange(start, start + self._answer)
            table = torch.tensor(rows.blocks[row])
            positions[place] = span
            blocks[place] = table[(span // BLOCK_SIZE).clamp_(max=len(table) - 1)]
        offsets = positions % BLOCK_SIZE
        answers = {}
        for module in pool.modules():
            layer = pool_of(module)  # [2, blocks, Hkv, BLOCK_SIZE, D]
            found = layer.permute(1, 3, 0, 2, 4)[blocks, offsets]  # [P * G, S, 2, Hkv, D]
            found = found.view(self._groups, self._size, *found.shape[1:]).permute(3, 0, 4, 1, 2, 5)
            answers[module] = found.float().contiguous()
        return answers

    def holds(self, ids: list[int]) -> bool:
        """Say whether all these rows have a place, and not too many places are empty."""
        places = self._groups * self._size
        return all(i in self._places for i in ids) and places <= 2 * _WASTE * len(ids) + 4

    def update(self, rows: DecodeRows, numbers: list[int]) -> None:
        """Prepare the next step, which is about these rows."""
        self.rows = torch.tensor(numbers)
        places = torch.tensor([self._places[rows.ids[row]] for row in numbers])
        self._place = places
        self._is_full = places.tolist() == list(range(self._groups * self._size))
        self._group, self._member = places // self._size, places % self._size
        positions = torch.as_tensor(rows.positions)[self.rows]
        self._offset = positions - self._shared[self._group]
        self._used = int(self._offset.max()) + 1
        grid = torch.zeros(self._groups * self._size, dtype=torch.long)
        grid[places] = positions
        self._positions = grid.view(self._groups, self._size)
        self._masks: dict[int, Tensor] = {}

    def _mask(self, window: int) -> Tensor:
        """Return 0 or -inf for each key that a row sees or not, [P, 1, G, 1, L + S]."""
        if window not in self._masks:
            length = next(iter(self._prompts.values())).shape[3]
            inside = torch.arange(length)
            prompt = inside.expand(self._groups, self._size, length)
            prompt = torch.where(inside < self._shared[:, None, None], prompt, _NEVER)
            answer = torch.arange(self._used) + self._shared[:, None, None]
            keys = torch.cat([prompt, answer.expand(-1, self._size, -1)], -1)
            distance = self._positions[:, :, None] - keys
            hidden = (distance < 0) | ((distance >= window) if window else False)
            hidden[:, :, 0] &= hidden.sum(-1) < hidden.shape[-1]  # an empty place sees something
            mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
            self._masks[window] = mask[:, None, :, None]
        return self._masks[window]

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int,
        softcap: float, sinks: Tensor | None,
    ) -> Tensor:  # fmt: skip
        groups, size, used = self._groups, self._size, self._used
        heads, dim = k.shape[1], k.shape[2]
        prompts, answers = self._prompts[module], self._answers[module]
        places = answers.permute(1, 3, 4, 0, 2, 5)  # [P, G, S, 2, Hkv, D]
        places[self._group, self._member, self._offset] = torch.stack([k, v], 1)
        if not self._is_full:
            q = q.new_zeros(groups * size, *q.shape[1:]).index_copy_(0, self._place, q)
        # [P, Hkv, G, queries of a key head, D]
        q = q.view(groups, size, heads, -1, dim).transpose(1, 2).contiguous()
        repeat, length = q.shape[3], prompts.shape[3]
        keys, values = prompts.view(2, groups * heads, length, dim)
        own_keys, own_values = answers.view(2, groups * heads * size, -1, dim)[:, :, :used]
        scores = q.new_empty(groups, heads, size, repeat, length + used)
        flat = q.view(groups * heads, size * repeat, dim)
        common = torch.bmm(flat, keys.transpose(1, 2)).view(groups, heads, size, repeat, length)
        flat = q.view(groups * heads * size, repeat, dim)
        own = torch.bmm(flat, own_keys.transpose(1, 2)).view(groups, heads, size, repeat, used)
        torch.cat([common, own], -1, out=scores)
        scores.mul_(scale)
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        scores += self._mask(window)
        if sinks is not None:
            column = sinks.float().view(1, heads, 1, repeat, 1).expand(groups, -1, size, -1, 1)
            scores = torch.cat([scores, column], -1)
        weights = torch.softmax(scores, -1)
        common, own = weights[..., :length], weights[..., length : length + used]
        output = torch.bmm(common.reshape(groups * heads, size * repeat, length), values)
        own = torch.bmm(own.reshape(groups * heads * size, repeat, used), own_values)
        output = output.view(groups, heads, size, repeat, dim) + own.view(
            groups, heads, size, repeat, dim
        )
        output = output.transpose(1, 2).reshape(groups * size, heads * repeat, dim)
        return output if self._is_full else output[self._place]


_NEVER = 1 << 40  # a position that no row reaches


def _bucket(length: int) -> int:
    """Return the power of two that a length is rounded up to."""
    return max(_SHORTEST, 1 << (length - 1).bit_length())


def _padded(blocks: list[int], width: int) -> list[int]:
    return [*blocks[:width], *[0] * (width - len(blocks))]


def _group_size(groups: list[int]) -> int:
    """Return how many rows share a prompt's workspace: as many as do not leave much of it empty."""
    sizes = list(Counter(groups).values())
    for size in (max(sizes), 16, 8, 4, 2):
        places = sum(-(-count // size) * size for count in sizes)
        if size <= max(sizes) and places <= _WASTE * len(groups):
            return size
    return 1
