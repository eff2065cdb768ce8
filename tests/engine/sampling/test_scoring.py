"""Scores of prompts, and of tokens that were not chosen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mint.engine.engine import Engine
from mint.engine.messages import Datum, ForwardBackward, SampleRequest, UserError
from mint.engine.model.base_model import BaseModel
from tests.engine.conftest import ids, sample
from tests.engine.sampling.test_sampler import trained_engine
from tests.tiny import VOCABULARY

PROMPT = ids("Q: 1 + 1?\nA:")
ROWS = len(PROMPT) - 1


@pytest.fixture
def base_engine(engine: Engine) -> Engine:
    engine.create_sampler("base")
    return engine


def all_logprobs(engine: Engine) -> np.ndarray:
    """Every logprob [N - 1, V] of every prompt position, from a full top-k."""
    request = SampleRequest(PROMPT, 1, 1, topk_prompt_logprobs=VOCABULARY)
    [result] = sample(engine, "base", request)
    top = result.topk_prompt_logprobs
    assert top is not None
    table = np.empty((ROWS, VOCABULARY), np.float32)
    np.put_along_axis(table, top.token_ids[1:], top.logprobs[1:], axis=1)
    return table


def test_only_the_last_n_prompt_tokens_are_scored_when_asked(base_engine: Engine) -> None:
    everything = SampleRequest(PROMPT, 1, 1, prompt_logprobs=True, topk_prompt_logprobs=2)
    some = SampleRequest(
        PROMPT, 1, 1, prompt_logprobs=True, topk_prompt_logprobs=2, prompt_logprobs_last_n=4
    )
    [full, part] = sample(base_engine, "base", everything, some)
    assert full.prompt_logprobs is not None
    assert part.prompt_logprobs is not None
    assert np.isnan(part.prompt_logprobs[:-4]).all()
    np.testing.assert_allclose(part.prompt_logprobs[-4:], full.prompt_logprobs[-4:], atol=1e-6)
    assert part.topk_prompt_logprobs is not None
    assert (part.topk_prompt_logprobs.logprobs[:-4] == -99999.0).all()
    assert (part.topk_prompt_logprobs.logprobs[-4:] > -99999.0).all()


@pytest.mark.parametrize("precision", ["exact", "bfloat16"])
def test_a_prompt_is_scored_with_the_adapter_of_the_output_layer(
    tiny_model: Path, precision: str
) -> None:
    model = BaseModel.load("tiny", tiny_model, device="cpu", precision=precision)
    engine = trained_engine(model)
    asked = SampleRequest(PROMPT, 1, 1, prompt_logprobs=True)
    [result] = sample(engine, "trained", asked)
    datum = Datum(PROMPT[:-1], {"target_tokens": PROMPT[1:]})
    forward = ForwardBackward([datum], "cross_entropy", forward_only=True)
    [trained] = engine.forward_backward("run", [forward])
    assert result.prompt_logprobs is not None
    np.testing.assert_allclose(result.prompt_logprobs[1:], trained.logprobs[0], atol=0.05)


def test_chosen_tokens_are_scored_where_asked_and_nowhere_else(base_engine: Engine) -> None:
    table = all_logprobs(base_engine)
    targets = np.full((ROWS, 3), -1)
    targets[2] = [5, 17, -1]
    targets[9, 2] = 200
    request = SampleRequest(PROMPT, 1, 1, target_prompt_logprobs=targets)
    [result] = sample(base_engine, "base", request)
    assert result.target_prompt_logprobs is not None
    wanted = np.where(targets >= 0, np.take_along_axis(table, targets.clip(0), axis=1), 0.0)
    np.testing.assert_allclose(result.target_prompt_logprobs, wanted, atol=5e-5)


def test_alternatives_are_drawn_from_each_positions_distribution(base_engine: Engine) -> None:
    table = all_logprobs(base_engine)
    request = SampleRequest(PROMPT, 1, 1, seed=1, prompt_alt_tokens_k=200)
    [result, again] = sample(base_engine, "base", request, request)
    draws = result.prompt_alt_tokens
    assert draws is not None
    assert again.prompt_alt_tokens is not None
    np.testing.assert_array_equal(draws.token_ids, again.prompt_alt_tokens.token_ids)
    wanted = np.take_along_axis(table, draws.token_ids, axis=1)
    np.testing.assert_allclose(draws.logprobs, wanted, atol=5e-5)
    for row in range(ROWS):
        likeliest = int(table[row].argmax())
        p = np.exp(table[row, likeliest])
        hits = (draws.token_ids[row] == likeliest).sum()
        assert abs(hits - 200 * p) <= 6 * np.sqrt(200 * p * (1 - p)) + 1


def test_the_likeliest_alternatives_of_sampled_tokens_come_with_them(base_engine: Engine) -> None:
    request = SampleRequest(PROMPT, 2, 6, temperature=0.7, seed=3, stop=[], topk_sample_logprobs=4)
    plain = SampleRequest(PROMPT, 2, 6, temperature=0.7, seed=3, stop=[])
    [result, without] = sample(base_engine, "base", request, plain)
    for sequence, other in zip(result.sequences, without.sequences, strict=True):
        np.testing.assert_array_equal(sequence.tokens, other.tokens)
        assert other.topk_logprobs is None
        top = sequence.topk_logprobs
        assert top is not None
        assert top.logprobs.shape == (6, 4)
        assert (np.diff(top.logprobs, axis=1) <= 0).all()
        for row, token in enumerate(sequence.tokens):
            if token in top.token_ids[row]:
                [column] = np.flatnonzero(top.token_ids[row] == token)
                gap = top.logprobs[row, column] - sequence.logprobs[row]
                assert abs(gap) <= 5e-5


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"prompt_logprobs_last_n": 0}, "prompt_logprobs_last_n is 0"),
        ({"prompt_logprobs_last_n": len(PROMPT)}, f"from 1 to {ROWS}"),
        ({"topk_sample_logprobs": -1}, "topk_sample_logprobs is -1"),
        ({"prompt_alt_tokens_k": 10_000}, "prompt_alt_tokens_k is 10000"),
        ({"target_prompt_logprobs": np.zeros((3, 1), np.int64)}, f"must have {ROWS} rows"),
        ({"target_prompt_logprobs": np.full((ROWS, 1), -1)}, "name some token"),
        ({"target_prompt_logprobs": np.full((ROWS, 1), VOCABULARY)}, "outside 0..271"),
    ],
)
def test_a_bad_question_about_the_prompt_is_refused(
    base_engine: Engine, bad: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        base_engine.sample(0, "base", SampleRequest(PROMPT, 1, 1, **bad))  # type: ignore[arg-type]


def test_a_cancelled_request_leaves_the_others_alone(base_engine: Engine) -> None:
    keep = SampleRequest(PROMPT, 3, 12, seed=1, stop=[])
    [alone] = sample(base_engine, "base", keep)
    base_engine.sample(1, "base", SampleRequest(PROMPT[:5], 4, 50, seed=2, stop=[]))
    base_engine.sample(2, "base", keep)
    base_engine.sampling.step()
    base_engine.sampling.step()
    assert base_engine.sampling.cancel(1)
    assert not base_engine.sampling.cancel(1)
    done = []
    while not base_engine.sampling.is_idle:
        done += base_engine.sampling.step()
    [job] = done
    for one, other in zip(alone.sequences, job.result().sequences, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
