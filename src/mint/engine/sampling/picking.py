"""Picking the next token on the device: penalties, temperature, filters, one uniform per row.

Random numbers are counter-based (SplitMix64 of seed, sample and position), so that an answer does
not depend on what else is in its batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from mint.engine.messages import SampleRequest
from mint.engine.native import layers

_CANDIDATES = 1024  # tokens among which a nucleus usually lies
_GOLDEN, _MIX1, _MIX2 = (
    value - (1 << 64) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def uniforms(seeds: Tensor, samples: Tensor, steps: Tensor) -> Tensor:
    """Return numbers in [0, 1) that depend on nothing but the arguments (all int64 [B])."""
    state = _mix(_mix(seeds) ^ _mix((samples << 32) + steps + 1))
    return (_shift(state, 11).double() * 2.0**-53).float().clamp_(max=1 - 2.0**-24)


def _mix(value: Tensor) -> Tensor:
    value = value + _GOLDEN
    value = (value ^ _shift(value, 30)) * _MIX1
    value = (value ^ _shift(value, 27)) * _MIX2
    return value ^ _shift(value, 31)


def _shift(value: Tensor, bits: int) -> Tensor:
    """Shift right as if the numbers had no sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


class RowSettings(NamedTuple):
    """What the token of a row depends on, beside its logits and its position."""

    request: SampleRequest
    seed: int
    sample: int


@dataclass(frozen=True)
class Picks:
    """The sampling parameters of the rows of a batch."""

    temperatures: Tensor  # [B], 0 is greedy
    seeds: Tensor
    samples: Tensor
    top_k: Tensor  # [B], 0 is off
    top_p: Tensor
    min_p: Tensor
    renormalize: Tensor  # [B] bool
    is_filtered: bool  # whether any row uses top_k, top_p or min_p
    is_even: bool  # whether all temperatures are 1
    has_greedy: bool
    top: int  # how many of the likeliest tokens are reported, at most over the rows

    @classmethod
    def of(cls, rows: Sequence[RowSettings], vocabulary: int, device: torch.device) -> Self:
        """Collect the settings of rows."""
        requests, seeds, samples = zip(*rows, strict=True)
        top_k = [min(max(r.top_k, 0), vocabulary) % vocabulary for r in requests]
        temperatures = torch.tensor([r.temperature for r in requests], dtype=torch.float32)

        def column(values: Sequence[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)

        return cls(
            temperatures=temperatures.to(device, non_blocking=True),
            seeds=column([signed(seed) for seed in seeds], torch.int64),
            samples=column(samples, torch.int64),
            top_k=column(top_k, torch.int64),
            top_p=column([r.top_p for r in requests], torch.float32),
            min_p=column([r.min_p for r in requests], torch.float32),
            renormalize=column([r.renormalize and is_filtered(r) for r in requests], torch.bool),
            is_filtered=any(is_filtered(r) for r in requests),
            is_even=all(r.temperature == 1 for r in requests),
            has_greedy=not temperatures.all(),
            top=max(r.topk_sample_logprobs for r in requests),
        )

    @classmethod
    def plain(cls, temperatures: Tensor, seeds: Tensor, samples: Tensor) -> Self:
        """Pick by temperature alone, from tensors that are on the device already."""
        none = temperatures.new_zeros(0)
        return cls(temperatures, seeds, samples, none, none, none, none, False, False, True, 0)


def is_filtered(request: SampleRequest) -> bool:
    """Return whether a request excludes tokens from the choice."""
    return request.top_k > 0 or request.top_p < 1 or request.min_p > 0


def is_penalized(request: SampleRequest) -> bool:
    """Return whether a request has penalties or a logit bias."""
    penalties = (request.frequency_penalty, request.presence_penalty)
    return any(penalties) or request.repetition_penalty != 1 or bool(request.logit_bias)


def signed(seed: int) -> int:
    """Return the 64 bits of a number as a signed integer."""
    return ((seed + (1 << 63)) % (1 << 64)) - (1 << 63)


@dataclass(frozen=True)
class Picked:
    """One token per row, on the device."""

    tokens: Tensor  # [B]
    logprobs: Tensor  # [B]
    top_ids: Tensor | None = None  # [B, K]
    top_logprobs: Tensor | None = None


def pick(logits: Tensor, picks: Picks, steps: Tensor) -> Picked:
    """Pick a token for each row of logits [B, V], at the given position of its answer.

    Logprobs are those of the whole temperature-scaled distribution, as the trainer computes them,
    or after the filters for a row that asked to renormalize. A greedy row reports logprobs at
    temperature 1.
    """
    is_greedy = picks.temperatures == 0
    scaled = logits
    if not picks.is_even:
        scaled = logits / torch.where(is_greedy, 1.0, picks.temperatures)[:, None]
    peak = scaled.amax(-1, keepdim=True)
    weights = (scaled - peak).exp_()
    # A CPU adds the numbers of a single row in another order than those of several.
    total = weights.sum(-1) if weights.is_cuda else _piece_sums(weights)[:, -1].float()
    kept = _filter(weights, total, picks) if picks.is_filtered else weights
    tokens = draw(kept, uniforms(picks.seeds, picks.samples, steps))
    if picks.has_greedy:
        tokens = torch.where(is_greedy, scaled.argmax(-1), tokens)
    mass = total.log()
    if picks.is_filtered:
        mass = torch.where(picks.renormalize, _piece_sums(kept)[:, -1].float().log(), mass)
    logprobs = scaled.gather(-1, tokens[:, None]).squeeze(-1) - peak.squeeze(-1) - mass
    if not picks.top:
        return Picked(tokens, logprobs)
    if picks.is_filtered:
        scaled = torch.where(picks.renormalize[:, None] & (kept == 0), float("-inf"), scaled)
    top = (scaled - peak - mass[:, None]).topk(picks.top)
    return Picked(tokens, logprobs, top.indices, top.values)


def pick_by_kernels(logits: Tensor, rows: Sequence[RowSettings], steps: Tensor) -> Picked:
    """Pick as :func:`pick` does, on a CPU with kernels.

    Whether a row is picked by the kernel depends on its own request alone, so its bits do too.
    """
    requests = [row.request for row in rows]
    temperatures = torch.tensor([r.temperature for r in requests], dtype=torch.float32)
    seeds = torch.tensor([signed(row.seed) for row in rows])
    numbers = uniforms(seeds, torch.tensor([row.sample for row in rows]), steps)
    tokens, logprobs = layers.pick(logits, temperatures, numbers)
    others = [at for at, r in enumerate(requests) if is_filtered(r) or r.topk_sample_logprobs]
    if not others:
        return Picked(tokens, logprobs)
    picks = Picks.of([rows[at] for at in others], logits.shape[-1], logits.device)
    picked = pick(logits[others], picks, steps[others])
    tokens[others], logprobs[others] = picked.tokens, picked.logprobs
    if picked.top_ids is None or picked.top_logprobs is None:
        return Picked(tokens, logprobs)
    shape = (len(rows), picks.top)
    top_ids, top_logprobs = tokens.new_zeros(shape), logprobs.new_zeros(shape)
    top_ids[others], top_logprobs[others] = picked.top_ids, picked.top_logprobs
    return Picked(tokens, logprobs, top_ids, top_logprobs)


def pick_plain(
    logits: Tensor, temperatures: Tensor, seeds: Tensor, samples: Tensor, steps: Tensor
) -> tuple[Tensor, Tensor]:
    """Pick by temperature alone: tokens and logprobs. A GPU compiles this into few kernels."""
    picked = pick(logits, Picks.plain(temperatures, seeds, samples), steps)
    return picked.tokens, picked.logprobs


def draw(weights: Tensor, numbers: Tensor) -> Tensor:
    """Invert the cumulative distribution, in two levels. Never picks a token of weight 0."""
    width = _width(weights.shape[-1])
    pieces = weights.view(len(weights), -1, width)
    sums = _piece_sums(weights)
    target = numbers.double()[:, None] * sums[:, -1:]
    piece = torch.searchsorted(sums, target, right=True).clamp_(max=sums.shape[1] - 1)
    before = torch.where(piece > 0, sums.gather(1, (piece - 1).clamp(min=0)), 0.0)
    inside = pieces.gather(1, piece[:, :, None].expand(-1, -1, width)).squeeze(1)
    running = inside.double().cumsum(-1)
    # Rounding may leave the target beyond the piece's own sum: stay below it.
    rest = torch.minimum(target - before, running[:, -1:] * (1 - 2.0**-40))
    found = torch.searchsorted(running, rest, right=True).clamp_(max=width - 1)  # NaN has no place
    return (piece * width + found).squeeze(1)


def _piece_sums(weights: Tensor) -> Tensor:
    """Return the running sums of rows [B, V] over pieces of equal width."""
    pieces = weights.view(len(weights), -1, _width(weights.shape[-1]))
    return pieces.sum(-1).double().cumsum(-1)


def _width(vocabulary: int) -> int:
    """Return the divisor of the vocabulary that is nearest to its square root."""
    root = int(vocabulary**0.5)
    return next(width for width in range(root, 0, -1) if vocabulary % width == 0)


def _filter(weights: Tensor, total: Tensor, picks: Picks) -> Tensor:
    """Zero what top_k, top_p and min_p leave out; the likeliest token always stays."""
    vocabulary = weights.shape[-1]
    count = min(_CANDIDATES, vocabulary)
    if bool((picks.top_k > count).any()):
        count = vocabulary
    ranked, order = weights.topk(count, dim=-1)
    needs_more = (picks.top_p < 1) & (picks.top_k == 0)
    reached = ranked.double().sum(-1) >= picks.top_p.double() * total
    if count < vocabulary and bool((needs_more & ~reached).any()):
        ranked, order = weights.sort(dim=-1, descending=True)
    rank = torch.arange(ranked.shape[-1], device=weights.device)
    outside = (picks.top_k[:, None] > 0) & (rank >= picks.top_k[:, None])
    before = ranked.double().cumsum(-1) - ranked
    share = torch.where(picks.top_p < 1, picks.top_p.double() * total, float("inf"))
    outside |= before >= share[:, None]
    outside[:, 0] = False
    kept = torch.zeros_like(weights).scatter(-1, order, ranked.masked_fill(outside, 0.0))
    unfiltered = (picks.top_k == 0) & (picks.top_p >= 1)
    kept = torch.where(unfiltered[:, None], weights, kept)
    return kept.masked_fill(kept < picks.min_p[:, None], 0.0)  # the likeliest has weight 1


def penalize(logits: Tensor, row: int, request: SampleRequest, answer: list[int]) -> None:
    """Change one row of logits by its request's penalties and biases."""
    device = logits.device
    if request.repetition_penalty != 1:
        distinct = np.unique(np.concatenate([request.prompt, np.array(answer, np.int64)]))
        seen = torch.as_tensor(distinct, device=device)
        values = logits[row, seen]
        factor = request.repetition_penalty
        logits[row, seen] = torch.where(values > 0, values / factor, values * factor)
    if answer and (request.frequency_penalty or request.presence_penalty):
        ids, counts = np.unique(np.array(answer, np.int64), return_counts=True)
        penalty = request.frequency_penalty * counts + request.presence_penalty
        logits[row, torch.as_tensor(ids, device=device)] -= torch.as_tensor(
            penalty, dtype=logits.dtype, device=device
        )
    if request.logit_bias:
        biased = torch.tensor([*request.logit_bias], device=device)
        logits[row, biased] += torch.tensor(
            [*request.logit_bias.values()], dtype=logits.dtype, device=device
        )
