"""Score a prompt's own tokens: logprobs, top-k rows, chosen tokens, and other draws.

All of it comes from the hidden states of one prefill. Row i of a result is about prompt token i
(or i + 1 where it has one row less); the first token has nothing before it and is never scored.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from mint.engine.messages import FloatArray, SampleRequest, SampleResult, TopkLogprobs, UserError
from mint.engine.model.context import Lora
from mint.engine.model.head import Head
from mint.engine.sampling.picking import Picks, RowSettings, pick
from mint.engine.training.logprobs import target_logprobs

NO_LOGPROB = -99999.0  # fills the cells of top-k rows that have no distribution
BROKEN_WEIGHTS = (
    "The model's logprobs are NaN: the weights of this sampler contain NaN or infinity, or numbers "
    "too large for the model. Sample from an earlier checkpoint, and train on from there with a "
    "lower learning rate."
)
EXTREME_PARAMETERS = (
    "The logprobs are NaN with the temperature, the penalties and the logit_bias of this request, "
    "so they are probably too extreme for this model: use values closer to the defaults. If the "
    "request fails with the defaults too, the weights of this sampler are broken."
)
_ALTERNATIVES = 1 << 20  # sample numbers for draws in the prompt, away from those of answers


def score_prompt(
    request: SampleRequest, hidden: Tensor, head: Head, lora: Lora, seed: int
) -> SampleResult:
    """Return what a request asks about its prompt, from the prompt's hidden states [N, H]."""
    rows = hidden[:-1]  # row i predicts prompt token i + 1
    first = len(rows) - request.prompt_logprobs_last_n if request.prompt_logprobs_last_n else 0
    return SampleResult(
        sequences=[],
        prompt_logprobs=_logprobs(request, rows, first, head, lora),
        topk_prompt_logprobs=_topk(rows, first, request.topk_prompt_logprobs, head, lora),
        target_prompt_logprobs=_targets(request, rows, head, lora),
        prompt_alt_tokens=_alternatives(request, rows, head, lora, seed),
    )


def _logprobs(
    request: SampleRequest, rows: Tensor, first: int, head: Head, lora: Lora
) -> FloatArray | None:
    if not request.prompt_logprobs:
        return None
    targets = request.prompt[1 + first :]
    scored = target_logprobs(head, rows[first:], np.arange(len(targets)), targets, lora)
    values = scored.cpu().numpy()
    if np.isnan(values).any():
        raise UserError(BROKEN_WEIGHTS)
    return np.concatenate([np.full(1 + first, np.nan, np.float32), values])


def _topk(rows: Tensor, first: int, k: int, head: Head, lora: Lora) -> TopkLogprobs | None:
    if k == 0:
        return None
    ids = [np.zeros((1 + first, k), np.int64)]
    values = [np.full((1 + first, k), NO_LOGPROB, np.float32)]
    for _, logits in _chunks(rows[first:], head, lora):
        top = torch.log_softmax(logits, -1).topk(k, dim=-1)
        ids.append(top.indices.cpu().numpy())
        values.append(top.values.cpu().numpy())
    return TopkLogprobs(np.concatenate(ids), np.concatenate(values))


def _targets(request: SampleRequest, rows: Tensor, head: Head, lora: Lora) -> FloatArray | None:
    targets = request.target_prompt_logprobs
    if targets is None:
        return None
    result = np.zeros(targets.shape, np.float32)
    row, column = np.nonzero(targets >= 0)
    scored = target_logprobs(head, rows, row, targets[row, column], lora)
    result[row, column] = scored.cpu().numpy()
    return result


def _alternatives(
    request: SampleRequest, rows: Tensor, head: Head, lora: Lora, seed: int
) -> TopkLogprobs | None:
    k = request.prompt_alt_tokens_k
    if k == 0:
        return None
    ids = np.zeros((len(rows), k), np.int64)
    values = np.zeros((len(rows), k), np.float32)
    draws = SampleRequest(request.prompt, temperature=request.temperature)
    for start, logits in _chunks(rows, head, lora):
        end = start + len(logits)
        steps = torch.arange(start, end, device=logits.device)
        for number in range(k):
            same = [RowSettings(draws, seed, _ALTERNATIVES + number)] * len(logits)
            picked = pick(logits, Picks.of(same, head.vocabulary, logits.device), steps)
            ids[start:end, number] = picked.tokens.cpu().numpy()
            values[start:end, number] = picked.logprobs.cpu().numpy()
    return TopkLogprobs(ids, values)


def _chunks(rows: Tensor, head: Head, lora: Lora) -> Iterator[tuple[int, Tensor]]:
    """Logits of a bounded number of rows at a time, with the number of the first."""
    for start in range(0, len(rows), head.chunk_rows()):
        yield start, head.logits(rows[start : start + head.chunk_rows()], lora)
