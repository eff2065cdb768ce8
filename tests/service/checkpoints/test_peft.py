"""Adapters as files: which are refused, and how they are interpolated."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from mint.engine.messages import LoraSpec, UserError
from mint.engine.model.base_model import BaseModel
from mint.engine.training.trainer import LoraTrainer
from mint.service.checkpoints.peft import AdapterFiles, mix
from tests.tiny import build_model

ATTENTION, HEAD = "model.layers.0.self_attn.q_proj", "lm_head"
Delta = dict[str, NDArray[np.float64]]


def write(
    folder: Path, rank: int, layers: tuple[str, ...], alpha: float = 32, **config: Any
) -> Path:
    """A random adapter of 6 x 5 layers, with optimizer state."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(rank)
    tensors, state = {}, {}
    for layer in layers:
        tensors[f"base_model.model.{layer}.lora_A.weight"] = random.normal(size=(rank, 5))
        tensors[f"base_model.model.{layer}.lora_B.weight"] = random.normal(size=(6, rank))
    names = [f"base_model.model.{n}.lora_{p}.weight" for n in sorted(layers) for p in "AB"]
    for index, name in enumerate(names):
        state[f"{index}.step"] = np.array(3, np.float32)
        state[f"{index}.exp_avg"] = np.zeros(tensors[name].shape, np.float32)
        state[f"{index}.exp_avg_sq"] = np.ones(tensors[name].shape, np.float32)
    save_file(
        {k: v.astype(np.float32) for k, v in tensors.items()}, folder / "adapter_model.safetensors"
    )
    save_file(state, folder / "optimizer.safetensors")
    content = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "base_model_name_or_path": "m"}
    (folder / "adapter_config.json").write_text(json.dumps({**content, **config}))
    return folder


def delta(folder: Path) -> Delta:
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    layers = {name.removesuffix(".lora_A.weight") for name in tensors if ".lora_A." in name}
    scale = config["lora_alpha"] / config["r"]
    return {
        layer: scale
        * tensors[f"{layer}.lora_B.weight"].astype(np.float64)
        @ tensors[f"{layer}.lora_A.weight"].astype(np.float64)
        for layer in layers
    }


def test_a_mixture_is_the_weighted_sum_of_the_changes(tmp_path: Path) -> None:
    one = write(tmp_path / "one", 2, (ATTENTION, HEAD))
    other = write(tmp_path / "other", 3, (ATTENTION,), alpha=8)
    (tmp_path / "mixed").mkdir()
    adapters = [AdapterFiles.read(one), AdapterFiles.read(other)]
    spec = mix(adapters, [0.25, -1.5], tmp_path / "mixed", "m")
    assert (spec.rank, spec.train_attn, spec.train_mlp, spec.train_unembed) == (
        5,
        True,
        False,
        True,
    )
    mixed, first, second = delta(tmp_path / "mixed"), delta(one), delta(other)
    for layer, change in mixed.items():
        wanted = 0.25 * first[layer] - 1.5 * second.get(layer, np.zeros((6, 5)))
        np.testing.assert_allclose(change, wanted, rtol=1e-5, atol=1e-5)


def test_a_mixture_has_a_largest_rank(tmp_path: Path) -> None:
    adapter = AdapterFiles.read(write(tmp_path / "one", 600, (HEAD,)))
    with pytest.raises(UserError, match="rank 1200"):
        mix([adapter, adapter], [1, 1], tmp_path, "m")


@pytest.mark.parametrize("coefficient", [1e300, -1e39])
def test_a_mixture_that_overflows_is_refused(tmp_path: Path, coefficient: float) -> None:
    adapter = AdapterFiles.read(write(tmp_path / "one", 2, (HEAD,)))
    (tmp_path / "mixed").mkdir()
    with pytest.raises(UserError, match="contains NaN or infinity"):
        mix([adapter], [coefficient], tmp_path / "mixed", "m")


def test_numbers_of_half_the_size_are_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "one", 2, (HEAD,))
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    save_file({k: v.astype(np.float16) for k, v in tensors.items()}, file)
    adapter = AdapterFiles.read(folder)
    for name, values in tensors.items():
        np.testing.assert_allclose(adapter.tensors[name], values, rtol=1e-3)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"r": 0}, "r must be"),
        ({"r": True}, "r must be"),
        ({"r": 3}, "r=3"),
        ({"r": 10**9}, "r must be"),
        ({"lora_alpha": "32"}, "lora_alpha"),
        ({"lora_alpha": float("nan")}, "lora_alpha"),
        ({"lora_alpha": 10**400}, "lora_alpha"),
        ({"peft_type": "IA3"}, "peft_type"),
        ({"use_dora": True}, "use_dora"),
        ({"rank_pattern": {"x": 3}}, "rank_pattern"),
        ({"base_model_name_or_path": None}, "base_model_name_or_path"),
        ({"base_model_name_or_path": "\ud800"}, "not valid JSON"),
    ],
)
def test_an_invalid_adapter_config_is_refused(
    tmp_path: Path, config: dict[str, Any], named: str
) -> None:
    with pytest.raises(UserError, match=named):
        AdapterFiles.read(write(tmp_path / "one", 2, (HEAD,), **config))


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 8, b"\x02" + b"\0" * 7 + b"{]", b"\x40" + b"\0" * 7 + b"[" * 64, b"PK\x03\x04"],
)
def test_a_file_that_contains_no_tensors_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path / "one", 2, (HEAD,))
    (folder / "adapter_model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"adapter_model\.safetensors"):
        AdapterFiles.read(folder)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2, 5], "data_offsets": [0, 10**15]},
        {"dtype": "F32", "shape": [-2, -5], "data_offsets": [0, 40]},
        {"dtype": "F32", "shape": [2, 5], "data_offsets": [-8, 32]},
        {"dtype": "F32", "shape": "25", "data_offsets": [0, 40]},
        {"dtype": "I64", "shape": [2, 5], "data_offsets": [0, 80]},
        {"shape": [2, 5]},
        [],
    ],
)
def test_a_header_that_lies(tmp_path: Path, entry: Any) -> None:
    folder = write(tmp_path / "one", 2, (HEAD,))
    header = json.dumps({f"base_model.model.{HEAD}.lora_A.weight": entry}).encode()
    content = len(header).to_bytes(8, "little") + header + b"\0" * 40
    (folder / "adapter_model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"adapter_model\.safetensors"):
        AdapterFiles.read(folder)


def test_invalid_numbers_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "one", 2, (HEAD,))
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors[f"base_model.model.{HEAD}.lora_B.weight"][0, 0] = np.inf
    save_file(tensors, folder / "adapter_model.safetensors")
    with pytest.raises(UserError, match="lora_B"):
        AdapterFiles.read(folder).require_finite()


def write_large(folder: Path, dtype: str, inputs: int) -> Path:
    """An adapter of rank 1 with one large tensor of zeros, which takes no space on the disk."""
    folder.mkdir()
    size = {"F32": 4, "F16": 2, "BF16": 2}[dtype]
    header, end = {}, 0
    for part, shape in (("B", [6, 1]), ("A", [1, inputs])):
        start, end = end, end + size * shape[0] * shape[1]
        entry = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        header[f"base_model.model.{ATTENTION}.lora_{part}.weight"] = entry
    encoded = json.dumps(header).encode()
    with open(folder / "adapter_model.safetensors", "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.truncate(8 + len(encoded) + end)
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "base_model_name_or_path": "m"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_large_tensor_is_checked_without_holding_it(tmp_path: Path, dtype: str) -> None:
    adapter = AdapterFiles.read(write_large(tmp_path / "large", dtype, 1 << 25))
    tracemalloc.start()
    try:
        adapter.require_finite()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 23, "of at least 2**26 bytes"


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_the_last_number_of_a_large_tensor_is_checked(tmp_path: Path, dtype: str) -> None:
    folder = write_large(tmp_path / "large", dtype, 1_000_003)
    with open(folder / "adapter_model.safetensors", "r+b") as file:
        file.seek(-2, 2)
        file.write(b"\xff\x7f")  # the upper half of a NaN
    with pytest.raises(UserError, match=r"lora_A\.weight contains NaN"):
        AdapterFiles.read(folder).require_finite()


def test_a_header_has_a_largest_size(tmp_path: Path) -> None:
    folder = write(tmp_path / "one", 2, (HEAD,))
    file = folder / "adapter_model.safetensors"
    length = int.from_bytes(file.read_bytes()[:8], "little")
    header, values = file.read_bytes()[8 : 8 + length], file.read_bytes()[8 + length :]
    padded = header + b" " * (17 * 1024**2)  # as the format allows
    file.write_bytes(len(padded).to_bytes(8, "little") + padded + values)
    with pytest.raises(UserError, match="header has more than"):
        AdapterFiles.read(folder)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "phi3", "gemma3_text"])
def test_an_adapter_of_every_layer_fits_its_model(tmp_path: Path, family: str) -> None:
    model = build_model(tmp_path / "model", family)
    base = BaseModel.load("tiny", model, device="cpu", precision="exact")
    LoraTrainer(base, LoraSpec(rank=2, seed=1), 64).save(tmp_path)
    AdapterFiles.read(tmp_path).require_fit(model, "tiny")


@pytest.mark.parametrize("change", ["missing", "shape", "index", "negative", "name"])
def test_an_optimizer_of_something_else(tmp_path: Path, change: str) -> None:
    folder = write(tmp_path / "one", 2, (HEAD,))
    AdapterFiles.read(folder).check_optimizer()
    state = load_file(folder / "optimizer.safetensors")
    match change:
        case "missing":
            del state["0.step"]
        case "shape":
            state["0.exp_avg"] = np.zeros((2, 6), np.float32)
        case "index":
            state["2.step"] = np.zeros((), np.float32)
        case "negative":
            state["1.exp_avg_sq"] -= 2
        case "name":
            state["0.momentum"] = np.zeros((2, 5), np.float32)
    save_file(state, folder / "optimizer.safetensors")
    with pytest.raises(UserError, match=r"optimizer\.safetensors"):
        AdapterFiles.read(folder).check_optimizer()
