"""Picking tokens: draws, filters, penalties, and the logprobs that go with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mint.engine.messages import SampleRequest
from mint.engine.sampling.picking import Picks, RowSettings, draw, penalize, pick, uniforms

PROMPT = np.array([1, 2, 3])
MASK = (1 << 64) - 1


def splitmix(value: int) -> int:
    """SplitMix64 as its author defines it, in integers of any size."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**20), st.integers(0, 2**20))
def test_numbers_are_those_of_splitmix64(seed: int, sample: int, step: int) -> None:
    state = splitmix(splitmix(seed & MASK) ^ splitmix((sample << 32) + step + 1))
    wanted = (state >> 11) / (1 << 53)
    [found] = uniforms(*(torch.tensor([n]) for n in (seed, sample, step))).tolist()
    assert found == pytest.approx(wanted, abs=1e-7)
    assert 0 <= found < 1


@given(st.lists(st.floats(0, 1e6, width=32), min_size=1, max_size=60), st.floats(0, 0.9999999))
def test_a_draw_inverts_the_cumulative_distribution(weights: list[float], number: float) -> None:
    if sum(weights) == 0:
        return
    table = torch.tensor([weights])
    [token] = draw(table, torch.tensor([number], dtype=torch.float32)).tolist()
    assert weights[token] > 0
    cumulative = np.cumsum(np.array(weights, np.float64))
    target = float(np.float32(number)) * cumulative[-1]
    slack = 1e-5 * cumulative[-1]
    assert (cumulative[token - 1] if token else 0.0) <= target + slack
    assert target <= cumulative[token] + slack


def picked(logits: torch.Tensor, count: int = 4000, **settings: object):
    """Draw many times from one row; return tokens and logprobs."""
    request = SampleRequest(PROMPT, **settings)  # type: ignore[arg-type]
    rows = logits.expand(count, -1).clone()
    for row in range(count):
        penalize(rows, row, request, [4, 4, 5])
    picks = Picks.of(
        [RowSettings(request, 7, sample) for sample in range(count)], logits.shape[-1], CPU
    )
    result = pick(rows, picks, torch.zeros(count, dtype=torch.long))
    return result.tokens, result.logprobs, rows[0]


CPU = torch.device("cpu")
LOGITS = torch.tensor([0.5, 2.0, -1.0, 1.0, 3.0, 2.5, 0.0, -3.0])


def test_min_p_leaves_out_what_is_far_below_the_likeliest() -> None:
    tokens, logprobs, _ = picked(LOGITS, min_p=0.5, renormalize=True)
    probabilities = torch.softmax(LOGITS, -1)
    kept = probabilities >= 0.5 * probabilities.max()
    assert set(tokens.tolist()) == set(kept.nonzero().flatten().tolist())
    wanted = torch.log(probabilities * kept / (probabilities * kept).sum())
    torch.testing.assert_close(logprobs, wanted[tokens])


def test_logprobs_are_of_the_whole_distribution_unless_asked_to_renormalize() -> None:
    tokens, logprobs, _ = picked(LOGITS, top_k=2)
    assert set(tokens.tolist()) == {4, 5}
    torch.testing.assert_close(logprobs, torch.log_softmax(LOGITS, -1)[tokens])
    tokens, logprobs, _ = picked(LOGITS, top_k=2, top_p=0.99, renormalize=True)
    wanted = torch.log_softmax(LOGITS[[4, 5]], -1)
    torch.testing.assert_close(logprobs, wanted[(tokens == 5).long()])


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({"frequency_penalty": 0.5}, {4: -1.0, 5: -0.5}),
        ({"presence_penalty": 0.5}, {4: -0.5, 5: -0.5}),
        ({"logit_bias": {0: 3.0, 7: -2.0}}, {0: 3.0, 7: -2.0}),
        ({"frequency_penalty": 0.5, "logit_bias": {4: 1.0}}, {4: 0.0, 5: -0.5}),
    ],
)
def test_penalties_change_the_logits_and_so_the_logprobs(
    settings: dict[str, object], changes: dict[int, float]
) -> None:
    tokens, logprobs, row = picked(LOGITS, **settings)
    wanted = LOGITS.clone()
    for token, change in changes.items():
        wanted[token] += change
    torch.testing.assert_close(row, wanted)
    torch.testing.assert_close(logprobs, torch.log_softmax(wanted, -1)[tokens])


def test_a_repetition_penalty_counts_prompt_and_answer_and_pushes_both_signs_down() -> None:
    _, _, row = picked(LOGITS, count=1, repetition_penalty=2.0)
    wanted = LOGITS.clone()
    for token in (1, 2, 3, 4, 5):  # the prompt's and the answer's
        wanted[token] = wanted[token] / 2 if wanted[token] > 0 else wanted[token] * 2
    torch.testing.assert_close(row, wanted)


def test_a_nucleus_wider_than_the_candidates_is_found_by_a_full_sort() -> None:
    flat = torch.zeros(5000)
    tokens, _, _ = picked(flat, count=3000, top_p=0.9)
    assert tokens.max() < 5000
    assert len(set(tokens.tolist())) > 1500


def test_filters_of_another_row_leave_the_likeliest_tokens_of_a_row_as_they_are() -> None:
    logits = torch.stack([LOGITS - 200 * (LOGITS < 2), LOGITS])
    request = SampleRequest(PROMPT, renormalize=True, topk_sample_logprobs=8)
    rows = [RowSettings(request, 7, 0), RowSettings(replace(request, top_k=2), 7, 0)]
    alone, together = (
        pick(logits[:count], Picks.of(rows[:count], 8, CPU), torch.zeros(count, dtype=torch.long))
        for count in (1, 2)
    )
    wanted = torch.log_softmax(logits[0], -1).sort(descending=True).values
    assert alone.top_logprobs is not None
    assert together.top_logprobs is not None
    torch.testing.assert_close(alone.top_logprobs[0], wanted)
    assert torch.equal(alone.top_logprobs[0], together.top_logprobs[0])


def test_a_temperature_that_a_float32_cannot_hold_is_greedy() -> None:
    tokens, logprobs, _ = picked(LOGITS, count=50, temperature=1e-60)
    assert set(tokens.tolist()) == {4}
    torch.testing.assert_close(logprobs, torch.log_softmax(LOGITS, -1)[tokens])
