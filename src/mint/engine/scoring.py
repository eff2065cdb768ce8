"""What a prompt's own tokens are worth: logprobs, top-k rows, chosen tokens, and other draws.

All of it comes from the hidden states of one prefill. Row i of a result speaks of prompt token i
(or i + 1 where it has one row less); the first token has nothing before it and is never scored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .head import Head
from .lora import Adapter
from .messages import FloatArray, SampleRequest, TopkLogprobs
from .picking import Picks, pick, uniform

NO_LOGPROB = -99999.0  # fills the cells of top-k rows that have no distribution
_ALTERNATIVES = 1 << 20  # sample numbers for draws in the prompt, away from those of answers


@dataclass(frozen=True)
class PromptScores:
    """The parts that a request asked for."""

    logprobs: FloatArray | None = None
    topk: TopkLogprobs | None = None
    targets: FloatArray | None = None
    alternatives: TopkLogprobs | None = None


def is_wanted(request: SampleRequest) -> bool:
    """Whether a request asks for anything about its prompt."""
    return (
        request.prompt_logprobs
        or request.topk_prompt_logprobs > 0
        or request.target_prompt_logprobs is not None
        or request.prompt_alt_tokens_k > 0
    )


def score_prompt(
    request: SampleRequest, hidden: Tensor, head: Head, adapter: Adapter | None, seed: int
) -> PromptScores:
    """Score a prompt from its hidden states [N, H]."""
    rows = hidden[:-1]  # row i predicts prompt token i + 1
    first = len(rows) - request.prompt_logprobs_last_n if request.prompt_logprobs_last_n else 0
    return PromptScores(
        logprobs=_logprobs(request, rows, first, head, adapter),
        topk=_topk(rows, first, request.topk_prompt_logprobs, head, adapter),
        targets=_targets(request, rows, head, adapter),
        alternatives=_alternatives(request, rows, head, adapter, seed),
    )


def _logprobs(
    request: SampleRequest, rows: Tensor, first: int, head: Head, adapter: Adapter | None
) -> FloatArray | None:
    if not request.prompt_logprobs:
        return None
    targets = torch.as_tensor(request.prompt[1 + first :], device=rows.device)
    order = torch.arange(len(targets), device=rows.device)
    scored = head.target_logprobs(rows[first:], order, targets, adapter)
    unscored = np.full(1 + first, np.nan, np.float32)
    return np.concatenate([unscored, scored.cpu().numpy()])


def _topk(
    rows: Tensor, first: int, k: int, head: Head, adapter: Adapter | None
) -> TopkLogprobs | None:
    if k == 0:
        return None
    ids = [np.zeros((1 + first, k), np.int64)]
    values = [np.full((1 + first, k), NO_LOGPROB, np.float32)]
    for _, logits in _chunks(rows[first:], head, adapter):
        top = torch.log_softmax(logits, -1).topk(k, dim=-1)
        ids.append(top.indices.cpu().numpy())
        values.append(top.values.cpu().numpy())
    return TopkLogprobs(np.concatenate(ids), np.concatenate(values))


def _targets(
    request: SampleRequest, rows: Tensor, head: Head, adapter: Adapter | None
) -> FloatArray | None:
    targets = request.target_prompt_logprobs
    if targets is None:
        return None
    result = np.zeros(targets.shape, np.float32)
    row, column = np.nonzero(targets >= 0)
    nodes, ids = (torch.as_tensor(a, device=rows.device) for a in (row, targets[row, column]))
    result[row, column] = head.target_logprobs(rows, nodes, ids, adapter).cpu().numpy()
    return result


def _alternatives(
    request: SampleRequest, rows: Tensor, head: Head, adapter: Adapter | None, seed: int
) -> TopkLogprobs | None:
    k = request.prompt_alt_tokens_k
    if k == 0:
        return None
    ids = np.zeros((len(rows), k), np.int64)
    values = np.zeros((len(rows), k), np.float32)
    for start, logits in _chunks(rows, head, adapter):
        picks = Picks.of([(request.temperature, -1, 1.0)] * len(logits), logits.device)
        for draw in range(k):
            numbers = [
                uniform(seed, _ALTERNATIVES + draw, start + row) for row in range(len(logits))
            ]
            uniforms = torch.tensor(numbers, dtype=torch.float32, device=logits.device)
            tokens, logprobs, _ = pick(logits, picks, uniforms)
            ids[start : start + len(logits), draw] = tokens.cpu().numpy()
            values[start : start + len(logits), draw] = logprobs.cpu().numpy()
    return TopkLogprobs(ids, values)


def _chunks(rows: Tensor, head: Head, adapter: Adapter | None) -> Iterator[tuple[int, Tensor]]:
    """Logits of a bounded number of rows at a time, with the number of the first."""
    for start in range(0, len(rows), head.chunk_rows()):
        yield start, head.logits(rows[start : start + head.chunk_rows()], adapter)
