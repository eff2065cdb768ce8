"""Upper limits of a machine: its matmul rate and its memory bandwidth.

`mint bench` measures them in a child process, so that the command itself loads no torch;
``benchmarks/`` calls the same functions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_COPY_BYTES = {"cpu": 2**28, "cuda": 2**32}
_MATMUL_SIZE = {"cpu": 2048, "cuda": 8192}
_DTYPES = {"cpu": ("bfloat16", "float32"), "cuda": ("bfloat16", "float16", "float32")}


@dataclass(frozen=True)
class Product:
    """A linear layer as a matrix product, and how many of it a model has."""

    inputs: int
    outputs: int
    count: int

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs * self.count


def find_products(config: Mapping[str, Any]) -> list[Product]:
    """Return the products of one token through a dense decoder, the head last.

    Empty for other architectures, such as models with experts.

    >>> find_products({"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2,
    ...     "num_attention_heads": 2, "vocab_size": 100})[-1]
    Product(inputs=8, outputs=100, count=1)
    """
    needed = {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}
    if any("expert" in key for key in config) or not needed <= config.keys():
        return []
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    size = config.get("head_dim") or hidden // heads
    keys = (config.get("num_key_value_heads") or heads) * size
    return [
        Product(hidden, heads * size, layers),  # queries
        Product(hidden, keys, 2 * layers),
        Product(heads * size, hidden, layers),
        Product(hidden, wide, 2 * layers),
        Product(wide, hidden, layers),
        Product(hidden, config["vocab_size"], 1),
    ]


def flops_per_token(products: list[Product]) -> int:
    """Return the FLOPs of one token's forward pass, without attention.

    >>> flops_per_token([Product(2, 3, 10)])
    120
    """
    return sum(2 * product.weights for product in products)


def best_seconds(work: Callable[[], object], device: str, limit_s: float = 1.0) -> float:
    """Return the shortest of several runs after a warm-up: other load only adds time."""
    import torch

    times: list[float] = []
    for _ in range(2):
        work()
    deadline = time.perf_counter() + limit_s
    while len(times) < 3 or (time.perf_counter() < deadline and len(times) < 50):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def matmul_rate(dtype: str, device: str, size: int | None = None) -> float:
    """Measure a large square product, in FLOP/s. Random data: zeros run faster on a GPU."""
    import torch

    size = size or _MATMUL_SIZE[device]
    left, right = (random((size, size), dtype, device) for _ in range(2))
    result = torch.empty_like(left)
    return 2 * size**3 / best_seconds(lambda: torch.mm(left, right, out=result), device)


def copy_rate(device: str, size: int | None = None) -> float:
    """Measure a copy within the device's memory, in bytes/s read and written."""
    import torch

    size = size or _COPY_BYTES[device]
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return 2 * size / best_seconds(lambda: target.copy_(source), device)


def random(shape: tuple[int, int], dtype: str, device: str) -> torch.Tensor:
    import torch

    return torch.randn(shape, device=device).mul_(0.02).to(getattr(torch, dtype))


def measure(
    config: Mapping[str, Any], device: str | None = None, size: int | None = None
) -> dict[str, Any]:
    """Measure everything here. Rates are FLOP/s and bytes/s, times are seconds."""
    import torch

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "matmul": {dtype: matmul_rate(dtype, device, size) for dtype in _DTYPES[device]},
        "copy": copy_rate(device, None if size is None else size * size),
        "flops_per_token": flops_per_token(find_products(config)) or None,
    }
