"""Merge an adapter into its base model, and compare the logprobs of an export with the adapter's.

The base model is loaded once, in the format of its files, and changed in place, a layer at a time
and in float32. A merged layer of a tied output layer would change the embedding as well: where an
adapter trains the output layer of such a model, the two are made separate first.
"""

import gc
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from mint.engine.adapters.lora import Adapter, find_sites
from mint.engine.adapters.peft_files import read_adapter
from mint.engine.messages import Datum, ForwardBackward, IntArray, UserError
from mint.engine.model.base_model import (
    BaseModel,
    dequantization,
    find_head_name,
    forget_quantization,
)
from mint.engine.model.experts import split_experts
from mint.engine.model.linear import Site
from mint.engine.training.trainer import LoraTrainer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LARGEST_DIFFERENCE = {"float32": 0.01, "bfloat16": 0.5, "float16": 0.5}
"""By how much logprobs may differ after an export: rounding of weights to 16 bits is in it."""

TEXTS = (
    "The capital of France is Paris, and the capital of Italy is Rome.",
    "Question: Tom has 3 boxes with 12 eggs each and sells 7 eggs. How many are left?\n"
    "Answer: 3 * 12 = 36, and 36 - 7 = 29.",
    "def mean(values):\n    return sum(values) / len(values)\n",
    "User: Write one sentence about the sea.\nAssistant: The sea is wide, cold and never still.",
)
_MOST_TOKENS = 128
_PASS_TOKENS = 512


@dataclass(frozen=True)
class Check:
    """The difference between the logprobs of an export and of the adapter on its base model."""

    tokens: int
    largest: float  # difference between export and adapter
    moved: float  # the largest difference between adapter and base model
    by: str = "transformers"  # the program that ran the exported files

    def require(self, dtype: str) -> None:
        """Raise UserError when the difference is more than rounding explains."""
        limit = LARGEST_DIFFERENCE[dtype]
        if not self.largest <= limit:
            raise UserError(
                f"The exported model, run by {self.by}, does not match the adapter: logprobs of "
                f"{self.tokens} tokens differ by up to {self.largest:.3g}, more than the "
                f"{limit:g} that rounding to {dtype} can explain. Nothing was written. Try --dtype "
                "float32; if that differs too, the adapter belongs to another base model or this "
                "is a bug in mint."
            )


def merge(base: Path, adapter: Path, out: Path, dtype: str | None = None) -> str:
    """Write the merged model into the folder ``out``, and return the format of its weights.

    ``dtype`` is one of :data:`DTYPES`; without it, the weights keep the format of the base model.
    """
    model = _load(base)
    target = DTYPES[dtype] if dtype else model.dtype
    _merge_all(model, adapter, target)
    model.to(target)  # type: ignore[arg-type]
    forget_quantization(model)
    model.save_pretrained(out)
    return _dtype_name(target)


def _load(base: Path, dtype: torch.dtype | str = "auto") -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(
        base, dtype=dtype, quantization_config=dequantization(base)
    )
    model.requires_grad_(False)
    return model


def _merge_all(model: PreTrainedModel, adapter: Path, target: torch.dtype) -> None:
    """Add the adapter in a folder to the weights of a model, in place."""
    head = find_head_name(model)
    sites = {site.name: site for site in find_sites(model, head)}
    found = read_adapter(adapter, list(sites.values()))
    if head in found.pairs:
        _untie(model, head)
    for name in found.pairs:
        _merge_site(model, sites[name], found, target)


def untie(base: Path, out: Path) -> bool:
    """Write a base model whose output layer has a weight of its own; False when it had one.

    It answers as the model did. Programs that merge an adapter by the names of its layers need such
    a model where the adapter trains the output layer.
    """
    model = _load(base)
    head = find_head_name(model)
    shared = model.get_input_embeddings().get_parameter("weight")
    was_tied = model.get_submodule(head).weight is shared
    _untie(model, head)
    forget_quantization(model)
    model.save_pretrained(out)
    return was_tied


def check_merged(base: Path, adapter: Path, merged: Path) -> Check:
    """Compare a merged model, as transformers runs it, with the adapter, as the engine runs it."""
    reference = _run_in_engine(base, adapter)
    gc.collect()
    model = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    return _compare(*reference, model, "transformers")


def check_adapter(base: Path, adapter: Path, copy: Path, *, peft: bool | None = None) -> Check:
    """Compare an exported adapter with the original, as the engine runs it.

    The exported files are run by PEFT where it is installed (``peft`` sets this), and elsewhere by
    transformers, after they were added to the weights.
    """
    reference = _run_in_engine(base, adapter)
    gc.collect()
    model = _load(base, torch.float32)
    if find_spec("peft") is not None if peft is None else peft:
        from peft import PeftModel

        with warnings.catch_warnings():
            # PEFT warns that a tied output layer must not be merged, which is not done here, and
            # about Conv1D layers, which it treats correctly.
            warnings.simplefilter("ignore", UserWarning)
            adapted = PeftModel.from_pretrained(model, copy).eval()
        return _compare(*reference, adapted, f"PEFT {version('peft')}")
    _merge_all(model, copy, torch.float32)
    return _compare(*reference, model, "transformers")


# ---- merging -------------------------------------------------------------------------------------


def _untie(model: PreTrainedModel, head_name: str) -> None:
    """Give the output layer a weight of its own, where it shares that of the embedding."""
    head = model.get_submodule(head_name)
    shared = model.get_input_embeddings().get_parameter("weight")
    if head.weight is shared:
        head.weight = nn.Parameter(shared.detach().clone(), requires_grad=False)
    model.config.tie_word_embeddings = False
    model.all_tied_weights_keys = {}


@torch.no_grad()
def _merge_site(model: nn.Module, site: Site, adapter: Adapter, dtype: torch.dtype) -> None:
    name = site.name if site.experts else f"{site.name}.weight"
    weight, (owner, _, parameter) = model.get_parameter(name), name.rpartition(".")
    module = model.get_submodule(owner)
    is_transposed = module.is_transposed if site.experts else isinstance(module, Conv1D)
    merged = torch.empty_like(weight, dtype=dtype)
    experts = max(site.experts, 1)
    layers = (tensor.view(experts, *weight.shape[-2:]) for tensor in (merged, weight))
    pairs = split_experts(adapter.pairs[site.name], experts, torch.float32)
    for target, frozen, a, b in zip(*layers, *pairs, strict=True):
        change = adapter.scale * (b @ a)
        target.copy_(frozen.float() + (change.T if is_transposed else change))
    setattr(module, parameter, nn.Parameter(merged, requires_grad=False))


def _dtype_name(dtype: torch.dtype) -> str:
    names = [name for name, known in DTYPES.items() if known == dtype]
    if not names:
        raise UserError(
            f"The weights of the base model are {str(dtype).removeprefix('torch.')}, which is not "
            f"written. Choose a format: --dtype {' | '.join(DTYPES)}."
        )
    return names[0]


# ---- checking ------------------------------------------------------------------------------------


def _run_in_engine(base: Path, adapter: Path) -> tuple[list[IntArray], np.ndarray, float]:
    """Return some texts, their logprobs with the adapter, and how far these are from the base's."""
    model = BaseModel.load(base.name, base, precision="exact")
    most = min(_MOST_TOKENS, model.info.context_length)
    texts = [np.array(model.tokenizer.encode(text)[:most], np.int64) for text in TEXTS]
    found = read_adapter(adapter, model.sites)
    trainer = LoraTrainer(model, found.spec, _PASS_TOKENS)
    before = _logprobs_of_trainer(trainer, texts)  # a new adapter changes nothing
    trainer.adapter = found.frozen_copy(model.device)
    after = _logprobs_of_trainer(trainer, texts)
    return texts, after, float(np.abs(after - before).max())


def _compare(
    texts: list[IntArray], wanted: np.ndarray, moved: float, model: nn.Module, by: str
) -> Check:
    found = _logprobs_of_model(model, texts)
    return Check(len(found), float(np.abs(wanted - found).max()), moved, by)


def _logprobs_of_trainer(trainer: LoraTrainer, texts: Sequence[IntArray]) -> np.ndarray:
    data = [Datum(text[:-1], {"target_tokens": text[1:]}) for text in texts]
    operation = ForwardBackward(data, "cross_entropy", forward_only=True)
    [result] = trainer.forward_backward([operation])
    return np.concatenate(result.logprobs)


@torch.inference_mode()
def _logprobs_of_model(model: nn.Module, texts: Sequence[IntArray]) -> np.ndarray:
    """Return the logprobs of every token but the first of each text, concatenated."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device)
    parts: list[Tensor] = []
    for text in texts:
        tokens = torch.as_tensor(text, device=device)
        scores = torch.log_softmax(model(tokens[None, :-1]).logits[0].float(), -1)
        parts.append(scores.gather(-1, tokens[1:, None])[:, 0].cpu())
    return torch.cat(parts).numpy()
