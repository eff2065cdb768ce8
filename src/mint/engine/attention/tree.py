"""Attention over a prefix forest on a GPU, as a differentiable operator."""

# mypy: disable-error-code="import-not-found,import-untyped,misc,untyped-decorator,unused-ignore"
# mypy: disable-error-code="no-untyped-call,no-any-return"

from typing import Any

import torch
from torch import Tensor

from .kernels import FLOAT32_TILE, Tile, cdiv, choose_tile, pad, unit_stride
from .tree_kernels import forward_kernel, key_kernel, plan_kernel, query_kernel

# By padded head size; the fastest of those tried on an H200, on groups and on distinct rows.
# The first two share a plan: their rows and keys are the same.
FORWARD_TILES = {64: Tile(128, 64, 4, 3), 128: Tile(64, 64, 4, 2), 256: Tile(128, 32, 8, 2)}
QUERY_TILES = {64: Tile(128, 64, 4, 2), 128: Tile(64, 64, 4, 2), 256: Tile(128, 32, 8, 2)}
KEY_TILES = {64: Tile(64, 64, 4, 3), 128: Tile(32, 64, 4, 3), 256: Tile(64, 32, 8, 2)}

_PLAN_CHUNK = 16  # key tiles that a planning program looks at in one step


def _strides(*tensors: Tensor) -> list[int]:
    """Return the strides of the first two dimensions of each tensor."""
    return [stride for tensor in tensors for stride in tensor.stride()[:2]]


@torch.library.custom_op("mint::tree_attention_forward", mutates_args=())
def _forward(
    q: Tensor, k: Tensor, v: Tensor, ends: Tensor, roots: Tensor, positions: Tensor,
    scale: float, window: int, softcap: float, sinks: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the attention output ``[N, H, D]``, the logsumexp (base 2), and the plan."""
    (nodes, heads, dim), kv_heads = q.shape, k.shape[1]
    out, sums, plan = _outputs(q, k)
    if nodes == 0:
        return out, sums, plan
    q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
    group = heads // kv_heads
    tile = choose_tile(FORWARD_TILES, FLOAT32_TILE, q.dtype, dim, group)
    tokens, tiles, key_tiles = tile.rows // group, plan.shape[0], plan.shape[1] - 2
    plan_kernel[(tiles,)](
        ends, roots, positions, plan, nodes, key_tiles,
        tokens, tile.keys, window, _PLAN_CHUNK, pad(tokens, 1),
        num_warps=4,
    )  # fmt: skip
    forward_kernel[(kv_heads, tiles)](
        q, k, v, ends, positions, q if sinks is None else sinks, plan, out, sums, scale,
        nodes, key_tiles, *_strides(q, k, v),
        group, dim, window, softcap, sinks is not None, tile.rows, tile.keys, pad(dim),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out, sums, plan


@_forward.register_fake
def _(q: Tensor, k: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _outputs(q, k)


def _outputs(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return empty tensors for what the forward pass computes."""
    (nodes, heads, dim), group = q.shape, q.shape[1] // k.shape[1]
    tile = choose_tile(FORWARD_TILES, FLOAT32_TILE, q.dtype, dim, group)
    plan = (cdiv(nodes, tile.rows // group), cdiv(nodes, tile.keys) + 2)
    return (
        torch.empty((nodes, heads, dim), dtype=q.dtype, device=q.device),
        torch.empty((nodes, heads), dtype=torch.float32, device=q.device),
        torch.empty(plan, dtype=torch.int32, device=q.device),
    )


@torch.library.custom_op("mint::tree_attention_backward", mutates_args=())
def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, plan: Tensor,
    ends: Tensor, positions: Tensor, scale: float, window: int, softcap: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of q, k and v in the dtype of the output's gradient."""
    (nodes, heads, dim), kv_heads = q.shape, k.shape[1]
    d_query, d_key, d_value = _gradients(grad, q, k, v)
    if nodes == 0:
        return d_query, d_key, d_value
    q, k, v, grad = unit_stride(q), unit_stride(k), unit_stride(v), grad.contiguous()
    delta = torch.empty_like(sums)
    group = heads // kv_heads
    tile = choose_tile(QUERY_TILES, FLOAT32_TILE, q.dtype, dim, group)
    query_kernel[(kv_heads, plan.shape[0])](
        q, k, v, out, grad, sums, delta, ends, positions, plan, d_query, scale,
        nodes, plan.shape[1] - 2, *_strides(q, k, v),
        group, dim, window, softcap, tile.rows, tile.keys, pad(dim),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    tile = choose_tile(KEY_TILES, FLOAT32_TILE, q.dtype, dim, group)
    key_kernel[(kv_heads, cdiv(nodes, tile.keys))](
        q, k, v, grad, sums, delta, ends, positions, d_key, d_value, scale,
        nodes, *_strides(q, k, v),
        group, dim, window, softcap, tile.rows, tile.keys, pad(dim),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return d_query, d_key, d_value


@_backward.register_fake
def _gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Return empty tensors for the gradients."""
    d_query, d_key, d_value = (
        torch.empty(x.shape, dtype=grad.dtype, device=q.device) for x in (q, k, v)
    )
    return d_query, d_key, d_value


class _TreeAttention(torch.autograd.Function):
    """Attention that keeps its operands in the compute dtype and returns float32 gradients."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, ends: Tensor, roots: Tensor, positions: Tensor,
        dtype: torch.dtype, scale: float, window: int, softcap: float, sinks: Tensor | None,
    ) -> Tensor:  # fmt: skip
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        out, sums, plan = _forward(q, k, v, ends, roots, positions, scale, window, softcap, sinks)
        ctx.save_for_backward(q, k, v, out, sums, plan, ends, positions)
        ctx.settings = (scale, window, softcap)
        # A copy even of float32: torch.compile (2.11) cuts off the gradient of an output that is
        # also kept for the backward pass.
        return out.to(torch.float32, copy=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # Beside 16-bit operands gradients are bfloat16: they can leave float16's range.
        q, *saved = ctx.saved_tensors
        grad = grads[0].to(torch.float32 if q.dtype == torch.float32 else torch.bfloat16)
        gradients = _backward(grad, q, *saved, *ctx.settings)
        return (*(gradient.float() for gradient in gradients), *[None] * 8)


def tree_attention(
    q: Tensor, k: Tensor, v: Tensor, ends: Tensor, roots: Tensor, positions: Tensor,
    dtype: torch.dtype, scale: float, window: int, softcap: float, sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    """Attend within a prefix forest; return ``[N, H, D]`` in float32, differentiable in q, k, v.

    Node i of the forest (``[N]`` int32 tensors) sees node j iff ``j <= i < ends[j]``, and iff
    ``positions[i] - positions[j] < window`` unless the window is 0; ``roots[i]`` is the root of
    i's tree. ``dtype`` is the dtype of the dot products; gradients come as float32, as they may be
    out of float16's range.
    """
    arguments = (ends, roots, positions, dtype, scale, window, softcap, sinks)
    return _TreeAttention.apply(q, k, v, *arguments)  # type: ignore[no-any-return]
