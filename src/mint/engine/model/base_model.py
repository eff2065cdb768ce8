"""A base model: frozen transformers weights, loaded once, shared by training and sampling."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils.quantization_config import Mxfp4Config

from mint.engine import attention
from mint.engine.adapters.lora import AdapterBank, find_sites
from mint.engine.attention.reference import attend
from mint.engine.messages import IntArray, ModelInfo, UserError
from mint.engine.model.context import Attention, Lora, NoLora, Scores, running
from mint.engine.model.experts import Product, replace_experts
from mint.engine.model.head import Head
from mint.engine.model.layers import wrap_layers
from mint.engine.model.linear import FrozenLinear, Site, replace_layers
from mint.engine.model.precision import Precision, choose, f32
from mint.engine.model.training_kernels import fuse

_LAYERS_WE_RUN = {"full_attention", "sliding_attention"}
_LARGEST_HALF = 16384.0  # a quarter of float16's range: other prompts may have larger activations
_PROBE_TOKENS = 64


@dataclass(frozen=True)
class BaseModel:
    """A loaded model for training and sampling: hidden states, a head, and places for LoRA."""

    name: str
    trunk: nn.Module
    head: Head
    products: dict[str, Product]  # every frozen product, the head's too
    bank: AdapterBank  # the adapters in sampling
    sites: list[Site]
    kv_shapes: dict[nn.Module, tuple[int, int]]  # by attention module: key heads, head size
    tokenizer: Any
    info: ModelInfo
    device: torch.device
    precision: Precision
    experts_per_token: int

    @classmethod
    def load(
        cls, name: str, folder: str | Path, device: str | None = None, precision: str = "auto"
    ) -> Self:
        """Load a folder in transformers' format, on a GPU where there is one."""
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        chosen = choose(precision, place)
        model = cls._build(name, folder, place, chosen)
        shapes, largest = _probe(model)
        if chosen.name == "half" and place.type == "cuda" and not largest < _LARGEST_HALF:
            reason = f"its activations reach {largest:.3g}, too near the end of float16's range"
            model = cls._build(
                name, folder, place, replace(choose("bfloat16", place), reason=reason)
            )
            shapes, _ = _probe(model)
        return replace(model, kv_shapes=shapes)

    @classmethod
    def _build(
        cls, name: str, folder: str | Path, device: torch.device, precision: Precision
    ) -> Self:
        try:
            model = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=f32 if device.type == "cpu" else "auto",
                attn_implementation=attention.NAME,
                quantization_config=dequantization(folder),
            )
        except KeyError as error:  # a model that looks up attention in a list of its own
            if error.args != (attention.NAME,):
                raise
            kind = AutoConfig.from_pretrained(folder).model_type
            raise _refusal(name, kind, "a custom attention") from error
        _check_architecture(model, name)
        model.to(device)  # type: ignore[arg-type]
        model.train(False).requires_grad_(False)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        head_name = find_head_name(model)
        sites = find_sites(model, head_name)
        head = _head(model, head_name, sites, precision)
        embedding: nn.Embedding = model.get_input_embeddings()  # type: ignore[assignment]
        if device.type == "cuda":
            _keep_activations_in_float32(model, sites, embedding, head)
        trunk = getattr(model, model.base_model_prefix)
        linear = [s for s in sites if s.kind != "unembed" and not s.experts]
        products: dict[str, Product] = {
            **replace_layers(model, linear, precision),
            **replace_experts(model, [s for s in sites if s.experts], precision),
        }
        if device.type == "cpu":
            fuse(trunk, precision)
        wrap_layers(trunk, compiled=device.type == "cuda")
        products[head_name] = head.linear
        return cls(
            name=name,
            trunk=trunk,
            head=head,
            products=products,
            bank=AdapterBank(products),
            sites=sites,
            kv_shapes={},
            tokenizer=tokenizer,
            info=_describe(model, tokenizer),
            device=device,
            precision=precision,
            experts_per_token=int(getattr(model.config, "num_experts_per_tok", None) or 1),
        )

    @property
    def has_experts(self) -> bool:
        """Whether some layers choose among experts, row by row."""
        return any(product.weight.dim() == 3 for product in self.products.values())

    def hidden(
        self,
        tokens: IntArray | Tensor,
        positions: IntArray | Tensor,
        view: Attention,
        lora: Lora,
        recompute: bool = False,
    ) -> Tensor:
        """Return the last hidden states [N, H] of a flat row of tokens.

        With ``recompute``, the backward pass recomputes each layer's activations.
        """
        with running(view, lora, recompute):
            output = self.trunk(
                input_ids=self.tensor(tokens)[None],
                position_ids=self.tensor(positions)[None],
                use_cache=False,
            )
        return output.last_hidden_state[0].float()  # type: ignore[no-any-return]

    def tensor(self, array: Any) -> Tensor:
        """Copy an array to this model's device."""
        return torch.as_tensor(array, device=self.device)


class _Probe:
    """Attention of one pass that notes the shape of keys and the largest number it meets."""

    def __init__(self, model: BaseModel) -> None:
        self.shapes: dict[nn.Module, tuple[int, int]] = {}
        self.largest = torch.zeros((), device=model.device)
        self._model = model

    def note(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            self.largest = torch.maximum(self.largest, tensor.detach().float().abs().max())

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, how: Scores) -> Tensor:
        name, arch = self._model.name, self._model.info.arch
        if k.shape != v.shape:
            raise _refusal(name, arch, "keys and values of different sizes")
        if module in self.shapes:  # its second keys would overwrite the first ones in the pool
            raise _refusal(name, arch, "layers that attend twice")
        self.shapes[module] = (k.shape[1], k.shape[2])
        self.note(q, k, v)
        q, k, v = (tensor.transpose(0, 1) for tensor in (q, k, v))
        return attend(q, k, v, None, how).transpose(0, 1)


@torch.inference_mode()
def _probe(model: BaseModel) -> tuple[dict[nn.Module, tuple[int, int]], float]:
    """Run some tokens, to learn the shapes of keys and the largest number that enters a product."""
    probe = _Probe(model)
    hooks = [
        product.register_forward_pre_hook(lambda _, inputs: probe.note(inputs[0]))
        for product in model.products.values()
    ]
    count = min(_PROBE_TOKENS, model.info.context_length)
    ids = torch.arange(count) * 7919 % model.info.vocab_size
    with torch.compiler.set_stance("force_eager"):  # the hooks would be compiled, layer by layer
        try:
            probe.note(model.hidden(ids, torch.arange(count), probe, NoLora()))
        except attention.OwnMask:
            raise _refusal(model.name, model.info.arch, "masks of its own") from None
    for hook in hooks:
        hook.remove()
    return probe.shapes, float(probe.largest)


def _check_architecture(model: PreTrainedModel, name: str) -> None:
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    strange = sorted(kinds - _LAYERS_WE_RUN) or (["recurrent"] if model._is_stateful else [])
    what = f"{', '.join(strange)} layers" if strange else "a custom attention"
    if model._supports_attention_backend and not strange:
        known = (f"{model.base_model_prefix}.", f"{find_head_name(model)}.")
        if all(parameter.startswith(known) for parameter, _ in model.named_parameters()):
            return
        what = "layers between the decoder and its output layer"
    raise _refusal(name, type(model).__name__, what)


def _refusal(name: str, arch: str, what: str) -> UserError:
    return UserError(
        f"{name} ({arch}) has {what}, which this engine cannot run yet. "
        "Use a decoder whose layers are full or sliding-window attention, such as "
        "Qwen/Qwen3-0.6B or HuggingFaceTB/SmolLM2-135M-Instruct."
    )


def dequantization(folder: str | Path) -> Mxfp4Config | None:
    """Return how to load 4-bit experts, such as gpt-oss has: as ordinary weights."""
    stored = getattr(AutoConfig.from_pretrained(folder), "quantization_config", None) or {}
    return Mxfp4Config(dequantize=True) if stored.get("quant_method") == "mxfp4" else None


def forget_quantization(model: PreTrainedModel) -> None:
    """Describe the weights as the plain numbers that they are after loading."""
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.__dict__["hf_quantizer"] = None


def find_head_name(model: PreTrainedModel) -> str:
    """Return the name of the output layer."""
    module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    names: list[str] = [name for name, other in model.named_modules() if other is module]
    return names[0]


def _head(model: PreTrainedModel, name: str, sites: list[Site], precision: Precision) -> Head:
    """Wrap the unembedding. On a CPU it stays float32: its output cannot be rounded to 16 bits."""
    config = model.config
    if precision.weights == torch.bfloat16 and model.device.type == "cpu":
        precision = replace(precision, weights=f32)
    # Architectures scale their logits under different names: Cohere multiplies, Granite divides.
    multiplier = float(getattr(config, "logit_scale", None) or 1.0)
    divisor = float(getattr(config, "logits_scaling", None) or 1.0)
    softcap = getattr(config, "final_logit_softcapping", None)
    [site] = [site for site in sites if site.name == name]
    linear = FrozenLinear([site], [model.get_submodule(name)], precision)
    return Head(linear, softcap, multiplier / divisor)


def _keep_activations_in_float32(
    model: nn.Module, sites: list[Site], embedding: nn.Embedding, head: Head
) -> None:
    """Make everything but frozen products and the embedding compute in float32."""
    names = [site.name if site.experts else f"{site.name}.weight" for site in sites]
    frozen = {id(model.get_parameter(name)) for name in names}
    tied = id(embedding.weight) in frozen
    for parameter in model.parameters():
        if id(parameter) not in frozen and parameter is not embedding.weight:
            parameter.data = parameter.data.float()
    if tied:
        embedding.weight.data = head.linear.weight
    scale = float(getattr(embedding, "embed_scale", 1.0))  # Gemma's, which rounds its product

    def embed(input: Tensor) -> Tensor:
        rows = nn.functional.embedding(input, embedding.weight).float()
        return rows if scale == 1 else rows * scale

    embedding.forward = embed  # type: ignore[method-assign]


def _describe(model: PreTrainedModel, tokenizer: Any) -> ModelInfo:
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
    """Return how long a sequence may be.

    Beyond its original length, longrope turns every token of a batch by another angle, those of
    short sequences and those that are in the pool too.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    parts = [rope, *(part for part in rope.values() if isinstance(part, dict))]  # or by layer type
    original = "original_max_position_embeddings"
    limits = [int(part[original]) for part in parts if part.get("rope_type") == "longrope"]
    return min([int(getattr(config, "max_position_embeddings", 2048)), *limits])
