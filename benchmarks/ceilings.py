"""Upper limits of a machine for one model: those of ``mint bench``, and its own products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mint.commands.bench import ceilings
from mint.commands.bench.ceilings import Product, best_seconds, find_products, flops_per_token

_WEIGHT_BYTES = 2**30  # of distinct weights: more than any cache holds, less than memory does


def cache_bytes_per_token(config: Mapping[str, Any], itemsize: int = 2) -> int:
    """Return the size of the keys and values of one token.

    >>> cache_bytes_per_token({"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2})
    64
    """
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    kv_heads = config.get("num_key_value_heads") or heads
    return int(2 * config["num_hidden_layers"] * kv_heads * size * itemsize)


def product_seconds(products: list[Product], rows: int, dtype: str, device: str) -> float:
    """Measure all products of a model for a batch of rows, and nothing else of it.

    Of the two ways to write a product, rows times weights or weights times columns, the faster one
    counts. The weights are as many different tensors as a gigabyte holds, so that a small model's
    do not stay in a cache.
    """
    import torch

    itemsize = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    room = _WEIGHT_BYTES / max(1, itemsize * sum(product.weights for product in products))
    layers = []
    for product in products:
        x = ceilings.random((rows, product.inputs), dtype, device)
        distinct = max(1, min(product.count, round(product.count * room)))
        shape = (product.outputs, product.inputs)
        weights = [ceilings.random(shape, dtype, device) for _ in range(distinct)]
        layers.append((x, x.T.contiguous(), [weights[n % distinct] for n in range(product.count)]))

    def by_rows() -> None:
        for x, _, weights in layers:
            for weight in weights:
                torch.nn.functional.linear(x, weight)

    def by_columns() -> None:
        for _, x, weights in layers:
            for weight in weights:
                torch.mm(weight, x)

    with torch.inference_mode():
        return min(best_seconds(by_rows, device), best_seconds(by_columns, device))


def measure(
    config: Mapping[str, Any], rows: int, device: str, size: int | None = None
) -> dict[str, Any]:
    """Measure everything here. Rates are FLOP/s and bytes/s, times are seconds."""
    products = find_products(config)
    machine = ceilings.measure(config, device, size)
    return {
        **machine,
        "rows": rows,
        "products": {
            dtype: product_seconds(products, rows, dtype, device)
            for dtype in machine["matmul"]
            if products and not (device == "cuda" and dtype == "float32")
        },
        "head_flops_per_token": flops_per_token(products[-1:]) or None,
    }
