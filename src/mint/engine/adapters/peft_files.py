"""Adapters on disk, in PEFT's format: what we write loads in PEFT and vLLM unchanged."""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from mint.engine.adapters.lora import Adapter
from mint.engine.messages import LoraSpec, UserError
from mint.engine.model.linear import Site

_TENSORS = "adapter_model.safetensors"
_CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."
_OLD_EXPERTS = (".gate_proj", ".up_proj", ".down_proj")


def write_tensors(file: Path, tensors: dict[str, torch.Tensor], **metadata: str) -> None:
    """Write a safetensors file. Raises OSError; the library's own writer loses its number."""
    file.write_bytes(save(tensors, metadata or None))


def write_adapter(adapter: Adapter, folder: Path, base_model: str) -> None:
    """Write an adapter's two files into an existing folder."""
    tensors = {}
    files = _file_names(adapter.experts())
    for name, (a, b) in adapter.pairs.items():
        path = _PREFIX + files.get(name, name)
        tensors[f"{path}.lora_A.weight"] = a.detach().contiguous().cpu()
        tensors[f"{path}.lora_B.weight"] = b.detach().contiguous().cpu()
    write_tensors(folder / _TENSORS, tensors, format="pt")
    (folder / _CONFIG).write_text(json.dumps(_config(adapter, base_model), indent=2))


def _config(adapter: Adapter, base_model: str) -> dict[str, Any]:
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": adapter.spec.rank,
        "lora_alpha": adapter.spec.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    experts = adapter.experts()
    linear = [name for name in adapter.pairs if name not in experts]
    # Beside experts, PEFT takes modules of these names for experts of older checkpoints, but it
    # leaves parameters alone, and calls the tensors the same.
    dense = [name for name in linear if experts and name.endswith(_OLD_EXPERTS)]
    modules = {name.rpartition(".")[2] for name in linear if name not in dense}
    config["target_modules"] = sorted(modules)
    if experts:
        parameters = [*map(_after_layer, experts), *(f"{_after_layer(n)}.weight" for n in dense)]
        config["target_parameters"] = sorted(set(parameters))
    return config


def _after_layer(name: str) -> str:
    """Return what follows a layer's number in a name: ``mlp.experts.down_proj``."""
    return re.sub(r".*\.\d+\.", "", name)


def _file_names(experts: Iterable[str]) -> dict[str, str]:
    """Return what PEFT calls the tensors of expert parameters.

    It wraps the module of the parameters once for each, the first innermost.
    """
    names = {}
    for module, members in groupby(experts, lambda name: name.rpartition(".")[0]):
        for depth, name in enumerate(reversed(list(members))):
            names[name] = module + depth * ".base_layer"
    return names


def convert_adapter(source: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write an adapter's two files into an existing folder, with tensors of another format."""
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(source / _TENSORS).items()}
    write_tensors(folder / _TENSORS, tensors, format="pt")
    (folder / _CONFIG).write_text((source / _CONFIG).read_text())


def read_adapter(folder: Path, sites: list[Site]) -> Adapter:
    """Return the adapter in a folder, which must fit the base model that has these sites."""
    try:
        config = json.loads((folder / _CONFIG).read_text())
        tensors = load_file(folder / _TENSORS)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(
            f"The files of an adapter cannot be read ({type(error).__name__}), so its weights were "
            "not loaded. Use another checkpoint, and check the disk of the service."
        ) from error
    targets = tuple(config.get("target_parameters") or ())
    files = _file_names(s.name for s in sites if s.experts and s.name.endswith(targets))
    known = {site.name: site for site in sites}
    names = {file: name for name, file in files.items()}
    spec = LoraSpec(rank=int(config["r"]))
    pairs = {}
    for file in sorted({key.removeprefix(_PREFIX).rpartition(".lora_")[0] for key in tensors}):
        a = tensors[f"{_PREFIX}{file}.lora_A.weight"].float()
        b = tensors[f"{_PREFIX}{file}.lora_B.weight"].float() * (config["lora_alpha"] / spec.alpha)
        name = names.get(file, file)
        site = known.get(name)
        shape = (a.shape[0], a.shape[1], b.shape[0])
        if site is None or shape != (site.height(spec.rank), site.inputs, site.outputs):
            raise UserError(
                f"The adapter does not fit this base model: its layer {name} has shape "
                f"{b.shape[0]} x {a.shape[1]}, and the model "
                + (f"has {site.outputs} x {site.inputs}. " if site else "has no such layer. ")
                + f"It was trained on {config['base_model_name_or_path']}."
            )
        pairs[name] = (a, b)
    kinds = {known[name].kind for name in pairs}
    flags = {f"train_{kind}": kind in kinds for kind in ("attn", "mlp", "unembed")}
    return Adapter(replace(spec, **flags), pairs)
