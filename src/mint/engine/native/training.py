"""The kernels of ``training.c``, as functions of tensors; differentiable where a pass needs it."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mint.engine.messages import IntArray
from mint.engine.training.tree import PrefixTree

from .build import call
from .layers import gate, norm
from .products import Packed

LANES = 16  # widths are multiples of this


def product(a: Tensor, b: Tensor, out: Tensor, adds: bool = False) -> Tensor:
    """Write the product of a [m, k] and b [k, n] to out, or add it; n is a multiple of LANES.

    The rows of b and out are contiguous; a may be transposed.
    """
    (m, depth), n = a.shape, b.shape[1]
    rows = (b, b.stride(0), out, out.stride(0))
    call("train_product", m, n, depth, a, a.stride(0), a.stride(1), *rows, int(adds))
    return out


class Norm(torch.autograd.Function):
    """RMSNorm of rows, differentiable in them alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        scales = x.new_empty(x.shape[:-1])
        ctx.save_for_backward(x, weight, scales)
        return norm(x, weight, eps, scales)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scales = ctx.saved_tensors
        grad, out = grads[0].contiguous(), torch.empty_like(x)
        call("train_norm_backward", scales.numel(), x.shape[-1], grad, x, weight, scales, out)
        return out, None, None


class Gated(torch.autograd.Function):
    """``silu(gate) * up`` of gate and up side by side."""

    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        ctx.save_for_backward(both)
        return gate(both)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        [both] = ctx.saved_tensors
        out = torch.empty_like(both)
        grad = grads[0].contiguous()
        call("train_gated_backward", len(both), both.shape[1] // 2, grad, both, out)
        return out


class LoraProduct(torch.autograd.Function):
    """Rows times a frozen weight and one adapter, differentiable in x, A and B.

    ``backwards`` returns the packed transpose of the weight. The adapter's products are float32,
    those of each layer of a joint product by themselves.
    """

    @staticmethod
    def forward(
        ctx: Any, packed: Packed, backwards: Callable[[], Packed], scale: float, x: Tensor,
        *pairs: Tensor,
    ) -> Tensor:  # fmt: skip
        x = x.contiguous()
        y = packed.multiply(x)
        rank, height = len(pairs[0]), _height(pairs)
        a = x.new_zeros(x.shape[1], height * len(packed.sizes))
        for number, pair in enumerate(pairs[::2]):
            a[:, number * height : number * height + rank] = pair.T
        inner = product(x, a.mul_(scale), x.new_empty(len(x), a.shape[1]))
        columns = torch.split(y, packed.sizes, 1)
        for number, (part, b) in enumerate(zip(columns, pairs[1::2], strict=True)):
            own = inner[:, number * height : number * height + rank]
            product(own, b.T.contiguous(), part, adds=True)
        ctx.sizes, ctx.backwards, ctx.scale = packed.sizes, backwards, scale
        ctx.save_for_backward(x, inner, *pairs)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, inner, *pairs = ctx.saved_tensors
        grad = grads[0].contiguous()
        x_grad = ctx.backwards().multiply(grad) if ctx.needs_input_grad[3] else None
        rank, height, results = len(pairs[0]), _height(pairs), []
        inner_grad = torch.empty_like(inner)
        for number, columns in enumerate(torch.split(grad, ctx.sizes, 1)):
            a, b = pairs[2 * number : 2 * number + 2]
            place = slice(number * height, number * height + rank)
            scaled = b.new_zeros(len(b), height)
            torch.mul(b, ctx.scale, out=scaled[:, :rank])
            product(columns, scaled, inner_grad[:, number * height : (number + 1) * height])
            own = inner_grad[:, place]
            if x_grad is not None:
                product(own, a, x_grad, adds=True)
            b_grad = product(inner[:, place].T, columns, b.new_empty(b.T.shape))
            results += [product(own.T, x, torch.empty_like(a)), b_grad.T.contiguous()]
        return None, None, None, x_grad, *results


def _height(pairs: Sequence[Tensor]) -> int:
    """Return the rank, rounded up to whole vectors."""
    return -(-len(pairs[0]) // LANES) * LANES


def softmax_(logits: Tensor, temperature: float) -> Tensor:
    """Turn rows of logits into probabilities at a temperature; return their logsumexp."""
    sums = logits.new_empty(len(logits))
    call("train_softmax", *logits.shape, logits, temperature, sums)
    return sums


class _Forest(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("nodes", "heads", "key_heads", "size")),
        *((name, ctypes.c_int64) for name in ("blocks", "most_keys", "most_rows")),
        *((name, ctypes.c_void_p) for name in ("starts", "offsets", "keys", "ends", "positions")),
        ("window", ctypes.c_int64),
        ("scale", ctypes.c_float),
    ]


class _Heads(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("node", ctypes.c_int64), ("head", ctypes.c_int64)]


def _heads(x: Tensor) -> _Heads:
    return _Heads(x.data_ptr(), x.stride(0), x.stride(1))


class Forest:
    """A prefix forest, cut into blocks of nodes: what each block sees."""

    def __init__(
        self, tree: PrefixTree, blocks: list[tuple[int, int]], seen: list[IntArray]
    ) -> None:
        self.nodes, self.blocks = len(tree.tokens), len(blocks)
        self.longest = max(stop - start for start, stop in blocks)
        self.most_keys = max(map(len, seen))
        arrays = (
            np.array([start for start, _ in blocks] + [self.nodes]),
            np.cumsum([0, *map(len, seen)]),
            np.concatenate(seen),
            tree.ends,
            tree.positions,
        )
        self._arrays = [np.ascontiguousarray(array, np.int64) for array in arrays]

    def sized(self, q: Tensor, k: Tensor, window: int, scale: float) -> _Forest:
        """Return what the kernels read, for heads of this number and size."""
        (_, heads, size), key_heads = q.shape, k.shape[1]
        rows = self.longest * heads // key_heads
        sizes = (self.nodes, heads, key_heads, size, self.blocks, self.most_keys, rows)
        return _Forest(*sizes, *(array.ctypes.data for array in self._arrays), window, scale)


class TreeAttention(torch.autograd.Function):
    """Attention of q [N, H, D] to k and v [N, Hkv, D] in a forest."""

    @staticmethod
    def forward(
        ctx: Any, forest: Forest, window: int, scale: float, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        out, sums = attend(forest, window, scale, q, k, v)
        ctx.forest, ctx.settings = forest, (window, scale)
        ctx.save_for_backward(q, k, v, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, sums = ctx.saved_tensors
        window, scale = ctx.settings
        results = (torch.empty(q.shape), torch.empty(k.shape), torch.empty(v.shape))
        attend_backward(ctx.forest, window, scale, (q, k, v), out, sums, grads[0], results)
        return None, None, None, *results


class TurnedAttention(torch.autograd.Function):
    """The same of rows of queries, keys and values [N, (H + 2 Hkv) D], turned by their position.

    They are turned in place: whoever computed the rows must not need them.
    """

    @staticmethod
    def forward(
        ctx: Any, forest: Forest, scale: float, size: int, key_heads: int, rows: Tensor,
        cosine: Tensor, sine: Tensor,
    ) -> Tensor:  # fmt: skip
        turn(rows, size, key_heads, cosine, sine)
        out, sums = attend(forest, 0, scale, *cut_heads(rows, size, key_heads))
        ctx.forest, ctx.settings = forest, (scale, size, key_heads)
        ctx.save_for_backward(rows, cosine, sine, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rows, cosine, sine, out, sums = ctx.saved_tensors
        scale, size, key_heads = ctx.settings
        result = torch.empty_like(rows)
        parts, results = (cut_heads(x, size, key_heads) for x in (rows, result))
        attend_backward(ctx.forest, 0, scale, parts, out, sums, grads[0], results)
        turn(result, size, key_heads, cosine, sine, backwards=True)
        return None, None, None, None, result, None, None


Parts = tuple[Tensor, Tensor, Tensor]


def cut_heads(rows: Tensor, size: int, key_heads: int) -> Parts:
    """Return the queries, keys and values of joint rows, each [N, heads, size]."""
    heads = rows.view(len(rows), -1, size)
    first, last = heads.shape[1] - 2 * key_heads, heads.shape[1] - key_heads
    return heads[:, :first], heads[:, first:last], heads[:, last:]


def turn(
    rows: Tensor, size: int, key_heads: int, cosine: Tensor, sine: Tensor, backwards: bool = False
) -> None:
    """Apply rotary positions [N, size] to queries and keys, in place."""
    heads = rows.shape[1] // size - key_heads
    settings = (rows, rows.stride(0), cosine, sine, int(backwards))
    call("train_turn", len(rows), heads, size, *settings)


def attend(
    forest: Forest, window: int, scale: float, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the output [N, H, D] and the logsumexp of the scores [N, H]."""
    out, sums = torch.empty(q.shape), torch.empty(q.shape[:2])
    sized = forest.sized(q, k, window, scale)
    call("train_attention", sized, *map(_heads, (q, k, v)), out, sums)
    return out, sums


def attend_backward(
    forest: Forest, window: int, scale: float, parts: Parts, out: Tensor, sums: Tensor,
    grad: Tensor, results: Parts,
) -> None:  # fmt: skip
    """Write the gradients of queries, keys and values to ``results``."""
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    q, k, _ = parts
    threads = torch.get_num_threads()
    partial = torch.empty(threads, forest.nodes, 2, *k.shape[1:])
    heads = (*map(_heads, parts), out, sums, *map(_heads, (grad, *results)))
    sized = forest.sized(q, k, window, scale)
    call("train_attention_backward", sized, *heads, partial, threads)
