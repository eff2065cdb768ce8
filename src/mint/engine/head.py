"""The unembedding: from hidden states to logprobs of chosen tokens, never all logits at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .lora import Adapter, add_lora
from .precision import FrozenLinear, apply_linear

_CHUNK_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Head:
    """The base model's unembedding with its architecture's own last touches to the logits."""

    name: str
    module: FrozenLinear
    softcap: float | None
    multiplier: float

    def logits(self, hidden: Tensor, adapter: Adapter | None) -> Tensor:
        """Float32 logits [rows, vocabulary] of hidden states [rows, H]."""
        output = apply_linear(self.module, hidden)
        if adapter is not None and self.name in adapter.pairs:
            output = add_lora(output, hidden, adapter.pairs[self.name], adapter.scale)
        if self.multiplier != 1.0:
            output = output * self.multiplier
        if self.softcap is not None:
            output = self.softcap * torch.tanh(output / self.softcap)
        return output

    def chunk_rows(self) -> int:
        """How many rows of logits to hold at a time."""
        return max(16, _CHUNK_BYTES // (4 * self.module.weight.shape[0]))

    def target_logprobs(
        self, hidden: Tensor, nodes: Tensor, targets: Tensor, adapter: Adapter | None
    ) -> Tensor:
        """``log p(targets[i] | hidden[nodes[i]])``, differentiable in hidden and the adapter.

        ``nodes`` is sorted. A node may have several targets: its logits are computed once.
        """
        pair = adapter.pairs.get(self.name, ()) if adapter is not None else ()
        return _TargetLogprobs.apply(self, adapter, hidden, nodes, targets, *pair)  # type: ignore[no-any-return,no-untyped-call]


class _TargetLogprobs(torch.autograd.Function):
    """Logits are made chunk by chunk, and made again in the backward pass where a gradient is."""

    @staticmethod
    def forward(
        ctx: Any, head: Head, adapter: Adapter | None, hidden: Tensor, nodes: Tensor,
        targets: Tensor, *pair: Tensor,
    ) -> Tensor:  # fmt: skip
        ctx.head, ctx.adapter = head, adapter
        ctx.save_for_backward(hidden, nodes, targets)
        result = torch.empty(len(nodes), device=hidden.device)
        used, rows_of = torch.unique_consecutive(nodes, return_inverse=True)
        for chunk, entries in _chunks(rows_of, len(used), head.chunk_rows()):
            logits = head.logits(hidden[used[chunk]], adapter)
            rows = rows_of[entries] - chunk.start
            result[entries] = logits[rows, targets[entries]] - logits.logsumexp(-1)[rows]
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        head: Head = ctx.head
        adapter: Adapter | None = ctx.adapter
        hidden, nodes, targets = ctx.saved_tensors
        pair = adapter.pairs.get(head.name, ()) if adapter is not None else ()
        pair_grads = [torch.zeros_like(tensor) for tensor in pair]
        hidden_grad = torch.zeros_like(hidden)
        active = grad.nonzero().squeeze(-1)
        grad, targets = grad[active], targets[active]
        used, rows_of = torch.unique_consecutive(nodes[active], return_inverse=True)
        for chunk, entries in _chunks(rows_of, len(used), head.chunk_rows()):
            rows = rows_of[entries] - chunk.start
            with torch.enable_grad():
                piece = hidden[used[chunk]].detach().requires_grad_()
                logits = head.logits(piece, adapter)
            total = torch.zeros(len(piece), device=grad.device).index_add_(0, rows, grad[entries])
            slope = torch.softmax(logits.detach(), -1).mul_(-total[:, None])
            slope.index_put_((rows, targets[entries]), grad[entries], accumulate=True)
            piece_grad, *more = torch.autograd.grad(logits, [piece, *pair], slope)
            hidden_grad[used[chunk]] = piece_grad
            for sum_, part in zip(pair_grads, more, strict=True):
                sum_ += part
        return None, None, hidden_grad, None, None, *pair_grads


def _chunks(rows_of: Tensor, count: int, size: int) -> list[tuple[slice, slice]]:
    """Cut ``count`` rows into chunks, each with the range of (sorted) entries that point to it."""
    starts = range(0, count, size)
    bounds = torch.tensor([*starts, count], device=rows_of.device)
    cuts = torch.searchsorted(rows_of, bounds).tolist()
    return [
        (slice(start, min(start + size, count)), slice(cuts[i], cuts[i + 1]))
        for i, start in enumerate(starts)
    ]
