"""Logprobs of chosen tokens and entropies, from hidden states, never with all logits at once.

Logits are computed chunk by chunk, and again in the backward pass where a gradient is. With z the
logits over the temperature, S the tokens that a position may choose among (all, or those that it
kept) and p = softmax of z over S:

    log p_t        has the gradient  [j = t] - p_j        by z_j
    H = - sum p log p                - p_j (log p_j + H)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .context import Lora, TrainedLora
from .head import Head


@dataclass(frozen=True)
class Targets:
    """Tokens to score: target i is read off the hidden state of node i.

    ``nodes`` is sorted; a node may have several targets, and its logits are computed once. A row of
    ``kept`` [E, K] holds the tokens that a position chose among, filled up with -1; one of nothing
    but -1 chose among all.
    """

    nodes: Tensor
    tokens: Tensor
    kept: Tensor | None = None
    temperature: float = 1.0
    entropy: bool = False  # whether entropies are wanted


def target_logprobs(
    head: Head, hidden: Tensor, nodes: Tensor, tokens: Tensor, lora: Lora
) -> Tensor:
    """Return ``log p(tokens[i] | hidden[nodes[i]])``, differentiable in hidden and adapter."""
    return score_targets(head, hidden, Targets(nodes, tokens), lora)[0]


def score_targets(
    head: Head, hidden: Tensor, targets: Targets, lora: Lora
) -> tuple[Tensor, Tensor | None]:
    """Return the logprob of each target and, where wanted, the entropy at its position."""
    pair = head.linear.pairs if isinstance(lora, TrainedLora) else ()
    logprobs, entropies = _TargetLogprobs.apply(head, lora, targets, hidden, *pair)  # type: ignore[no-untyped-call]
    return logprobs, entropies if targets.entropy else None


class _TargetLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, head: Head, lora: Lora, targets: Targets, hidden: Tensor, *pair: Tensor
    ) -> tuple[Tensor, Tensor]:
        nodes, tokens = targets.nodes, targets.tokens
        logprobs = torch.empty(len(nodes), device=hidden.device)
        entropies = torch.empty(len(nodes) if targets.entropy else 0, device=hidden.device)
        sums = torch.zeros(len(hidden), device=hidden.device)
        used, rows_of = torch.unique_consecutive(nodes, return_inverse=True)
        chunks = _chunks(rows_of, len(used), head.chunk_rows())
        for chunk, entries in chunks:
            logits = _heated(head.logits(hidden[used[chunk]], lora), targets.temperature)
            rows = rows_of[entries] - chunk.start
            total = head.logsumexp(logits)
            sums[used[chunk]] = total
            logprobs[entries] = logits[rows, tokens[entries]] - total[rows]
            if targets.entropy:
                entropies[entries] = head.entropy(logits, total)[rows]
            if targets.kept is not None:
                kept = _Kept.of(logits, rows, targets.kept[entries])
                place = kept.entries + entries.start
                own = logits[kept.rows, tokens[place]]
                logprobs[place] = own - kept.logsumexp
                if targets.entropy:
                    entropies[place] = kept.entropy
        ctx.head, ctx.lora, ctx.targets = head, lora, targets
        # One chunk of logits is kept for the backward pass: on a CPU a batch rarely has more.
        ctx.known = (used, logits) if len(chunks) == 1 and not hidden.is_cuda else None
        ctx.save_for_backward(hidden, sums, *pair)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, wanted: Tensor) -> tuple[Tensor | None, ...]:
        head: Head = ctx.head
        targets: Targets = ctx.targets
        temperature = targets.temperature
        hidden, sums, *pair = ctx.saved_tensors
        pair_grads = [torch.zeros_like(tensor) for tensor in pair]
        hidden_grad = torch.zeros_like(hidden)
        has_entropy = targets.entropy and bool(wanted.any())
        counts = grad != 0
        if has_entropy:
            counts |= wanted != 0
        active = counts.nonzero().squeeze(-1)
        grad, tokens = grad[active], targets.tokens[active]
        wanted = wanted[active] if has_entropy else torch.zeros_like(grad)
        kept = None if targets.kept is None else targets.kept[active]
        chosen = None if kept is None else (kept >= 0).any(-1)  # among some tokens only
        over_all = [g if chosen is None else g.masked_fill(chosen, 0.0) for g in (grad, wanted)]
        used, rows_of = torch.unique_consecutive(targets.nodes[active], return_inverse=True)
        weight = head.linear.weight.to(head.linear.precision.gradients)
        for chunk, entries in _chunks(rows_of, len(used), head.chunk_rows()):
            piece = hidden[used[chunk]]
            rows = rows_of[entries] - chunk.start
            known = _known(ctx.known, used[chunk])
            logits, inner = head.raw_logits(piece, ctx.lora, known)
            if known is None:
                logits = _heated(logits, temperature)
            total, bonus = (_row_sums(g[entries], rows, len(piece)) for g in over_all)
            of_all = sums[used[chunk]]
            if has_entropy:
                entropy = head.entropy(logits, of_all)
                slope = head.slope_with_entropy(logits, of_all, total, entropy, bonus, temperature)
            else:
                slope = head.slope(logits, of_all, total, temperature)
            head.add_to_slope(slope, logits, rows, tokens[entries], grad[entries], temperature)
            if kept is not None:
                some = _Kept.of(logits, rows, kept[entries])
                own = some.slope(grad[entries][some.entries], wanted[entries][some.entries])
                cells = (*some.cells, own[some.inside])
                head.add_to_slope(slope, logits, *cells, temperature)
            results = head.gradients(slope, piece, inner, ctx.lora, weight)
            hidden_grad[used[chunk]] = results[0]
            for sum_, part in zip(pair_grads, results[1:], strict=True):
                sum_ += part
        return None, None, None, hidden_grad, *pair_grads


@dataclass(frozen=True)
class _Kept:
    """The entries of a chunk that chose among some tokens only, and their logits."""

    entries: Tensor  # [e] of the chunk's
    rows: Tensor  # [e] of the chunk's logits
    ids: Tensor  # [e, K], -1 for none
    logits: Tensor  # [e, K], -inf for none

    @classmethod
    def of(cls, logits: Tensor, rows: Tensor, kept: Tensor) -> _Kept:
        entries = (kept >= 0).any(-1).nonzero().squeeze(-1)
        ids, rows = kept[entries], rows[entries]
        found = logits[rows[:, None], ids.clamp(min=0)].masked_fill(ids < 0, float("-inf"))
        return cls(entries, rows, ids, found)

    @property
    def inside(self) -> Tensor:
        return self.ids >= 0

    @property
    def cells(self) -> tuple[Tensor, Tensor]:
        """Row and column of every kept logit."""
        return self.rows[:, None].expand_as(self.ids)[self.inside], self.ids[self.inside]

    @property
    def logsumexp(self) -> Tensor:
        return self.logits.logsumexp(-1)

    @property
    def logprobs(self) -> Tensor:
        """Logprobs [e, K], 0 where there is no token."""
        return (self.logits - self.logsumexp[:, None]).masked_fill(~self.inside, 0.0)

    @property
    def probs(self) -> Tensor:
        return self.logits.softmax(-1)

    @property
    def entropy(self) -> Tensor:
        return -(self.probs * self.logprobs).sum(-1)

    def slope(self, grad: Tensor, wanted: Tensor) -> Tensor:
        """Return the gradient of the kept logits, but for the targets' own part of it."""
        entropy_slope = wanted[:, None] * (self.logprobs + self.entropy[:, None])
        return -self.probs * (grad[:, None] + entropy_slope)


def _heated(logits: Tensor, temperature: float) -> Tensor:
    """Divide by the temperature."""
    return logits if temperature == 1 else logits / temperature


def _row_sums(values: Tensor, rows: Tensor, count: int) -> Tensor:
    return torch.zeros(count, device=values.device).index_add_(0, rows, values)


def _known(known: tuple[Tensor, Tensor] | None, nodes: Tensor) -> Tensor | None:
    """Return the logits of some nodes, of those that the forward pass kept."""
    if known is None:
        return None
    used, logits = known
    return logits[torch.searchsorted(used, nodes)]


def _chunks(rows_of: Tensor, count: int, size: int) -> list[tuple[slice, slice]]:
    """Cut ``count`` rows into chunks, each with the range of (sorted) entries that point to it."""
    starts = range(0, count, size)
    bounds = torch.tensor([*starts, count], device=rows_of.device)
    cuts = torch.searchsorted(rows_of, bounds).tolist()
    return [
        (slice(start, min(start + size, count)), slice(cuts[i], cuts[i + 1]))
        for i, start in enumerate(starts)
    ]
