"""Decoder layers as a few kernels, on a CPU: sampling dispatches some hundred calls a token fewer.

Architectures whose layers are those of Llama, with or without biases, norms of queries and keys,
and windows, are computed here when a pass samples. Training and other architectures run the modules
of transformers, with the same products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mint.engine import native
from mint.engine.attention.paged import PagedAttention
from mint.engine.model.context import active, by_slot
from mint.engine.model.linear import FrozenLinear
from mint.engine.native.layers import AttentionLayer, gate, norm
from mint.engine.sampling.kv_pool import find_pool

_ARCHITECTURES = ("Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3")


class SampledLayer:
    """One decoder layer."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._attention: nn.Module = attention
        self._norms = [
            (part.weight, part.variance_epsilon)
            for part in (layer.input_layernorm, layer.post_attention_layernorm)
        ]
        self._qkv, self._out = attention.q_proj, attention.o_proj
        self._gate_up, self._down = mlp.gate_proj, mlp.down_proj
        self._heads = self._qkv.sizes[0] // attention.head_dim
        is_mistral = type(layer).__name__.startswith("Mistral")
        source = attention.config if is_mistral else attention
        self._window = getattr(source, "sliding_window", None) or 0
        self._is_turned = bool(getattr(attention, "use_rope", True))
        self._head_norms: tuple[Tensor, Tensor] | None = None
        self._epsilon = 0.0
        if hasattr(attention, "q_norm"):
            self._head_norms = attention.q_norm.weight, attention.k_norm.weight
            self._epsilon = attention.q_norm.variance_epsilon
        self._pool: Tensor | None = None
        self._view: AttentionLayer

    @classmethod
    def of(cls, layer: nn.Module) -> SampledLayer | None:
        """Return a layer's kernels, if it can be computed by them."""
        if type(layer).__name__ not in [f"{name}DecoderLayer" for name in _ARCHITECTURES]:
            return None
        parts = [layer.self_attn.q_proj, layer.self_attn.o_proj]  # type: ignore[union-attr]
        parts += [layer.mlp.gate_proj, layer.mlp.down_proj]  # type: ignore[union-attr]
        sites = [len(part.sizes) if _has_kernels(part) else 0 for part in parts]  # type: ignore[union-attr,arg-type]
        is_silu = type(layer.mlp.act_fn).__name__ in ("SiLU", "SiLUActivation")  # type: ignore[union-attr]
        return cls(layer) if sites == [3, 1, 2, 1] and is_silu else None

    def wrap(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that samples by kernels, and otherwise calls the module's own."""

        def run(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            view = active().attention
            if not isinstance(view, PagedAttention) or torch.is_grad_enabled():
                return forward(hidden_states, *args, **kwargs)
            return self._sample(hidden_states[0], view, kwargs["position_embeddings"])[None]

        return run

    def _sample(self, x: Tensor, view: PagedAttention, angles: tuple[Tensor, Tensor]) -> Tensor:
        """Run the layer; the rows [N, H] become its output."""
        rows = by_slot(active().lora)
        pool = find_pool(self._attention)
        if pool is not self._pool:
            scale = float(self._attention.scaling)  # type: ignore[arg-type]
            self._pool = pool
            self._view = AttentionLayer(pool, self._heads, scale, self._window)
        turned = (angles[0][0], angles[1][0]) if self._is_turned else None
        qkv = _multiply(self._qkv, norm(x, *self._norms[0]), rows)
        self._view.store(qkv, view.layout.slots, self._head_norms, self._epsilon, turned)
        _multiply(self._out, self._view.attend(qkv, view.struct), rows, x)
        both = _multiply(self._gate_up, norm(x, *self._norms[1]), rows)
        return _multiply(self._down, gate(both), rows, x)


def _multiply(
    layer: FrozenLinear, x: Tensor, rows: native.RowsBySlot, onto: Tensor | None = None
) -> Tensor:
    assert isinstance(layer.packed, native.Packed)
    return layer.packed.multiply(x, rows, layer.bias, onto)


def _has_kernels(layer: nn.Module) -> bool:
    return isinstance(layer, FrozenLinear) and isinstance(layer.packed, native.Packed)
