"""Frozen bfloat16 weights under float32 activations.

A bfloat16 model whose activations are bfloat16 too amplifies every rounding: sampler and trainer,
which batch differently, were up to 0.25 apart in a token's logprob on SmolLM2-135M. Here the
weights are bfloat16 (which loses nothing of most published models) and the activations stay
float32. On a GPU the product is two bfloat16 products with float32 sums, of the activations' upper
and lower halves: 16 bits of mantissa at twice the arithmetic and the same memory traffic. Gradients
need one such product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

FrozenLinear = nn.Linear | Conv1D


def apply_linear(layer: FrozenLinear, x: Tensor) -> Tensor:
    """The layer's output, in the precision of ``x``."""
    if layer.weight.dtype == x.dtype:
        return layer(x)  # type: ignore[no-any-return]
    weight = layer.weight if isinstance(layer, Conv1D) else layer.weight.T  # [in, out]
    output: Tensor = _MixedMatmul.apply(x.flatten(0, -2), weight)  # type: ignore[no-untyped-call]
    if layer.bias is not None:
        output = output + layer.bias
    return output.view(*x.shape[:-1], -1)


class _MixedMatmul(torch.autograd.Function):
    """float32 [rows, in] times bfloat16 [in, out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight
        if not x.is_cuda:
            return x @ weight.to(x.dtype)
        upper = x.to(weight.dtype)
        lower = (x - upper).to(weight.dtype)
        return _product(upper, weight) + _product(lower, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        [grad] = grads
        weight: Tensor = ctx.weight
        if not grad.is_cuda:
            return grad @ weight.T.to(grad.dtype), None
        return _product(grad.to(weight.dtype), weight.T), None


def _product(left: Tensor, right: Tensor) -> Tensor:
    return torch.mm(left, right, out_dtype=torch.float32)


def keep_activations_in_float32(model: nn.Module, embedding: nn.Module) -> None:
    """Leave the large linear weights as they are; make all else compute in float32."""
    linear = [m for m in model.modules() if isinstance(m, FrozenLinear)]
    large = {id(m.weight) for m in linear} | {id(p) for p in embedding.parameters()}
    for parameter in model.parameters():
        if id(parameter) not in large:
            parameter.data = parameter.data.float()
    embedding.register_forward_hook(lambda module, inputs, output: output.float())
