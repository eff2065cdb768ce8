"""Logprobs of chosen tokens and entropies, from hidden states, never with all logits at once.

Logits are computed chunk by chunk. With z the logits over the temperature, S the tokens that a
position may choose among (all, or those that it kept) and p = softmax of z over S:

    log p_t        has the gradient  [j = t] - p_j        by z_j
    H = - sum p log p                - p_j (log p_j + H)

A hidden state's gradient by log p_t is W_t - sum p_j W_j, whatever the loss: the forward pass
computes the sum while it has the logits, and the backward pass scales it. Where that is not
enough (entropies in the loss, kept tokens, an adapter on the output layer), the backward pass
computes the logits again. Targets are left out of the sum and added by themselves: with p_t near 1,
1 - p_t must not be the difference of two rounded numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mint.engine.messages import IntArray
from mint.engine.model.context import Lora, TrainedLora
from mint.engine.model.head import Head
from mint.engine.model.pauses import pause
from mint.engine.model.precision import to_device
from mint.engine.native.training import softmax_


@dataclass(frozen=True)
class Targets:
    """Tokens to score, each read off the hidden state of a node.

    The targets of a node are neighbours, and its logits are computed once. A row of ``kept`` [E, K]
    holds the tokens that a position chose among, filled up with -1; one of nothing but -1 chose
    among all.
    """

    nodes: Tensor  # [U], each once
    rows: Tensor  # [E]: which of the nodes a target is read off
    starts: list[int]  # the first target of each node, and the number of targets
    tokens: Tensor  # [E]
    copies: Tensor  # [E]: how many targets of its node have the same token
    trained: int  # how many nodes can have a gradient: the first ones
    kept: Tensor | None = None

    @classmethod
    def of(
        cls, nodes: IntArray, tokens: IntArray, device: torch.device, trained: int | None = None,
        kept: IntArray | None = None,
    ) -> Self:  # fmt: skip
        """Lay out targets whose nodes are given one by one."""
        is_first = np.diff(nodes, prepend=-1) != 0
        starts, rows = np.flatnonzero(is_first), np.cumsum(is_first) - 1
        trained = len(starts) if trained is None else trained
        shared = np.flatnonzero(
            ((np.bincount(rows) > 1) & (np.arange(len(starts)) < trained))[rows]
        )
        pairs = rows[shared] * (1 + tokens.max(initial=0)) + tokens[shared]
        _, places, counts = np.unique(pairs, return_inverse=True, return_counts=True)
        copies = np.ones(len(nodes), np.float32)
        copies[shared] = counts[places]
        return cls(
            to_device(nodes[starts], device),
            to_device(rows, device),
            [*starts.tolist(), len(nodes)],
            to_device(tokens, device),
            to_device(copies, device),
            trained,
            None if kept is None else to_device(kept, device),
        )

    def chunks(self, size: int, trained_only: bool = False) -> Iterator[tuple[slice, slice]]:
        """Yield slices of about ``size`` nodes and of their targets, the trained ones first."""
        parts = [(0, self.trained), (self.trained, len(self.nodes))]
        for low, high in parts[:1] if trained_only else parts:
            step = -(-(high - low) // max(1, -(-(high - low) // size)))
            for start in range(low, high, max(step, 1)):
                stop = min(start + step, high)
                yield slice(start, stop), slice(self.starts[start], self.starts[stop])


@dataclass(frozen=True)
class Scoring:
    """What is wanted of the targets: logprobs at a temperature, and maybe entropies."""

    temperature: float = 1.0
    entropy: bool = False
    entropy_gradient: bool = False  # whether the loss depends on the entropies


LOGPROBS = Scoring()


def target_logprobs(
    head: Head, hidden: Tensor, nodes: IntArray, tokens: IntArray, lora: Lora
) -> Tensor:
    """Return ``log p(tokens[i] | hidden[nodes[i]])``, without gradients."""
    targets = Targets.of(nodes, tokens, hidden.device, trained=0)
    return score_targets(head, hidden, targets, lora)[0]


def score_targets(
    head: Head, hidden: Tensor, targets: Targets, lora: Lora, scoring: Scoring = LOGPROBS
) -> tuple[Tensor, Tensor | None]:
    """Return the logprob of each target and, where wanted, the entropy at its position."""
    pair = head.linear.pairs if isinstance(lora, TrainedLora) else ()
    is_plain = not pair and targets.kept is None and not scoring.entropy_gradient
    looks_ahead = is_plain and hidden.requires_grad and torch.is_grad_enabled()
    by_kernels = is_plain and head.has_kernels and not scoring.entropy
    logprobs, entropies = _TargetLogprobs.apply(  # type: ignore[no-untyped-call]
        head, lora, targets, scoring, looks_ahead, by_kernels, hidden, *pair
    )
    return logprobs, entropies if scoring.entropy else None


class _TargetLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, head: Head, lora: Lora, targets: Targets, scoring: Scoring, looks_ahead: bool,
        by_kernels: bool, hidden: Tensor, *pair: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        tokens, temperature = targets.tokens, scoring.temperature
        logprobs = torch.empty(len(tokens), device=hidden.device)
        entropies = torch.empty(len(tokens) if scoring.entropy else 0, device=hidden.device)
        sums = torch.empty(len(targets.nodes), device=hidden.device)
        pulls = hidden.new_empty(targets.trained if looks_ahead else 0, hidden.shape[1])
        own_slopes = torch.full_like(logprobs, head.multiplier / temperature)
        weight = head.pulling_weight() if looks_ahead and not by_kernels else None
        ctx.known = None
        for chunk, entries in targets.chunks(head.chunk_rows(by_kernels)):
            pause()
            logits = head.logits(hidden[targets.nodes[chunk]], lora)
            rows = targets.rows[entries] - chunk.start
            cells = (rows, tokens[entries])
            if by_kernels:
                own = logits[cells] / temperature
                logprobs[entries] = own - softmax_(logits, temperature)[rows]
                if looks_ahead and chunk.start < targets.trained:
                    pulls[chunk] = head.pull_back(logits, cells, temperature)
                continue
            logits = _heated(logits, temperature)
            sums[chunk] = total = head.logsumexp(logits)
            own = logits[cells]
            logprobs[entries] = own - total[rows]
            if scoring.entropy:
                entropies[entries] = head.entropy(logits, total)[rows]
            if targets.kept is not None:
                kept = _Kept.of(logits, rows, targets.kept[entries])
                place = kept.entries + entries.start
                logprobs[place] = own[kept.entries] - kept.logsumexp
                if scoring.entropy:
                    entropies[place] = kept.entropy
            if weight is not None and chunk.start < targets.trained:
                pulls[chunk] = head.pull(logits, total, cells, weight, temperature)
                own_slopes[entries] = head.logit_slope(own, temperature)
            elif chunk == slice(0, targets.trained) and not hidden.is_cuda:
                ctx.known = logits  # all that the backward pass needs: rarely more, on a CPU
        ctx.head, ctx.lora, ctx.targets, ctx.scoring = head, lora, targets, scoring
        ctx.looks_ahead = looks_ahead
        ctx.save_for_backward(hidden, sums, logprobs, pulls, own_slopes, *pair)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, wanted: Tensor) -> tuple[Tensor | None, ...]:
        hidden, sums, logprobs, pulls, own_slopes, *pair = ctx.saved_tensors
        head: Head = ctx.head
        targets: Targets = ctx.targets
        if ctx.looks_ahead:
            known = (hidden, logprobs, pulls, own_slopes)
            return (*[None] * 6, _scale_pulls(head, targets, grad, *known))
        hidden_grad = torch.zeros_like(hidden)
        pair_grads = [torch.zeros_like(tensor) for tensor in pair]
        temperature, has_entropy = ctx.scoring.temperature, ctx.scoring.entropy_gradient
        kept, over_all = targets.kept, [grad, wanted if has_entropy else torch.zeros_like(grad)]
        if kept is not None:
            chosen = (kept >= 0).any(-1)  # those restricted to some tokens
            over_all = [g.masked_fill(chosen, 0.0) for g in over_all]
        weight = head.linear.weight.to(head.linear.precision.gradients)
        for chunk, entries in targets.chunks(head.chunk_rows(), trained_only=True):
            pause()
            piece = hidden[targets.nodes[chunk]]
            rows = targets.rows[entries] - chunk.start
            logits, inner = head.raw_logits(piece, ctx.lora, ctx.known)
            if ctx.known is None:
                logits = _heated(logits, temperature)
            total, bonus = (_row_sums(g[entries], rows, len(piece)) for g in over_all)
            wanted_here = bonus if has_entropy else None
            slope = head.slope(logits, sums[chunk], total, temperature, wanted_here)
            cells = (rows, targets.tokens[entries], grad[entries])
            head.add_to_slope(slope, logits, *cells, temperature)
            if kept is not None:
                some = _Kept.of(logits, rows, kept[entries])
                bonus = wanted[entries] if has_entropy else torch.zeros_like(grad[entries])
                own = some.slope(grad[entries][some.entries], bonus[some.entries])
                head.add_to_slope(slope, logits, *some.cells, own[some.inside], temperature)
            results = head.gradients(slope, piece, inner, ctx.lora, weight)
            hidden_grad[targets.nodes[chunk]] = results[0]
            for sum_, part in zip(pair_grads, results[1:], strict=True):
                sum_ += part
        return (*[None] * 6, hidden_grad, *pair_grads)


def _scale_pulls(
    head: Head, targets: Targets, grad: Tensor, hidden: Tensor, logprobs: Tensor, pulls: Tensor,
    own_slopes: Tensor,
) -> Tensor:  # fmt: skip
    """Return the gradient of the hidden states from what the forward pass computed."""
    count, trained = targets.starts[targets.trained], targets.trained
    rows, tokens, grad = targets.rows[:count], targets.tokens[:count], grad[:count]
    total = _row_sums(grad, rows, trained)
    part = pulls * total[:, None]
    missing = grad - total[rows] * logprobs[:count].exp() / targets.copies[:count]
    own = head.linear.weight[tokens] * (missing * own_slopes[:count])[:, None]
    hidden_grad = torch.zeros_like(hidden)
    hidden_grad[targets.nodes[:trained]] = part.index_add_(0, rows, own)
    return hidden_grad


@dataclass(frozen=True)
class _Kept:
    """The entries of a chunk that chose among some tokens only, and their logits."""

    entries: Tensor  # [e] of the chunk's
    rows: Tensor  # [e] of the chunk's logits
    ids: Tensor  # [e, K], -1 for none
    logits: Tensor  # [e, K], -inf for none

    @classmethod
    def of(cls, logits: Tensor, rows: Tensor, kept: Tensor) -> Self:
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
