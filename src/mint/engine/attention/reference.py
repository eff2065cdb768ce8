"""Attention in plain torch: what a CPU runs, and what the kernels are tested against."""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mint.engine.messages import IntArray
from mint.engine.model.context import Scores
from mint.engine.sampling.kv_pool import BLOCK_SIZE
from mint.engine.training.tree import PrefixTree

_SHORTEST, _LONGEST = 64, 512  # nodes of a piece


class ReferenceTree:
    """Each node of a prefix forest sees its ancestors.

    The forest is cut into pieces of neighbouring nodes. Outside its piece, a node sees nothing but
    the ancestors of the piece's first node: the keys of other branches are left out.
    """

    def __init__(self, tree: PrefixTree) -> None:
        pieces = cut(tree)
        keys = [visible(tree, start, stop) for start, stop in pieces]
        self._sizes = [stop - start for start, stop in pieces]
        self._counts = [len(part) for part in keys]
        self._keys = torch.as_tensor(np.concatenate(keys))
        self._ends = torch.as_tensor(tree.ends)
        self._positions = torch.as_tensor(tree.positions)
        self._masks: dict[int, list[Tensor]] = {}

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, how: Scores) -> Tensor:
        count, heads, dim = k.shape
        if how.sinks is not None:
            how = how._replace(sinks=how.sinks.view(heads, -1))
        queries = q.view(count, heads, -1, dim)  # those of a key head together
        outputs = []
        for rows, keys, values, mask in zip(
            torch.split(queries, self._sizes),
            *(torch.split(part.index_select(0, self._keys), self._counts) for part in (k, v)),
            self._piece_masks(how.window),
            strict=True,
        ):
            rows, keys, values = rows.permute(1, 2, 0, 3), keys[:, :, None], values[:, :, None]
            keys, values = (part.permute(1, 2, 0, 3) for part in (keys, values))
            output = attend(rows, keys, values, mask, how)
            outputs.append(output.permute(2, 0, 1, 3).flatten(1, 2))
        return torch.cat(outputs)

    def _piece_masks(self, window: int) -> list[Tensor]:
        """Return which of its keys each node of a piece sees, piece by piece."""
        if window not in self._masks:
            everything = torch.arange(len(self._ends))[:, None]
            masks = []
            for nodes, keys in zip(
                torch.split(everything, self._sizes),
                torch.split(self._keys, self._counts),
                strict=True,
            ):
                mask = (keys <= nodes) & (nodes < self._ends[keys])
                if window:
                    mask &= self._positions[nodes] - self._positions[keys] < window
                masks.append(mask)
            self._masks[window] = masks
        return self._masks[window]


def cut(
    tree: PrefixTree, shortest: int = _SHORTEST, longest: int = _LONGEST
) -> list[tuple[int, int]]:
    """Cut a forest into pieces where branches begin, so that pieces and what they see are small."""
    positions, count = tree.positions, len(tree.positions)
    starts = [0]
    while (start := starts[-1]) + shortest < count:
        stop = min(start + longest, count)
        places = np.arange(start + shortest, stop)
        begins = places[positions[places] <= positions[places - 1]]
        if len(begins):
            stop = int(begins[(positions[begins] + begins).argmin()])
        starts.append(stop)
    return list(pairwise([*starts, count] if starts[-1] < count else starts))


def visible(tree: PrefixTree, start: int, stop: int) -> IntArray:
    """Return the nodes of a piece and, before them, the ancestors of its first one."""
    ancestors = np.flatnonzero(tree.ends[:start] > start)
    return np.concatenate([ancestors, np.arange(start, stop)])


def store(pool: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Write keys and values [N, Hkv, D] into their slots."""
    pairs = torch.stack([k, v], 1).to(pool.dtype)  # [N, 2, Hkv, D]
    pool.permute(1, 3, 0, 2, 4)[slots // BLOCK_SIZE, slots % BLOCK_SIZE] = pairs


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, how: Scores) -> Tensor:
    """Attend with q [..., H, Q, D] to k and v [..., Hkv, K, D]; ``mask=None`` is causal."""
    k, v = k.to(q.dtype), v.to(q.dtype)
    groups = q.shape[-3] // k.shape[-3]
    if groups > 1:
        if k.shape[-3] == 1:
            k, v = (t.expand(*t.shape[:-3], groups, *t.shape[-2:]) for t in (k, v))
        else:
            k, v = (t.repeat_interleave(groups, dim=-3) for t in (k, v))
    if not how.softcap and how.sinks is None:
        rows, keys, values = (t if t.dim() == 4 else t[None] for t in (q, k, v))
        return F.scaled_dot_product_attention(
            rows, keys, values, attn_mask=mask, is_causal=mask is None, scale=how.scale
        ).view_as(q)
    scores = q @ k.transpose(-1, -2) * how.scale
    if how.softcap:
        scores = how.softcap * torch.tanh(scores / how.softcap)
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    scores = scores.masked_fill(~mask, float("-inf"))
    if how.sinks is not None:
        column = how.sinks.to(scores.dtype)[..., None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, column], dim=-1)
    return torch.softmax(scores, dim=-1)[..., : k.shape[-2]] @ v
