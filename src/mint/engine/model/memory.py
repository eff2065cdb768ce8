"""Divide a device's memory between weights, keys and values, and training."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from mint.engine.messages import EnginePlan
from mint.engine.model.base_model import BaseModel
from mint.engine.model.linear import FrozenLinear
from mint.engine.sampling.kv_pool import BLOCK_SIZE, KVPool

GB = 1024**3
_CPU_POOL_BYTES = 2 * GB
_POOL_SHARE = 0.5  # of the memory free after loading; training gets the rest
_TRAINING_SHARE = 0.6  # of what the pool leaves; the rest is for logits and estimation errors
_MIN_BLOCKS = 64


@dataclass(frozen=True)
class MemoryBudget:
    """Sizes that an engine decides once, when its model is loaded."""

    blocks: int  # in the key-value pool, including the one for padding
    kv_bytes: int
    train_tokens: int  # in one forward-backward pass
    max_rows: int  # sequences that decode together
    chunk_tokens: int  # prompt tokens in one prefill pass
    busy_tokens: int  # the same while many answers run and few prompts wait


def plan_memory(model: BaseModel, memory_gb: float | None) -> MemoryBudget:
    """Divide what the device has free; ``memory_gb`` bounds what this engine takes in all."""
    per_token = KVPool.bytes_per_token(model.kv_shapes, model.precision.keys)
    is_gpu = model.device.type == "cuda"
    free = max(_free_bytes(model.device, memory_gb) - _packed_bytes(model), 0)
    pool = int(free * _POOL_SHARE) if is_gpu else min(_CPU_POOL_BYTES, int(free * _POOL_SHARE))
    rows = 512 if is_gpu else 256
    most = rows * model.info.context_length // BLOCK_SIZE + 1  # no more is ever used at once
    blocks = max(min(pool // (per_token * BLOCK_SIZE), most), _MIN_BLOCKS)
    left = max(free - blocks * BLOCK_SIZE * per_token, 0)
    most = 16384 if is_gpu else 2048
    train = min(most, max(256, int(_TRAINING_SHARE * left / _training_bytes_per_token(model))))
    return MemoryBudget(
        blocks=blocks,
        kv_bytes=blocks * BLOCK_SIZE * per_token,
        train_tokens=train,
        max_rows=rows,
        chunk_tokens=8192 if is_gpu else 512,
        busy_tokens=8192 if is_gpu and model.has_experts else 512,  # the size of a recorded pass
    )


def describe(model: BaseModel, budget: MemoryBudget) -> EnginePlan:
    """Return the plan that `mint serve` prints."""
    is_gpu = model.device.type == "cuda"
    return EnginePlan(
        device=torch.cuda.get_device_name(model.device) if is_gpu else "cpu",
        precision=model.precision.name,
        reason=model.precision.reason,
        kv_tokens=(budget.blocks - 1) * BLOCK_SIZE,
        kv_bytes=budget.kv_bytes,
        train_tokens=budget.train_tokens,
        device_bytes=torch.cuda.memory_reserved(model.device) if is_gpu else budget.kv_bytes,
    )


def _free_bytes(device: torch.device, memory_gb: float | None) -> int:
    """Return the memory that is left for the pool and training after the weights."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        taken = torch.cuda.memory_reserved(device)
    else:
        free, taken = _available_bytes(), _resident_bytes()
    if memory_gb is not None:
        free = min(free, int(memory_gb * GB) - taken)
    return max(free, 0)


def device_memory(device: torch.device) -> dict[str, float]:
    """Return what this process holds of a GPU's memory, and what the GPU has; nothing on a CPU."""
    if device.type != "cuda":
        return {}
    return {
        "device_bytes_used": float(torch.cuda.memory_reserved(device)),
        "device_bytes_capacity": float(torch.cuda.mem_get_info(device)[1]),
    }


def _available_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _resident_bytes() -> int:
    """Return the memory that this process takes now, 0 where the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _packed_bytes(model: BaseModel) -> int:
    """Return what the weights will take that a CPU's kernels pack when training begins."""
    if not model.precision.has_kernels:
        return 0
    linear = [p for p in model.products.values() if isinstance(p, FrozenLinear)]
    return sum(2 * product.weight.numel() for product in linear)


def _training_bytes_per_token(model: BaseModel) -> int:
    """Estimate what a token's activations take until its backward pass.

    Each product keeps its input in the adapter's format. The elementwise work around it keeps
    float32 tensors of its output's size: about four on a CPU, half of that in compiled layers
    (measured on an H200: 2.6 MB a token for Qwen3-0.6B's shape).
    """
    kept = 8 if model.device.type == "cuda" else 16
    lora = model.precision.lora.itemsize
    return sum(
        (product.weight.shape[-1] * lora + product.weight.shape[-2] * kept)
        * (model.experts_per_token if product.weight.dim() == 3 else 1)
        for name, product in model.products.items()
        if name != model.head.name
    )
