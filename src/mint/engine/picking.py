"""Picking the next token: one uniform number per row, one pass over the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_MASK = (1 << 64) - 1


def uniform(seed: int, sample: int, step: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments (SplitMix64, mixed twice)."""
    state = _mix(_mix(seed & _MASK) ^ _mix((sample << 32) + step + 1))
    return (state >> 11) / (1 << 53)


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@dataclass(frozen=True)
class Picks:
    """How each row of a batch picks: temperature (0 is greedy), top_k (0 is off), top_p."""

    temperatures: Tensor
    top_k: Tensor
    top_p: Tensor
    filtered: bool  # whether any row uses top_k or top_p
    greedy: bool  # whether any row is greedy

    @classmethod
    def of(cls, settings: list[tuple[float, int, float]], device: torch.device) -> Picks:
        """From one (temperature, top_k, top_p) per row."""
        temperatures, top_k, top_p = (list(column) for column in zip(*settings, strict=True))
        return cls(
            temperatures=torch.tensor(temperatures, device=device),
            top_k=torch.tensor([max(k, 0) for k in top_k], device=device),
            top_p=torch.tensor(top_p, device=device),
            filtered=any(k > 0 for k in top_k) or any(p < 1 for p in top_p),
            greedy=any(t == 0 for t in temperatures),
        )


def pick(logits: Tensor, picks: Picks, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [B], their logprobs [B], and all logprobs [B, V] of the temperature-scaled choice.

    top_k and top_p narrow the choice but not the logprob: it stays that of the whole distribution,
    as the trainer computes it. A greedy row reports logprobs at temperature 1.
    """
    is_greedy = picks.temperatures == 0
    divisor = torch.where(is_greedy, 1.0, picks.temperatures)
    logprobs = torch.log_softmax(logits / divisor[:, None], dim=-1)
    probabilities = logprobs.exp()
    if picks.filtered:
        probabilities = _narrow(probabilities, picks)
    tokens = _draw(probabilities, uniforms)
    if picks.greedy:
        tokens = torch.where(is_greedy, logits.argmax(-1), tokens)
    return tokens, logprobs.gather(-1, tokens[:, None]).squeeze(-1), logprobs


def _narrow(probabilities: Tensor, picks: Picks) -> Tensor:
    """Zero what top_k and top_p leave out; the likeliest token always stays."""
    ranked, order = probabilities.sort(dim=-1, descending=True)
    before = ranked.cumsum(-1) - ranked
    rank = torch.arange(ranked.shape[-1], device=ranked.device)
    outside = before >= picks.top_p[:, None]
    outside |= (picks.top_k[:, None] > 0) & (rank[None, :] >= picks.top_k[:, None])
    outside[:, 0] = False
    return torch.zeros_like(probabilities).scatter(-1, order, ranked.masked_fill(outside, 0.0))


def _draw(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Invert the cumulative distribution. Never lands on a token of probability 0."""
    cumulative = probabilities.cumsum(-1)
    threshold = uniforms[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)
    return tokens.clamp(max=probabilities.shape[-1] - 1)
