"""Decoding on a CPU: the answers of a group attend to their common prompt in one product.

The pool's blocks are scattered, and a CPU multiplies contiguous matrices. So the keys and values of
running rows are kept a second time in a dense workspace: those of a prompt's whole blocks of keys
once per group, the rest of it and the answer once per row. Rows of similar length share a
workspace, a *tier*, so that padding stays small. A tier is gathered from the pool when its rows
change; each step appends to it. The sums are those of :mod:`.blocked`, bit for bit.
"""

from collections import Counter

import torch
from torch import Tensor, nn

from mint.engine.model.precision import fill_up
from mint.engine.sampling.kv_pool import BLOCK_SIZE, KVPool, find_pool

from .blocked import WIDTH, padded, weigh
from .layout import DecodeRows
from .reference import store

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
            start = _shared(rows, row)
            key = (_bucket(start), _bucket(position + 1 - start))
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
        store(find_pool(module), k, v, self._slots)
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
        self._size = _group_size([rows.groups[row] for row in numbers]) if prompt else 1
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
        shared = [_shared(rows, row) for row in firsts]
        self._shared = torch.tensor(shared)
        self._answer = answer
        width = max(shared) // BLOCK_SIZE
        blocks = [rows.blocks[row][: _shared(rows, row) // BLOCK_SIZE] for row in firsts]
        table = torch.tensor([ids + [0] * (width - len(ids)) for ids in blocks], dtype=torch.long)
        self._prompts = {
            module: find_pool(module)[:, table].transpose(2, 3).flatten(3, 4).float()
            for module in pool.modules()
        }  # [2, P, Hkv, L, D]
        self._answers = self._gather_answers(pool, rows, numbers)
        self.rows = torch.empty(0, dtype=torch.long)

    def _gather_answers(
        self, pool: KVPool, rows: DecodeRows, numbers: list[int]
    ) -> dict[nn.Module, Tensor]:
        """Return the rows' own keys and values so far, [2, P, Hkv, G, S, D] of each layer."""
        positions = torch.zeros(self._groups * self._size, self._answer, dtype=torch.long)
        blocks = torch.zeros_like(positions)
        is_known = torch.zeros_like(positions, dtype=torch.bool)
        for row in numbers:
            place, start = self._places[rows.ids[row]], _shared(rows, row)
            span = torch.arange(start, start + self._answer)
            table = torch.tensor(rows.blocks[row])
            positions[place] = span
            blocks[place] = table[(span // BLOCK_SIZE).clamp_(max=len(table) - 1)]
            is_known[place] = span < int(rows.positions[row])
        offsets = positions % BLOCK_SIZE
        answers = {}
        for module in pool.modules():
            layer = find_pool(module)  # [2, blocks, Hkv, BLOCK_SIZE, D]
            found = layer.permute(1, 3, 0, 2, 4)[blocks, offsets]  # [P * G, S, 2, Hkv, D]
            found[~is_known] = 0.0  # whatever was there must not be multiplied by 0
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
        self._used = padded(int(self._offset.max()) + 1)
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
        q = q.view(groups, size, heads, -1, dim).transpose(1, 2)
        repeat, length = q.shape[3], prompts.shape[3]
        keys, values = prompts.view(2, groups * heads, length, dim)
        own_keys, own_values = answers.view(2, groups * heads * size, -1, dim)[:, :, :used]
        places_q = fill_up(q).reshape(groups * heads * size, -1, dim)
        scores = q.new_zeros(groups, heads, size, places_q.shape[1], length + used)
        if length:
            rows = fill_up(q.reshape(groups * heads, size * repeat, dim))
            common = torch.bmm(rows, keys.transpose(1, 2))[:, : size * repeat]
            scores[..., :repeat, :length] = common.view(groups, heads, size, repeat, length)
        own = torch.bmm(places_q, own_keys.transpose(1, 2))
        scores[..., length:] = own.view(groups, heads, size, -1, used)
        scores.mul_(scale)
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        scores += self._mask(window)
        if sinks is not None:
            column = scores.new_zeros(*scores.shape[:-1], 1)
            column[..., :repeat, 0] = sinks.float().view(heads, 1, repeat)
            scores = torch.cat([scores, column], -1)
        weights = torch.softmax(scores, -1)
        before = None
        if length:
            common = weights[..., :repeat, :length].reshape(groups * heads, size * repeat, length)
            summed = weigh(fill_up(common), values)[:, : size * repeat]
            before = fill_up(summed.reshape(groups * heads * size, repeat, dim))
        own = weights[..., length : length + used].reshape(groups * heads * size, -1, used)
        output = weigh(own, own_values, before)[:, :repeat].view(groups, heads, size, repeat, dim)
        output = output.transpose(1, 2).reshape(groups * size, heads * repeat, dim)
        return output if self._is_full else output[self._place]


_NEVER = 1 << 40  # a position that no row reaches


def _shared(rows: DecodeRows, row: int) -> int:
    """Return how many tokens at the begin of a row its group keeps once: whole blocks of keys."""
    return rows.shared[row] // WIDTH * WIDTH


def _bucket(length: int) -> int:
    """Return the power of two that a length is rounded up to; 0 stays 0."""
    return max(WIDTH, 1 << (length - 1).bit_length()) if length else 0


def _group_size(groups: list[int]) -> int:
    """Return how many rows share a prompt's workspace: as many as do not leave much of it empty."""
    sizes = list(Counter(groups).values())
    for size in (max(sizes), 16, 8, 4, 2):
        places = sum(-(-count // size) * size for count in sizes)
        if size <= max(sizes) and places <= _WASTE * len(groups):
            return size
    return 1
