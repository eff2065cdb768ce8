"""Logprobs of samples at other temperatures: the two checks of tinker-cookbook, over HTTP.

The cookbook compares pairs of tokens, whose logprobs at temperature T must differ by 1/T of their
difference at 1, and the tokens of a longer answer with those of the same positions scored alone.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import mint
from mint import types
from tests.service_fixture import MODEL
from tests.tiny import VOCABULARY

PROMPT = [72, 101, 108, 108, 111]
NEAR = 1e-3


@pytest.fixture
def sampler(client: mint.ServiceClient) -> mint.SamplingClient:
    return client.create_sampling_client(base_model=MODEL)


def sampled(
    sampler: mint.SamplingClient, temperature: float, count: int, length: int
) -> list[tuple[list[int], list[float]]]:
    params = types.SamplingParams(max_tokens=length, temperature=temperature, seed=3)
    answer = sampler.sample(types.ModelInput.from_ints(PROMPT), count, params).result()
    return [(list(each.tokens), list(each.logprobs or [])) for each in answer.sequences]


def distribution(sampler: mint.SamplingClient, tokens: list[int]) -> dict[int, float]:
    """The logprobs at temperature 1 of all tokens after some others."""
    answer = sampler.sample(
        types.ModelInput.from_ints([*tokens, 0]),
        1,
        types.SamplingParams(max_tokens=1),
        topk_prompt_logprobs=VOCABULARY,
    ).result()
    assert answer.topk_prompt_logprobs is not None
    last = answer.topk_prompt_logprobs[-1]
    assert last is not None
    return dict(last)


@pytest.mark.parametrize("temperature", [0.5, 0.7, 1.0, 1.2, 1.5, 1.8])
def test_differences_of_logprobs_are_divided_by_the_temperature(
    sampler: mint.SamplingClient, temperature: float
) -> None:
    plain = distribution(sampler, PROMPT)
    found = {t[0]: lp[0] for t, lp in sampled(sampler, temperature, 64, 1) if t[0] in plain}
    assert len(found) >= 3
    for i, j in itertools.combinations(sorted(found), 2):
        assert found[i] - found[j] == pytest.approx((plain[i] - plain[j]) / temperature, abs=NEAR)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.8])
def test_every_token_of_an_answer_has_the_logprob_of_its_own_position(
    sampler: mint.SamplingClient, temperature: float
) -> None:
    ((tokens, logprobs),) = sampled(sampler, temperature, 1, 8)
    assert len(tokens) == len(logprobs) > 1
    for at, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
        plain = distribution(sampler, [*PROMPT, *tokens[:at]])
        scaled = np.asarray(list(plain.values()), dtype=np.float64) / temperature
        wanted = plain[token] / temperature - np.logaddexp.reduce(scaled)
        assert logprob == pytest.approx(wanted, abs=NEAR)


def test_the_likeliest_tokens_of_a_prompt_come_with_the_logprobs_of_its_own(
    sampler: mint.SamplingClient,
) -> None:
    prompt = types.ModelInput.from_ints(PROMPT)
    params = types.SamplingParams(max_tokens=1)
    alone = sampler.sample(prompt, 1, params, topk_prompt_logprobs=VOCABULARY).result()
    asked = sampler.sample(prompt, 1, params, include_prompt_logprobs=True).result()
    assert alone.prompt_logprobs is not None
    assert alone.prompt_logprobs[1:] == pytest.approx(asked.prompt_logprobs[1:], abs=1e-5)
    for token, logprob, top in zip(
        PROMPT[1:], alone.prompt_logprobs[1:], alone.topk_prompt_logprobs[1:], strict=True
    ):
        assert dict(top)[token] == pytest.approx(logprob, abs=1e-5)
