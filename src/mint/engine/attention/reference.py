"""Attention in plain torch: what a CPU runs, and what the kernels are tested against."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mint.engine.sampling.kv_pool import BLOCK_SIZE, KVPool, find_pool
from mint.engine.training.tree import PrefixTree

from .layout import DecodeRows

_SEGMENT = 64  # nodes of unrelated trees that are attended to together


class ReferenceTree:
    """Each node of a prefix forest sees its ancestors. Trees do not see each other."""

    def __init__(self, tree: PrefixTree, device: torch.device) -> None:
        self._ends = torch.as_tensor(tree.ends, device=device)
        self._positions = torch.as_tensor(tree.positions, device=device)
        self._segments = segments(tree)
        self._masks: dict[tuple[int, int], Tensor | None] = {}

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int,
        softcap: float, sinks: Tensor | None,
    ) -> Tensor:  # fmt: skip
        outputs = []
        for segment in self._segments:
            mask = self._mask(segment, window)
            rows, keys, values = (tensor[segment].transpose(0, 1) for tensor in (q, k, v))
            output = attend(rows, keys, values, mask, scale, softcap, sinks)
            outputs.append(output.transpose(0, 1))
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    def _mask(self, segment: slice, window: int) -> Tensor | None:
        """Return who sees whom in a segment, or None where that is plain causal attention."""
        key = (segment.start, window)
        if key not in self._masks:
            nodes = torch.arange(segment.start, segment.stop, device=self._ends.device)
            mask = nodes[None, :] <= nodes[:, None]
            mask &= nodes[:, None] < self._ends[segment][None, :]
            if window:
                positions = self._positions[segment]
                mask &= positions[:, None] - positions[None, :] < window
            is_causal = bool(mask.sum() == len(nodes) * (len(nodes) + 1) // 2)
            self._masks[key] = None if is_causal else mask
        return self._masks[key]


def segments(tree: PrefixTree) -> list[slice]:
    """Cut a forest between its trees, into pieces that are not too small to be worth a call."""
    roots = np.flatnonzero(tree.positions == 0).tolist()
    cuts = [0]
    for root in roots[1:]:
        if root - cuts[-1] >= _SEGMENT:
            cuts.append(root)
    return [slice(a, b) for a, b in zip(cuts, [*cuts[1:], len(tree.tokens)], strict=True)]


class ReferenceDecode:
    """One new token per sequence, which sees its own blocks: gathered again for every layer."""

    def __init__(self, pool: KVPool, rows: DecodeRows) -> None:
        positions = torch.as_tensor(rows.positions, device=pool.device)
        width = max(len(blocks) for blocks in rows.blocks)
        table = [[*blocks, *[0] * (width - len(blocks))] for blocks in rows.blocks]
        self._table = torch.tensor(table, device=pool.device)
        self._positions = positions
        current = self._table.gather(1, (positions // BLOCK_SIZE)[:, None]).squeeze(1)
        self._slots = current * BLOCK_SIZE + positions % BLOCK_SIZE

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int,
        softcap: float, sinks: Tensor | None,
    ) -> Tensor:  # fmt: skip
        pool = find_pool(module)
        store(pool, k, v, self._slots)
        keys, values = (part[self._table].transpose(1, 2).flatten(2, 3) for part in pool)
        distance = self._positions[:, None] - torch.arange(keys.shape[2], device=q.device)
        mask = distance >= 0
        if window:
            mask &= distance < window
        output = attend(q[:, :, None], keys, values, mask[:, None, None], scale, softcap, sinks)
        return output[:, :, 0]


def store(pool: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Write keys and values [N, Hkv, D] into their slots."""
    pairs = torch.stack([k, v], 1).to(pool.dtype)  # [N, 2, Hkv, D]
    pool.permute(1, 3, 0, 2, 4)[slots // BLOCK_SIZE, slots % BLOCK_SIZE] = pairs


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, softcap: float,
    sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    """Attend with q [..., H, Q, D] to k and v [..., Hkv, K, D]; ``mask=None`` is causal."""
    k, v = k.to(q.dtype), v.to(q.dtype)
    groups = q.shape[-3] // k.shape[-3]
    if groups > 1:
        k, v = (t.repeat_interleave(groups, dim=-3) for t in (k, v))
    if not softcap and sinks is None:
        rows, keys, values = (t if t.dim() == 4 else t[None] for t in (q, k, v))
        return F.scaled_dot_product_attention(
            rows, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale
        ).view_as(q)
    scores = q @ k.transpose(-1, -2) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        column = sinks.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, column], dim=-1)
    return torch.softmax(scores, dim=-1)[..., : k.shape[-2]] @ v
