"""How OpenAI clients shape the choice of tokens: filters, penalties and biases."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import numpy as np
import pytest

from mint.engine.messages import SampleRequest
from mint.service.api.openai.inference import engine_request
from mint.service.api.openai.requests import ChatCompletion, Completion
from mint.service.wire.requests import SampleBody
from tests.service_fixture import MODEL
from tests.tiny import VOCABULARY

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
WITHOUT_TEXT = {str(token): -100 for token in range(256, VOCABULARY)}
LOWEST = -9999.0


def post(service: str, route: str, **fields: Any) -> httpx.Response:
    """Send a request; NaN, infinity and half characters go out as Python writes them."""
    asked = {"prompt": "ab"} if route == "completions" else {"messages": HELLO}
    body = {"model": MODEL, "max_tokens": 2, **asked, **fields}
    headers = {"content-type": "application/json"}
    url = f"{service}/v1/{route}"
    return httpx.post(url, content=json.dumps(body).encode(), headers=headers, timeout=60)


# ---- what the engine is asked for ----------------------------------------------------------------


SHAPED: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 7,
    "min_p": 0.05,
    "frequency_penalty": 0.5,
    "presence_penalty": -1.5,
    "repetition_penalty": 1.2,
}


@pytest.mark.parametrize(
    "request_of",
    [
        lambda fields: Completion(model=MODEL, prompt="ab", **fields),
        lambda fields: ChatCompletion(model=MODEL, messages=HELLO, **fields),
    ],
)
def test_every_field_reaches_the_engine(request_of: Any) -> None:
    asked = engine_request(request_of({**SHAPED, "logit_bias": {"5": -100, "07": 2.5}}))
    assert {name: getattr(asked, name) for name in SHAPED} == SHAPED
    assert asked.logit_bias == {5: -100.0, 7: 2.5}
    assert asked.renormalize


def test_without_fields_nothing_is_shaped() -> None:
    asked = engine_request(ChatCompletion(model=MODEL, messages=HELLO, logit_bias=None))
    plain = SampleRequest(np.zeros(0, np.int64))
    for name in [*SHAPED, "logit_bias"]:
        assert getattr(asked, name) == getattr(plain, name)


def test_the_samples_of_training_keep_the_logprobs_of_the_whole_distribution() -> None:
    body = {"sampling_session_id": "s", "prompt": {"chunks": [{"tokens": [1]}]}}
    assert not SampleBody.model_validate(body).to_engine().renormalize


# ---- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["completions", "chat/completions"])
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"min_p": -0.1}, ["min_p", "greater than or equal to 0"]),
        ({"min_p": 1.1}, ["min_p", "less than or equal to 1"]),
        ({"top_k": -2}, ["top_k", "greater than or equal to -1"]),
        ({"top_k": 1.5}, ["top_k", "integer"]),
        ({"frequency_penalty": 2.1}, ["frequency_penalty", "less than or equal to 2"]),
        ({"presence_penalty": -2.1}, ["presence_penalty", "greater than or equal to -2"]),
        ({"presence_penalty": "much"}, ["presence_penalty", "number"]),
        ({"repetition_penalty": 0}, ["repetition_penalty", "greater than or equal to 0.001"]),
        ({"repetition_penalty": 1e9}, ["repetition_penalty", "less than or equal to 1000"]),
        ({"logit_bias": {"5": 101}}, ["logit_bias.5", "less than or equal to 100"]),
        ({"logit_bias": {"5": -101}}, ["logit_bias.5", "greater than or equal to -100"]),
        ({"logit_bias": {"5": "x"}}, ["logit_bias.5", "number"]),
        ({"logit_bias": {"hello": 1}}, ["logit_bias", "'hello' is not a token id", '"198": -100']),
        ({"logit_bias": {"-1": 1}}, ["logit_bias", "'-1' is not a token id"]),
        ({"logit_bias": {"9" * 5000: 1}}, ["logit_bias", "is not a token id"]),
        ({"logit_bias": [5]}, ["logit_bias", "dictionary"]),
        ({"logit_bias": {str(VOCABULARY): 1}}, ["logit_bias", f"0 to {VOCABULARY - 1}"]),
        ({"stop": "\ud800"}, ["\\ud800 alone is half of one"]),
        ({"stop": ["fine", "\udfff"]}, ["\\ud800 alone is half of one"]),
    ],
)
def test_a_value_out_of_range_is_a_bad_request_that_says_the_range(
    service: str, route: str, fields: dict[str, Any], said: list[str]
) -> None:
    answer = post(service, route, **fields)
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert all(part in message for part in said), message


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("route", ["completions", "chat/completions"])
def test_an_invalid_number_is_a_bad_request(service: str, route: str, value: float) -> None:
    for name in set(SHAPED) - {"top_k"}:
        answer = post(service, route, **{name: value})
        assert answer.status_code == 400, answer.text
        assert name in answer.json()["error"]["message"]
    assert post(service, route, logit_bias={"5": value}).status_code == 400


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "\ud800"},
        {"prompt": ["a", "\ud800"]},
        {"prompt": [2**70]},
        {"prompt": [[1], [-1]]},
        {"model": "\ud800"},
    ],
)
def test_a_prompt_that_cannot_be_encoded_is_a_bad_request(
    service: str, fields: dict[str, Any]
) -> None:
    answer = post(service, "completions", **fields)
    assert answer.status_code == 400, answer.text


def test_a_conversation_that_cannot_be_encoded_is_a_bad_request(service: str) -> None:
    messages = [{"role": "user", "content": "half a character: \ud800"}]
    assert post(service, "chat/completions", messages=messages).status_code == 400


@pytest.mark.parametrize("top_k", [0, VOCABULARY, 2**31, 2**63, 2**70])
def test_a_top_k_beyond_the_vocabulary_leaves_nothing_out(service: str, top_k: int) -> None:
    def text(k: int) -> str:
        answer = post(service, "completions", max_tokens=8, seed=4, top_k=k)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    assert text(top_k) == text(-1)


# ---- what comes back -----------------------------------------------------------------------------


def chat_tokens(service: str, **fields: Any) -> list[dict[str, Any]]:
    """The tokens of one answer: each with its bytes, its logprob and the likeliest others."""
    answer = post(service, "chat/completions", logprobs=True, **fields)
    assert answer.status_code == 200, answer.text
    tokens: list[dict[str, Any]] = answer.json()["choices"][0]["logprobs"]["content"]
    return tokens


def letters(service: str, **fields: Any) -> list[int]:
    """The bytes of one answer, from a model that may say nothing but bytes."""
    bias = {**WITHOUT_TEXT, **fields.pop("logit_bias", {})}
    return [token["bytes"][0] for token in chat_tokens(service, logit_bias=bias, **fields)]


def test_a_bias_forces_a_token_and_forbids_another(service: str) -> None:
    forced = chat_tokens(service, max_tokens=6, seed=1, logit_bias={"5": 100})
    [said] = {tuple(token["bytes"]) for token in forced}
    likeliest = chat_tokens(service, max_tokens=1, temperature=0)[0]["bytes"]
    assert len(forced) == 6
    assert list(said) != likeliest
    assert all(token["logprob"] == pytest.approx(0, abs=1e-3) for token in forced)
    both = chat_tokens(service, max_tokens=6, seed=1, logit_bias={"5": -100, "6": 100})
    assert said not in {tuple(token["bytes"]) for token in both}


def test_min_p_one_is_greedy(service: str) -> None:
    greedy = letters(service, max_tokens=10, temperature=0)
    assert letters(service, max_tokens=10, seed=8, min_p=1) == greedy
    assert letters(service, max_tokens=10, seed=8) != greedy


def test_a_repetition_penalty_keeps_the_answer_from_repeating_anything(service: str) -> None:
    said = letters(service, max_tokens=40, temperature=0, repetition_penalty=1000)
    assert len(set(said)) == len(said) == 40
    assert not set(said) & set(b"user\nHello")


def test_penalties_count_tokens_of_the_answer(service: str) -> None:
    """Of two favoured tokens, the one that is said loses exactly what the penalties say."""
    favoured = {"65": 100, "66": 80}

    def leads(**fields: float) -> list[float]:
        """By how much the first of them is ahead of the second, at each of three steps."""
        tokens = chat_tokens(
            service, max_tokens=3, temperature=0, top_logprobs=2, logit_bias=favoured, **fields
        )
        assert len({tuple(token["bytes"]) for token in tokens}) == 1, "the same three times"
        tops = [token["top_logprobs"] for token in tokens]
        return [ahead["logprob"] - behind["logprob"] for ahead, behind in tops]

    free = leads()
    presence, frequency = leads(presence_penalty=1.5), leads(frequency_penalty=0.5)
    np.testing.assert_allclose(np.subtract(free, presence), [0, 1.5, 1.5], atol=1e-3)
    np.testing.assert_allclose(np.subtract(free, frequency), [0, 0.5, 1], atol=1e-3)


@pytest.mark.parametrize("shape", [{"top_k": 3}, {"top_k": 3, "temperature": 2.5}])
def test_logprobs_are_those_of_the_distribution_that_was_sampled_from(
    service: str, shape: dict[str, float]
) -> None:
    for token in chat_tokens(service, max_tokens=6, seed=2, top_logprobs=5, **shape):
        kept, left_out = token["top_logprobs"][:3], token["top_logprobs"][3:]
        assert sum(math.exp(other["logprob"]) for other in kept) == pytest.approx(1, abs=1e-4)
        assert [other["logprob"] for other in left_out] == [LOWEST] * 2
        assert token["logprob"] in [pytest.approx(other["logprob"], abs=1e-5) for other in kept]


def test_a_stream_writes_what_was_left_out_as_json_can(service: str) -> None:
    options: dict[str, Any] = {"max_tokens": 4, "seed": 2, "top_k": 1, "logprobs": True}
    answer = post(service, "chat/completions", stream=True, top_logprobs=2, **options)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    chunks = [json.loads(event, parse_constant=refuse) for event in events if event != "[DONE]"]
    scores = [
        score
        for chunk in chunks
        for choice in chunk["choices"]
        for score in (choice["logprobs"] or {}).get("content", [])
    ]
    assert len(scores) == 4
    for score in scores:
        assert score["logprob"] == pytest.approx(0, abs=1e-5)
        assert score["top_logprobs"][1]["logprob"] == LOWEST
