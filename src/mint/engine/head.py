"""The unembedding: from hidden states to logprobs of chosen tokens, never all logits at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .context import Lora, TrainedLora
from .linear import FrozenLinear, product_gradients
from .precision import mm, multiply, multiply_gradient

_CHUNK_BYTES = 256 * 2**20  # of logits
_GPU_CHUNK_BYTES = 2**30


@dataclass(frozen=True)
class Head:
    """The base model's unembedding with its architecture's own last touches to the logits."""

    linear: FrozenLinear
    softcap: float | None
    multiplier: float

    @property
    def name(self) -> str:
        return self.linear.sites[0].name

    @property
    def vocabulary(self) -> int:
        return int(self.linear.weight.shape[0])

    def logits(self, hidden: Tensor, lora: Lora) -> Tensor:
        """Return float32 logits [rows, vocabulary] of hidden states [rows, H]."""
        return self._finish(self.linear.product(hidden, lora))

    def _finish(self, output: Tensor) -> Tensor:
        """Add what an architecture does to its logits: a bias, a factor, a soft cap."""
        if self.linear.bias is not None:
            output = output + self.linear.bias
        if self.multiplier != 1.0:
            output = output * self.multiplier
        if self.softcap is not None:
            output = self.softcap * torch.tanh(output / self.softcap)
        return output

    def logsumexp(self, logits: Tensor) -> Tensor:
        """Return the logsumexp of each row, in few passes over a large vocabulary."""
        return _fused(_logsumexp, logits)(logits)

    def raw_logits(
        self, hidden: Tensor, lora: Lora, known: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the logits, computed again unless known, and what B multiplies."""
        linear, precision = self.linear, self.linear.precision
        inner = None
        if isinstance(lora, TrainedLora) and linear.pairs:
            a = linear.pairs[0].to(precision.lora)
            inner = (mm(hidden.to(precision.lora), a.T) * lora.scale).to(precision.lora)
        if known is not None:
            return known, inner
        output = multiply(hidden, linear.weight, precision)
        if inner is not None:
            output += mm(inner, linear.pairs[1].to(precision.lora).T)
        return self._finish(output), inner

    def slope(self, logits: Tensor, sums: Tensor, total: Tensor) -> Tensor:
        """Return the gradient of the product's output, but for the targets' own part of it.

        It comes in the format of gradients: it is the largest tensor of a training pass.
        """
        dtype = self.linear.precision.lora_gradients
        return _fused(_slope, logits)(logits, sums, total, self.multiplier, self.softcap, dtype)

    def add_targets(
        self, slope: Tensor, logits: Tensor, rows: Tensor, targets: Tensor, grad: Tensor
    ) -> None:
        """Add the targets' own part to the gradient of the product's output."""
        grad = grad * self.multiplier
        if self.softcap is not None:
            grad = grad * (1 - (logits[rows, targets] / self.softcap) ** 2)
        slope.index_put_((rows, targets), grad.to(slope.dtype), accumulate=True)

    def gradients(
        self, slope: Tensor, hidden: Tensor, inner: Tensor | None, lora: Lora
    ) -> list[Tensor]:
        """Return the gradients of hidden, A and B, given that of the product's output."""
        linear, precision = self.linear, self.linear.precision
        if inner is None or not isinstance(lora, TrainedLora):
            return [multiply_gradient(slope, linear.weight, precision)]
        low = hidden.to(precision.lora)
        return product_gradients(
            precision, lora.scale, linear.sizes, slope, low, inner, linear.weight, linear.pairs
        )

    def chunk_rows(self) -> int:
        """Return how many rows of logits to hold at a time."""
        size = _GPU_CHUNK_BYTES if self.linear.weight.is_cuda else _CHUNK_BYTES
        return max(16, size // (4 * self.vocabulary))

    def target_logprobs(self, hidden: Tensor, nodes: Tensor, targets: Tensor, lora: Lora) -> Tensor:
        """Return ``log p(targets[i] | hidden[nodes[i]])``, differentiable in hidden and adapter.

        ``nodes`` is sorted. A node may have several targets: its logits are computed once.
        """
        pair = self.linear.pairs if isinstance(lora, TrainedLora) else ()
        return _TargetLogprobs.apply(self, lora, hidden, nodes, targets, *pair)  # type: ignore[no-any-return,no-untyped-call]


class _TargetLogprobs(torch.autograd.Function):
    """Logits are computed chunk by chunk, and again in the backward pass where a gradient is."""

    @staticmethod
    def forward(
        ctx: Any, head: Head, lora: Lora, hidden: Tensor, nodes: Tensor, targets: Tensor,
        *pair: Tensor,
    ) -> Tensor:  # fmt: skip
        result = torch.empty(len(nodes), device=hidden.device)
        sums = torch.zeros(len(hidden), device=hidden.device)
        used, rows_of = torch.unique_consecutive(nodes, return_inverse=True)
        chunks = _chunks(rows_of, len(used), head.chunk_rows())
        for chunk, entries in chunks:
            logits = head.logits(hidden[used[chunk]], lora)
            rows = rows_of[entries] - chunk.start
            total = head.logsumexp(logits)
            sums[used[chunk]] = total
            result[entries] = logits[rows, targets[entries]] - total[rows]
        ctx.head, ctx.lora = head, lora
        # One chunk of logits is kept for the backward pass: on a CPU a batch rarely has more.
        ctx.kept = (used, logits) if len(chunks) == 1 and not hidden.is_cuda else None
        ctx.save_for_backward(hidden, nodes, targets, sums, *pair)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        head: Head = ctx.head
        hidden, nodes, targets, sums, *pair = ctx.saved_tensors
        pair_grads = [torch.zeros_like(tensor) for tensor in pair]
        hidden_grad = torch.zeros_like(hidden)
        active = grad.nonzero().squeeze(-1)
        grad, targets = grad[active], targets[active]
        used, rows_of = torch.unique_consecutive(nodes[active], return_inverse=True)
        for chunk, entries in _chunks(rows_of, len(used), head.chunk_rows()):
            piece = hidden[used[chunk]]
            rows = rows_of[entries] - chunk.start
            total = torch.zeros(len(piece), device=grad.device).index_add_(0, rows, grad[entries])
            logits, inner = head.raw_logits(piece, ctx.lora, _kept(ctx.kept, used[chunk]))
            slope = head.slope(logits, sums[used[chunk]], total)
            head.add_targets(slope, logits, rows, targets[entries], grad[entries])
            results = head.gradients(slope, piece, inner, ctx.lora)
            hidden_grad[used[chunk]] = results[0]
            for sum_, part in zip(pair_grads, results[1:], strict=True):
                sum_ += part
        return None, None, hidden_grad, None, None, *pair_grads


def _kept(kept: tuple[Tensor, Tensor] | None, nodes: Tensor) -> Tensor | None:
    """Return the logits of some nodes, of those that the forward pass kept."""
    if kept is None:
        return None
    used, logits = kept
    return logits[torch.searchsorted(used, nodes)]


def _logsumexp(logits: Tensor) -> Tensor:
    peak = logits.amax(-1, keepdim=True)
    return (logits - peak).exp().sum(-1).log() + peak.squeeze(-1)


def _slope(
    logits: Tensor, sums: Tensor, total: Tensor, multiplier: float, softcap: float | None,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    slope = (logits - sums[:, None]).exp() * (-multiplier * total)[:, None]
    if softcap is not None:
        slope = slope * (1 - (logits / softcap) ** 2)
    return slope.to(dtype)


_compiled: dict[Callable[..., Tensor], Callable[..., Tensor]] = {}


def _fused(function: Callable[..., Tensor], like: Tensor) -> Callable[..., Tensor]:
    """Return a function as one kernel where tensors are on a GPU."""
    if not like.is_cuda:
        return function
    if function not in _compiled:
        _compiled[function] = torch.compile(function, dynamic=True)
    return _compiled[function]


def _chunks(rows_of: Tensor, count: int, size: int) -> list[tuple[slice, slice]]:
    """Cut ``count`` rows into chunks, each with the range of (sorted) entries that point to it."""
    starts = range(0, count, size)
    bounds = torch.tensor([*starts, count], device=rows_of.device)
    cuts = torch.searchsorted(rows_of, bounds).tolist()
    return [
        (slice(start, min(start + size, count)), slice(cuts[i], cuts[i + 1]))
        for i, start in enumerate(starts)
    ]
