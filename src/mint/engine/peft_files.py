"""Adapters on disk, in PEFT's format: what we write loads in PEFT and vLLM unchanged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from .lora import Adapter, Site
from .messages import LoraSpec, UserError

_TENSORS = "adapter_model.safetensors"
_CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."


def write_adapter(adapter: Adapter, folder: Path, base_model: str) -> None:
    """Write an adapter's two files into an existing folder."""
    tensors = {}
    for name, (a, b) in adapter.pairs.items():
        tensors[f"{_PREFIX}{name}.lora_A.weight"] = a.detach().contiguous().cpu()
        tensors[f"{_PREFIX}{name}.lora_B.weight"] = b.detach().contiguous().cpu()
    save_file(tensors, folder / _TENSORS, metadata={"format": "pt"})
    (folder / _CONFIG).write_text(json.dumps(_config(adapter, base_model), indent=2))


def _config(adapter: Adapter, base_model: str) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": adapter.spec.rank,
        "lora_alpha": adapter.spec.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted({name.rpartition(".")[2] for name in adapter.pairs}),
    }


def read_adapter(folder: Path, sites: list[Site]) -> Adapter:
    """The adapter in a folder, which must fit the base model that has these sites."""
    config = json.loads((folder / _CONFIG).read_text())
    tensors = load_file(folder / _TENSORS)
    known = {site.name: site for site in sites}
    spec = LoraSpec(rank=int(config["r"]))
    pairs = {}
    for name in sorted({key.removeprefix(_PREFIX).rpartition(".lora_")[0] for key in tensors}):
        a = tensors[f"{_PREFIX}{name}.lora_A.weight"].float()
        b = tensors[f"{_PREFIX}{name}.lora_B.weight"].float() * (config["lora_alpha"] / spec.alpha)
        site = known.get(name)
        if site is None or a.shape != (spec.rank, site.inputs) or b.shape[0] != site.outputs:
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
