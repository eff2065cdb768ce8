"""Adapters in PEFT folders: validates uploads and interpolates adapters without the base model."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from mint.engine.messages import LoraSpec
from mint.service.checkpoints.tensors import Tensors, read_entries
from mint.service.errors import UserError

TENSORS, CONFIG, OPTIMIZER = (
    "adapter_model.safetensors",
    "adapter_config.json",
    "optimizer.safetensors",
)
MAX_RANK = 1024
_MAX_CONFIG_BYTES = 1024 * 1024
_KEY = re.compile(r"base_model\.model\.(?P<layer>[^\s]{1,512})\.lora_(?P<part>[AB])\.weight")
_STATE_KEY = re.compile(r"(?P<index>\d{1,7})\.(?P<field>step|exp_avg|exp_avg_sq)")
_ATTENTION_NAMES = {"attn", "attention", "self_attn", "self_attention"}
_UNSUPPORTED = ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save")


@dataclass(frozen=True)
class AdapterFiles:
    """The two files of an adapter, checked against each other."""

    folder: Path
    base_model: str
    rank: int
    alpha: float
    layers: list[str]
    tensors: Tensors

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Check an adapter's config and the shapes of its tensors. Raises UserError."""
        for name in (CONFIG, TENSORS):
            if not (folder / name).is_file():
                raise UserError(f"{name} is missing, so this is not a LoRA adapter in PEFT format.")
        config = _read_config(folder / CONFIG)
        tensors = Tensors.open(folder / TENSORS)
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
        layers = _layers(tensors, rank)
        return cls(folder, config["base_model_name_or_path"], rank, alpha, layers, tensors)

    @property
    def lora(self) -> LoraSpec:
        """The adapter's shape, inferred from its layers."""
        kinds = {_kind(layer) for layer in self.layers}
        return LoraSpec(
            self.rank,
            train_attn="attn" in kinds,
            train_mlp="mlp" in kinds,
            train_unembed="unembed" in kinds,
        )

    def require_fit(self, model: Path, name: str) -> None:
        """Raise UserError if no adapter of the base model in a folder has tensors of these sizes.

        Only headers are read. The engine compares all layers when it loads the adapter; here, a
        layer that has another name in the model's files is only limited in its size, to twice the
        largest weight, as the engine may join two.
        """
        files = sorted(model.glob("*.safetensors"))
        entries = {key: entry for file in files for key, entry in read_entries(file).items()}
        if len(self.layers) > len(entries):
            raise UserError(
                f"{TENSORS} has {len(self.layers)} layers, and {name} only {len(entries)} weights."
            )
        shapes = {key: entry.shape for key, entry in entries.items() if entry.is_float}
        largest = 2 * max((size for shape in shapes.values() for size in shape), default=0)
        for layer in self.layers:
            inputs, outputs = _size(self.tensors, layer)
            weight = shapes.get(f"{layer}.weight", ())
            if len(weight) == 2 and sorted(weight) != sorted((inputs, outputs)):
                has = f"has {weight[0]} x {weight[1]}"
            elif max(inputs, outputs) > largest:
                has = f"has no weight with more than {largest // 2}"
            else:
                continue
            raise UserError(
                f"{TENSORS}: {layer} has shape {outputs} x {inputs}, and {name} {has}. Upload the "
                "adapter with base_model set to the model that it was trained on."
            )

    def require_finite(self) -> None:
        """Raise UserError if the adapter contains NaN or infinity."""
        for name in self.tensors.entries:
            _require_finite(self.tensors, name)

    def check_optimizer(self) -> None:
        """Check that the optimizer's state belongs to the adapter's tensors. Raises UserError."""
        state = Tensors.open(self.folder / OPTIMIZER)
        names = [name for layer in self.layers for name in _names(layer)]
        fields: dict[int, set[str]] = {}
        for key, entry in state.entries.items():
            match = _STATE_KEY.fullmatch(key)
            if match is None or int(match["index"]) >= len(names):
                raise UserError(f"{OPTIMIZER}: {key[:100]} does not belong to this adapter.")
            index, field = int(match["index"]), match["field"]
            wanted = () if field == "step" else self.tensors.entries[names[index]].shape
            if entry.shape != wanted or entry.dtype != "F32":
                raise UserError(
                    f"{OPTIMIZER}: {key} must be float32 of shape {list(wanted)}, as the "
                    f"adapter's {names[index]} is, not {entry.dtype} {list(entry.shape)}."
                )
            _require_finite(state, key, least=-math.inf if field == "exp_avg" else 0.0)
            fields.setdefault(index, set()).add(field)
        if any(len(found) != 3 for found in fields.values()):
            raise UserError(f"{OPTIMIZER} lacks part of the state of some tensors.")


def mix(
    adapters: Sequence[AdapterFiles], coefficients: Sequence[float], folder: Path, base_model: str
) -> LoraSpec:
    """Write the adapter whose delta of each layer is the weighted sum of those of the others.

    The ranks are concatenated, so the sum is exact: A = [A1; A2], B = [f1 B1, f2 B2], where f is
    the coefficient times the ratio of the two scales alpha/rank.
    """
    from safetensors.numpy import save

    rank = sum(adapter.rank for adapter in adapters)
    if rank > MAX_RANK:
        raise UserError(
            f"The sum of these adapters has rank {rank}, and at most {MAX_RANK} is supported. "
            "Interpolate fewer at a time."
        )
    spec = LoraSpec(rank)
    factors = [
        coefficient * adapter.alpha * rank / (adapter.rank * spec.alpha)
        for adapter, coefficient in zip(adapters, coefficients, strict=True)
    ]
    tensors: dict[str, NDArray[np.float32]] = {}
    layers = sorted({layer for adapter in adapters for layer in adapter.layers})
    for layer in layers:
        tensors |= zip(_names(layer), _stacked(adapters, factors, layer), strict=True)
    # the library's own writer loses the errno of an OSError
    (folder / TENSORS).write_bytes(save(tensors, metadata={"format": "pt"}))
    config = json.loads((adapters[0].folder / CONFIG).read_text())
    config |= {
        "r": rank,
        "lora_alpha": spec.alpha,
        "base_model_name_or_path": base_model,
        "target_modules": sorted({layer.rpartition(".")[2] for layer in layers}),
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2))
    mixed = AdapterFiles.read(folder)
    mixed.require_finite()
    return mixed.lora


def _stacked(
    adapters: Sequence[AdapterFiles], factors: Sequence[float], layer: str
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return A [rank, in] and B [out, rank] of a layer; adapters without it contribute zeros."""
    name_a, name_b = _names(layer)
    sizes = {
        _size(adapter.tensors, layer) for adapter in adapters if name_a in adapter.tensors.entries
    }
    if len(sizes) != 1:
        raise UserError(f"The adapters are incompatible: {layer} has different sizes.")
    [(inputs, outputs)] = sizes
    a, b = [], []
    for adapter, factor in zip(adapters, factors, strict=True):
        if name_a in adapter.tensors.entries:
            a.append(adapter.tensors[name_a])
            with np.errstate(all="ignore"):  # the sum is checked
                b.append(adapter.tensors[name_b] * np.float32(factor))
        else:
            a.append(np.zeros((adapter.rank, inputs), np.float32))
            b.append(np.zeros((outputs, adapter.rank), np.float32))
    return np.concatenate(a), np.concatenate(b, axis=1)


def _read_config(file: Path) -> dict[str, Any]:
    if file.stat().st_size > _MAX_CONFIG_BYTES:
        raise UserError(f"{CONFIG} has more than {_MAX_CONFIG_BYTES} bytes.")
    try:
        config = from_json(file.read_bytes())  # strings must be valid Unicode
    except ValueError as error:
        raise UserError(f"{CONFIG} is not valid JSON.") from error
    if not isinstance(config, dict):
        raise UserError(f"{CONFIG} must be a JSON object.")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if config.get("peft_type") != "LORA":
        raise UserError(f"{CONFIG}: peft_type must be LORA, not {config.get('peft_type')!r:.50}.")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= MAX_RANK:
        raise UserError(f"{CONFIG}: r must be an integer from 1 to {MAX_RANK}.")
    if not isinstance(alpha, int | float) or not 0 < alpha < 1e30:
        raise UserError(f"{CONFIG}: lora_alpha must be a positive number.")
    if not isinstance(config.get("base_model_name_or_path"), str):
        raise UserError(f"{CONFIG}: base_model_name_or_path must name the base model.")
    for key in _UNSUPPORTED:
        if config.get(key):
            raise UserError(f"{CONFIG}: {key} is not supported; only plain LoRA is.")
    return config


def _names(layer: str) -> tuple[str, str]:
    """Return the names of a layer's two tensors."""
    return f"base_model.model.{layer}.lora_A.weight", f"base_model.model.{layer}.lora_B.weight"


def _size(tensors: Tensors, layer: str) -> tuple[int, int]:
    """Return how many inputs and outputs a layer has."""
    name_a, name_b = _names(layer)
    return tensors.entries[name_a].shape[1], tensors.entries[name_b].shape[0]


def _layers(tensors: Tensors, rank: int) -> list[str]:
    found = set()
    for key, entry in tensors.entries.items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise UserError(f"{TENSORS}: {key[:200]} is not a LoRA tensor in PEFT format.")
        across = 0 if match["part"] == "A" else 1
        if len(entry.shape) != 2 or entry.shape[across] != rank or 0 in entry.shape:
            raise UserError(
                f"{TENSORS}: {key[:200]} has shape {list(entry.shape)}, which does not fit "
                f"r={rank} in {CONFIG}."
            )
        found.add(match["layer"])
    if not found:
        raise UserError(f"{TENSORS} contains no tensors.")
    layers = sorted(found)
    for layer in layers:
        if not tensors.entries.keys() >= {*_names(layer)}:
            raise UserError(f"{TENSORS}: {layer} has only one of lora_A and lora_B.")
    return layers


def _kind(layer: str) -> str:
    parts = layer.split(".")
    if not any(part.isdigit() for part in parts):
        return "unembed"
    return "attn" if _ATTENTION_NAMES.intersection(parts) else "mlp"


def _require_finite(tensors: Tensors, name: str, least: float = -math.inf) -> None:
    for values in tensors.pieces(name):
        if not np.isfinite(values).all() or (values < least).any():
            raise UserError(f"{tensors.file.name}: {name} contains NaN or infinity.")
