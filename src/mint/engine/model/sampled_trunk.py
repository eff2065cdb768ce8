"""The decoder layers of a model as one call, on a CPU: Python dispatches nothing in between.

Architectures whose layers are those of Llama, with or without biases, norms of queries and keys,
and windows, are computed here when a pass samples. Training and other architectures run the modules
of transformers, with the same products.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from mint.engine.attention.paged import PagedAttention
from mint.engine.model.context import active, by_slot
from mint.engine.model.linear import FrozenLinear
from mint.engine.native.layers import AttentionLayer, DecoderLayer, DecoderLayers, norm
from mint.engine.sampling.kv_pool import find_pool

_ARCHITECTURES = ("Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3")


class SampledTrunk:
    """A model from its tokens to the last hidden states."""

    def __init__(self, trunk: nn.Module) -> None:
        self._trunk: Any = trunk
        self._pool: Tensor | None = None  # the pool of the first layer
        self._layers: DecoderLayers

    @staticmethod
    def is_possible(trunk: nn.Module) -> bool:
        """Return whether the kernels can compute a model."""
        is_known = type(trunk).__name__ in [f"{name}Model" for name in _ARCHITECTURES]
        return is_known and all(map(_is_plain, trunk.layers))  # type: ignore[arg-type]

    def wrap(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that samples by kernels, and otherwise calls the module's own."""

        def run(input_ids: Tensor, position_ids: Tensor, **kwargs: Any) -> Any:
            view = active().attention
            if not isinstance(view, PagedAttention) or torch.is_grad_enabled():
                return forward(input_ids=input_ids, position_ids=position_ids, **kwargs)
            return BaseModelOutput(self._sample(input_ids, position_ids, view))  # type: ignore[arg-type]

        return run

    def _sample(self, tokens: Tensor, positions: Tensor, view: PagedAttention) -> Tensor:
        """Return the hidden states [1, N, H] of tokens [1, N]."""
        trunk = self._trunk
        pool = find_pool(trunk.layers[0].self_attn)
        if pool is not self._pool:
            self._layers = DecoderLayers([_decoder_layer(layer) for layer in trunk.layers])
            self._pool = pool
        x = trunk.embed_tokens(tokens)
        cosine, sine = trunk.rotary_emb(x, positions)
        self._layers.run(x[0], by_slot(active().lora), view.layout, (cosine[0], sine[0]))
        return norm(x, trunk.norm.weight, trunk.norm.variance_epsilon)


def _is_plain(layer: Any) -> bool:
    """Return whether the kernels can compute a decoder layer."""
    sites = [
        len(p.sizes) if isinstance(p, FrozenLinear) and p.packed is not None else 0
        for p in _products(layer)
    ]
    return sites == [3, 1, 2, 1] and type(layer.mlp.act_fn).__name__ in ("SiLU", "SiLUActivation")


def _products(layer: Any) -> tuple[Any, ...]:
    attention, mlp = layer.self_attn, layer.mlp
    return attention.q_proj, attention.o_proj, mlp.gate_proj, mlp.down_proj


def _decoder_layer(layer: Any) -> DecoderLayer:
    attention, products = layer.self_attn, _products(layer)
    heads = attention.q_proj.sizes[0] // attention.head_dim
    is_mistral = type(layer).__name__.startswith("Mistral")
    source = attention.config if is_mistral else attention
    window = getattr(source, "sliding_window", None) or 0
    head_norms = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    norms = (layer.input_layernorm, layer.post_attention_layernorm, *head_norms)
    return DecoderLayer(
        norms=tuple(None if part is None else part.weight for part in norms),  # type: ignore[arg-type]
        epsilon=layer.input_layernorm.variance_epsilon,
        products=tuple(product.packed for product in products),
        biases=tuple(product.bias for product in products),
        attention=AttentionLayer(find_pool(attention), heads, float(attention.scaling), window),
        is_turned=bool(getattr(attention, "use_rope", True)),
    )
