"""A base model: frozen transformers weights, loaded once, shared by training and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from . import attention
from .attention import View, viewing
from .head import Head
from .lora import Route, Site, find_sites, routing, wrap_sites
from .messages import IntArray, ModelInfo, UserError
from .precision import keep_activations_in_float32

_LAYERS_WE_RUN = {"full_attention", "sliding_attention"}


@dataclass(frozen=True)
class BaseModel:
    """What training and sampling need of a model: hidden states, a head, and where LoRA goes."""

    name: str
    trunk: nn.Module
    head: Head
    sites: list[Site]
    tokenizer: Any
    info: ModelInfo
    device: torch.device
    cache_bytes_per_token: int

    @classmethod
    def load(
        cls,
        name: str,
        folder: str | Path,
        device: str | None = None,
        dtype: torch.dtype | None = None,
    ) -> BaseModel:
        """Load a folder in transformers' format, on a GPU where there is one.

        The weights are bfloat16 on a GPU and float32 on a CPU, unless said otherwise.
        """
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        dtype = dtype or (torch.bfloat16 if place.type == "cuda" else torch.float32)
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation=attention.NAME
        )
        _check_architecture(model, name)
        model.to(place)  # type: ignore[arg-type]
        model.train(False).requires_grad_(False)
        if dtype != torch.float32:
            keep_activations_in_float32(model, model.get_input_embeddings())
        tokenizer = AutoTokenizer.from_pretrained(folder)
        head = _head_of(model)
        sites = find_sites(model, head.name)
        wrap_sites(model, sites)
        return cls(
            name=name,
            trunk=getattr(model, model.base_model_prefix),
            head=head,
            sites=sites,
            tokenizer=tokenizer,
            info=_info_of(model, tokenizer),
            device=place,
            cache_bytes_per_token=_cache_bytes_per_token(model),
        )

    def hidden(
        self, tokens: IntArray, positions: IntArray, view: View, routes: Sequence[Route]
    ) -> Tensor:
        """The last hidden states [N, H] of a flat row of tokens."""
        with viewing(view), routing(routes):
            output = self.trunk(
                input_ids=self.tensor(tokens)[None],
                position_ids=self.tensor(positions)[None],
                use_cache=False,
            )
        return output.last_hidden_state[0]  # type: ignore[no-any-return]

    def tensor(self, array: Any) -> Tensor:
        """An array on this model's device."""
        return torch.as_tensor(array, device=self.device)


def _check_architecture(model: PreTrainedModel, name: str) -> None:
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    strange = sorted(kinds - _LAYERS_WE_RUN)
    if strange or not model._supports_attention_backend:
        what = f"{', '.join(strange)} layers" if strange else "attention of its own making"
        raise UserError(
            f"{name} ({type(model).__name__}) has {what}, which this engine cannot run yet. "
            "Use a decoder whose layers are full or sliding-window attention, such as "
            "Qwen/Qwen3-0.6B or HuggingFaceTB/SmolLM2-135M-Instruct."
        )


def _head_of(model: PreTrainedModel) -> Head:
    module: nn.Linear = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    [name] = [name for name, other in model.named_modules() if other is module]
    config = model.config
    # Architectures scale their logits under different names: Cohere multiplies, Granite divides.
    multiplier = float(getattr(config, "logit_scale", None) or 1.0)
    divisor = float(getattr(config, "logits_scaling", None) or 1.0)
    softcap = getattr(config, "final_logit_softcapping", None)
    return Head(name, module, softcap, multiplier / divisor)


def _info_of(model: PreTrainedModel, tokenizer: Any) -> ModelInfo:
    config = model.config
    sources = (model.generation_config, config, tokenizer)
    ends: set[int] = set()
    for source in sources:
        found = getattr(source, "eos_token_id", None)
        ends.update([found] if isinstance(found, int) else found or [])
    return ModelInfo(
        arch=type(model).__name__,
        vocab_size=config.vocab_size,
        context_length=_context_length(config),
        eos_token_ids=tuple(sorted(ends)),
    )


def _context_length(config: Any) -> int:
    """How long a sequence may be. Beyond its original length, longrope turns every token of a batch
    by another angle, those of short sequences and those that are in a cache too."""
    rope = getattr(config, "rope_parameters", None) or {}
    parts = [rope, *(part for part in rope.values() if isinstance(part, dict))]  # or by layer type
    original = "original_max_position_embeddings"
    limits = [int(part[original]) for part in parts if part.get("rope_type") == "longrope"]
    return min([int(getattr(config, "max_position_embeddings", 2048)), *limits])


def _cache_bytes_per_token(model: PreTrainedModel) -> int:
    """Bytes that the keys and values of one token take, over all layers."""
    config = model.config
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * config.num_hidden_layers * kv_heads * head_size * torch.float32.itemsize)
