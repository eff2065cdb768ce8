"""Our attention function, plugged into transformers through its attention interface.

A model runs on one flat row of tokens, whatever sequences they belong to. What each token may see
is said by the *view* that is active: :class:`TreeView` for training and prefill,
:class:`DecodeView` for one new token per running sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from .messages import IntArray
from .tree import PrefixTree

NAME = "mint"


class View(Protocol):
    """What the tokens of one forward pass attend to."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None,
               options: dict[str, Any]) -> Tensor: ...  # fmt: skip


_active: View | None = None


@contextmanager
def viewing(view: View) -> Iterator[None]:
    """Make ``view`` the one that every attention layer uses."""
    global _active
    _active = view
    try:
        yield
    finally:
        _active = None


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    assert _active is not None, "a base model must be run through mint.engine.model"
    options = {
        "scale": kwargs.get("scaling"),
        "softcap": kwargs.get("softcap"),
        "sinks": kwargs.get("s_aux"),
    }
    layer: int = module.layer_idx  # type: ignore[assignment]
    output = _active.attend(layer, query, key, value, kwargs.get("sliding_window"), options)
    return output.transpose(1, 2), None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)  # a view makes its own mask


@dataclass(frozen=True)
class Past:
    """What is known of a tree before it is run: the slot that holds each node, or -1 for none."""

    slots: IntArray  # [N]
    layers: dict[int, Tensor]  # layer -> [slots, 2, Hkv, head]

    @property
    def fresh(self) -> IntArray:
        """The nodes that must be run."""
        return np.flatnonzero(self.slots < 0)

    @property
    def known(self) -> IntArray:
        """The other nodes."""
        return np.flatnonzero(self.slots >= 0)

    def rows(self, nodes: IntArray | list[int]) -> IntArray:
        """The rows that fresh nodes have when only these are run."""
        return np.searchsorted(self.fresh, nodes)


class TreeView:
    """Each token sees its ancestors in a prefix tree.

    With a past, only the fresh nodes are run, and the keys and values of all nodes are kept.
    """

    def __init__(self, tree: PrefixTree, device: torch.device, past: Past | None = None) -> None:
        self.kept: dict[int, Tensor] = {}  # layer -> [2, Hkv, N, head]
        self._past = past
        self._chain = tree.is_chain
        self._ends = torch.as_tensor(tree.ends, device=device)
        self._positions = torch.as_tensor(tree.positions, device=device)
        self._nodes = torch.arange(len(tree.tokens), device=device)
        past = past or Past(np.full(len(tree.tokens), -1), {})
        self._fresh, self._known, self._slots = (
            torch.as_tensor(array, device=device)
            for array in (past.fresh, past.known, past.slots[past.known])
        )
        self._masks: dict[int | None, Tensor] = {}

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None,
        options: dict[str, Any],
    ) -> Tensor:  # fmt: skip
        if self._past is not None:
            self.kept[layer] = self._joined(torch.cat([k, v]), self._past.layers.get(layer))
            k, v = self.kept[layer][:1], self.kept[layer][1:]
        groups = q.shape[1] // k.shape[1]
        if groups > 1:
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        is_causal = self._chain and len(self._known) == 0
        if is_causal and (window is None or q.shape[2] <= window):
            return _attend(q, k, v, None, **options)
        return _attend(q, k, v, self._mask(window), **options)

    def _joined(self, fresh: Tensor, pool: Tensor | None) -> Tensor:
        """The keys and values of all nodes, [2, Hkv, N, head], from those of the fresh ones."""
        if pool is None or len(self._known) == 0:
            return fresh
        pair, heads, _, size = fresh.shape
        joined = fresh.new_empty(pair, heads, len(self._nodes), size)
        joined[:, :, self._fresh] = fresh
        joined[:, :, self._known] = pool[self._slots].permute(1, 2, 0, 3)
        return joined

    def _mask(self, window: int | None) -> Tensor:
        if window not in self._masks:
            row, column = self._fresh[:, None], self._nodes[None, :]
            mask = (column <= row) & (row < self._ends[None, :])
            if window is not None:
                mask &= self._positions[row] - self._positions[None, :] < window
            self._masks[window] = mask
        return self._masks[window]


class DecodeView:
    """One new token per row of a key-value cache; each sees its own row up to itself."""

    def __init__(self, layers: dict[int, Tensor], positions: Tensor, length: int) -> None:
        self._layers = layers  # layer -> [2, rows, Hkv, length, head]
        self._positions = positions  # [B]: where each row's new token goes
        self._rows = torch.arange(len(positions), device=positions.device)
        self._length = length  # of the longest row, its new token included
        self._masks: dict[int | None, Tensor] = {}

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None,
        options: dict[str, Any],
    ) -> Tensor:  # fmt: skip
        cache = self._layers[layer]
        batch, kv_heads = len(self._rows), k.shape[1]
        cache[0, self._rows, :, self._positions] = k[0].transpose(0, 1).to(cache.dtype)
        cache[1, self._rows, :, self._positions] = v[0].transpose(0, 1).to(cache.dtype)
        keys, values = cache[:, :batch, :, : self._length].unbind(0)
        # The query heads that share a key head stand as its queries: nothing is repeated.
        rows = q[0].transpose(0, 1).reshape(batch, kv_heads, -1, q.shape[-1])
        if options["sinks"] is not None:
            options = options | {"sinks": options["sinks"].view(1, kv_heads, -1, 1)}
        output = _attend(rows, keys, values, self._mask(window), **options)
        return output.reshape(1, batch, q.shape[1], -1).transpose(1, 2)

    def _mask(self, window: int | None) -> Tensor:
        if window not in self._masks:
            column = torch.arange(self._length, device=self._positions.device)
            distance = self._positions[:, None] - column[None, :]
            mask = distance >= 0
            if window is not None:
                mask &= distance < window
            self._masks[window] = mask[:, None, None, :]
        return self._masks[window]


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None,
    scale: float | None, softcap: float | None, sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    """Attention of q on k and v; ``mask=None`` is causal. Soft caps and sinks are spelled out."""
    if softcap is None and sinks is None:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale
        )
    scores = q @ k.transpose(-1, -2) * (scale if scale is not None else q.shape[-1] ** -0.5)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    scores = scores.float().masked_fill(~mask, float("-inf"))
    if sinks is not None:
        column = sinks.float().view(1, -1, 1, 1) if sinks.dim() == 1 else sinks.float()
        scores = torch.cat([scores, column.expand(*scores.shape[:-1], 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : k.shape[-2]]
    return weights.to(v.dtype) @ v
