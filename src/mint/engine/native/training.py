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


def product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Write the product of a [m, k] and b [k, n] to out; n is a multiple of LANES.

    The rows of b and out are contiguous; a may be transposed.
    """
    (m, depth), n = a.shape, b.shape[1]
    rows = (b, b.stride(0), out, out.stride(0))
    call("train_product", m, n, depth, a, a.stride(0), a.stride(1), *rows)
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
        x, height = x.contiguous(), _height(pairs)
        a = _stack(pairs[::2], height).mul_(scale)
        inner = product(x, a.T.contiguous(), x.new_empty(len(x), len(a)))
        y = packed.multiply_adding(x, inner, _side_by_side(pairs[1::2], height))
        ctx.sizes, ctx.backwards, ctx.scale = packed.sizes, backwards, scale
        ctx.save_for_backward(x, inner, *pairs)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, inner, *pairs = ctx.saved_tensors
        grad = grads[0].contiguous()
        rank, height, results = len(pairs[0]), _height(pairs), []
        inner_grad = torch.empty_like(inner)
        for number, columns in enumerate(torch.split(grad, ctx.sizes, 1)):
            a, b = pairs[2 * number : 2 * number + 2]
            place = slice(number * height, number * height + rank)
            scaled = b.new_zeros(len(b), height)
            torch.mul(b, ctx.scale, out=scaled[:, :rank])
            product(columns, scaled, inner_grad[:, number * height : (number + 1) * height])
            b_grad = product(inner[:, place].T, columns, b.new_empty(b.T.shape))
            a_grad = product(inner_grad[:, place].T, x, torch.empty_like(a))
            results += [a_grad, b_grad.T.contiguous()]
        x_grad = None
        if ctx.needs_input_grad[3]:
            a = _stack(pairs[::2], height)
            x_grad = ctx.backwards().multiply_adding(grad, inner_grad, a)
        return None, None, None, x_grad, *results


def _stack(parts: Sequence[Tensor], height: int) -> Tensor:
    """Return matrices [rank, in] one below the other, each filled up to a height."""
    stacked = parts[0].new_zeros(len(parts), height, parts[0].shape[1])
    for place, part in zip(stacked, parts, strict=True):
        place[: len(part)] = part
    return stacked.flatten(0, 1)


def _side_by_side(parts: Sequence[Tensor], height: int) -> Tensor:
    """Return the transposes of matrices [out, rank] in one row, filled up to a height."""
    joint = parts[0].new_zeros(height, sum(map(len, parts)))
    torch.cat([part.T for part in parts], 1, out=joint[: parts[0].shape[1]])
    return joint


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
        ("rounds", ctypes.c_int32),
    ]


class _Heads(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("node", ctypes.c_int64), ("head", ctypes.c_int64)]


def _heads(x: Tensor) -> _Heads:
    return _Heads(x.data_ptr(), x.stride(0), x.stride(1))


class Forest:
    """A prefix forest, cut into blocks of nodes: what each block sees.

    With ``rounds``, attention rounds keys and values to float16, as the sampler's pool does.
    """

    def __init__(
        self, tree: PrefixTree, blocks: list[tuple[int, int]], seen: list[IntArray], rounds: bool
    ) -> None:
        self.rounds = rounds
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
        arrays = (array.ctypes.data for array in self._arrays)
        return _Forest(*sizes, *arrays, window, scale, self.rounds)


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
    """Tree attention on packed rows of queries, keys and values [N, (H + 2 Hkv) D].

    Applies the rotary embedding in place: the rows must not be needed afterwards.
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
