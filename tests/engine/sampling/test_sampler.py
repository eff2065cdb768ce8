"""Sampling: stops, seeds, distributions, batching, and agreement with the trainer."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from mint.engine.engine import Engine
from mint.engine.messages import (
    AdamSettings,
    Datum,
    ForwardBackward,
    LoraSpec,
    SampledToken,
    SampleRequest,
    SampleResult,
    UserError,
)
from mint.engine.model.base_model import BaseModel
from mint.engine.sampling.kv_pool import KVPool
from mint.engine.sampling.runner import Runner
from mint.engine.sampling.sampler import Sampler
from tests.engine.conftest import check_batching, ids, sample
from tests.engine.counting import tokens_run
from tests.tiny import FAMILIES, VOCABULARY, build_model

PROMPT = ids("Q: 1 + 1?\nA:")


@pytest.fixture
def base_engine(engine: Engine) -> Engine:
    engine.create_sampler("base")
    return engine


def trained_engine(model: BaseModel) -> Engine:
    """An engine with a run whose adapter is far from zero, and a sampler of it."""
    engine = Engine(model)
    engine.create_run("run", LoraSpec(rank=4, seed=1))
    engine.create_sampler("fresh", run_id="run")
    train(engine, 2)
    engine.create_sampler("trained", run_id="run")
    return engine


def small_pool(engine: Engine, blocks: int) -> None:
    """Give the engine's sampler a pool of few blocks, the one for padding included."""
    model = engine.model
    pool = KVPool(model.kv_shapes, blocks, model.precision.keys, torch.device("cpu"))
    engine.sampling = Sampler(Runner(engine.model, pool), max_rows=16, chunk_tokens=64)


def train(engine: Engine, steps: int) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCABULARY, 20)
    datum = Datum(tokens[:-1], {"target_tokens": tokens[1:]})
    for _ in range(steps):
        engine.forward_backward("run", [ForwardBackward([datum], "cross_entropy")])
        engine.optim_step("run", AdamSettings(learning_rate=0.02))


def trainer_logprobs(engine: Engine, prompt: np.ndarray, result: SampleResult) -> list[np.ndarray]:
    """What ``forward`` says of the sampled tokens."""
    data = []
    for sequence in result.sequences:
        full = np.concatenate([prompt, sequence.tokens])
        data.append(Datum(full[:-1], {"target_tokens": full[1:]}))
    request = ForwardBackward(data, "cross_entropy", forward_only=True)
    [output] = engine.forward_backward("run", [request])
    return [logprobs[len(prompt) - 1 :] for logprobs in output.logprobs]


@pytest.mark.parametrize("family", FAMILIES)
def test_sampler_and_trainer_agree_on_logprobs(family: str, tmp_path: Path) -> None:
    folder = build_model(tmp_path / "m" / family, family)
    engine = trained_engine(BaseModel.load(family, folder, device="cpu", precision="exact"))
    prompts = [PROMPT, PROMPT[:3], ids("another one")]
    requests = [SampleRequest(p, num_samples=3, max_tokens=12, seed=1, stop=[]) for p in prompts]
    for prompt, result in zip(prompts, sample(engine, "trained", *requests), strict=True):
        wanted = trainer_logprobs(engine, prompt, result)
        for sequence, logprobs in zip(result.sequences, wanted, strict=True):
            assert np.abs(sequence.logprobs - logprobs).max() <= 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_those_of_transformers(family: str, tmp_path: Path) -> None:
    folder = build_model(tmp_path / "m" / family, family)
    engine = Engine(BaseModel.load(family, folder, device="cpu", precision="exact"))
    engine.create_sampler("base")
    plain = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    plain.generation_config.eos_token_id = None
    prompts = [PROMPT, ids("another one")]
    requests = [SampleRequest(p, max_tokens=20, temperature=0.0, stop=[]) for p in prompts]
    for prompt, result in zip(prompts, sample(engine, "base", *requests), strict=True):
        theirs = plain.generate(
            torch.as_tensor(prompt)[None],
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=20,
        )
        assert result.sequences[0].tokens.tolist() == theirs[0, len(prompt) :].tolist()


def test_sampler_and_trainer_agree_in_bfloat16(tiny_model: Path) -> None:
    model = BaseModel.load("tiny", tiny_model, device="cpu", precision="bfloat16")
    engine = trained_engine(model)
    request = SampleRequest(PROMPT, num_samples=32, max_tokens=32, seed=1, stop=[])
    [result] = sample(engine, "trained", request)
    wanted = trainer_logprobs(engine, PROMPT, result)
    gaps = np.concatenate(
        [np.abs(s.logprobs - lp) for s, lp in zip(result.sequences, wanted, strict=True)]
    )
    assert gaps.max() <= 2e-2
    assert gaps.mean() <= 2e-3


def test_prompt_logprobs_equal_the_trainers(base: BaseModel) -> None:
    engine = trained_engine(base)
    request = SampleRequest(PROMPT, max_tokens=1, prompt_logprobs=True, topk_prompt_logprobs=5)
    [result] = sample(engine, "trained", request)
    datum = Datum(PROMPT[:-1], {"target_tokens": PROMPT[1:]})
    operation = ForwardBackward([datum], "cross_entropy", forward_only=True)
    [output] = engine.forward_backward("run", [operation])
    assert result.prompt_logprobs is not None
    assert np.isnan(result.prompt_logprobs[0])
    np.testing.assert_allclose(result.prompt_logprobs[1:], output.logprobs[0], atol=5e-5)

    top = result.topk_prompt_logprobs
    assert top is not None
    assert top.logprobs.shape == (len(PROMPT), 5)
    assert (top.logprobs[0] == -99999.0).all()
    assert (np.diff(top.logprobs[1:], axis=1) <= 0).all()
    for row in range(1, len(PROMPT)):
        listed = dict(zip(top.token_ids[row].tolist(), top.logprobs[row].tolist(), strict=True))
        if PROMPT[row] in listed:
            assert listed[PROMPT[row]] == pytest.approx(result.prompt_logprobs[row], abs=5e-5)


def test_a_sampler_keeps_the_weights_it_was_made_from(base: BaseModel) -> None:
    engine = trained_engine(base)
    request = SampleRequest(PROMPT, num_samples=2, max_tokens=6, seed=3)
    [before] = sample(engine, "trained", request)
    train(engine, 3)
    [after] = sample(engine, "trained", request)
    for one, other in zip(before.sequences, after.sequences, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=5e-5)
    engine.create_sampler("newer", run_id="run")
    [newer] = sample(engine, "newer", request)
    assert np.abs(newer.sequences[0].logprobs[0] - before.sequences[0].logprobs[0]) > 1e-3


def test_a_fresh_adapter_equals_the_base_model(base: BaseModel) -> None:
    engine = trained_engine(base)
    engine.create_sampler("base")
    request = SampleRequest(PROMPT, num_samples=2, max_tokens=6, seed=3)
    [fresh], [plain] = sample(engine, "fresh", request), sample(engine, "base", request)
    np.testing.assert_array_equal(fresh.sequences[0].tokens, plain.sequences[0].tokens)
    np.testing.assert_allclose(fresh.sequences[0].logprobs, plain.sequences[0].logprobs, atol=1e-6)


def test_different_samplers_decode_in_one_batch_each_with_its_own_weights(base: BaseModel) -> None:
    engine = trained_engine(base)
    engine.create_sampler("base")
    request = SampleRequest(PROMPT, num_samples=3, max_tokens=8, seed=4, stop=[])
    names = ["base", "trained", "fresh", "trained"]
    check_batching(engine, names, request)


def test_a_request_that_joins_a_running_batch_gets_what_it_would_get_alone(
    base_engine: Engine,
) -> None:
    long = SampleRequest(PROMPT, num_samples=2, max_tokens=40, seed=1, stop=[])
    short = SampleRequest(PROMPT[:4], num_samples=5, max_tokens=7, seed=2, stop=[])
    [alone] = sample(base_engine, "base", short)
    base_engine.sample(0, "base", long)
    for _ in range(10):
        assert base_engine.sampling.step() == []
    base_engine.sample(1, "base", short)
    done = []
    while not base_engine.sampling.is_idle:
        done += base_engine.sampling.step()
    assert [job.ticket for job in done] == [1, 0]
    for one, other in zip(alone.sequences, done[0].result().sequences, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=5e-5)


def test_progress_reports_every_token_once_in_order(base_engine: Engine) -> None:
    request = SampleRequest(PROMPT, 3, 9, seed=2, stop=[], topk_sample_logprobs=2, progress=True)
    base_engine.sample(0, "base", request)
    base_engine.sample(1, "base", SampleRequest(PROMPT, 1, 20, seed=1, stop=[]))
    told: list[SampledToken] = []
    jobs = []
    while not base_engine.sampling.is_idle:
        jobs += base_engine.sampling.step()
        assert base_engine.sampling.grown.keys() <= {0}
        told += base_engine.sampling.grown.get(0, [])
    for number, sequence in enumerate(jobs[0].result().sequences):
        mine = [token for token in told if token.sequence == number]
        assert [token.token for token in mine] == sequence.tokens.tolist()
        assert [token.logprob for token in mine] == pytest.approx(sequence.logprobs.tolist())
        assert all(len(token.top) == 2 for token in mine)


def test_a_groups_prompt_is_prefilled_once(base_engine: Engine) -> None:
    requests = [SampleRequest(PROMPT, num_samples=8, max_tokens=3, stop=[])] * 4
    with tokens_run(base_engine.model) as seen:
        sample(base_engine, "base", *requests)
    assert seen == [len(PROMPT), 32, 32]


def test_a_full_cache_makes_requests_wait_and_loses_none(base: BaseModel) -> None:
    engine = Engine(base)
    engine.create_sampler("base")
    small_pool(engine, blocks=7)  # room for three answers
    requests = [
        SampleRequest(PROMPT, num_samples=3, max_tokens=10 + n, seed=n, stop=[]) for n in range(4)
    ]
    results = sample(engine, "base", *requests)
    lengths = [[len(s.tokens) for s in result.sequences] for result in results]
    assert lengths == [[10 + n] * 3 for n in range(4)]
    roomy = Engine(base)
    roomy.create_sampler("base")
    for one, other in zip(results, sample(roomy, "base", *requests), strict=True):
        np.testing.assert_array_equal(one.sequences[2].tokens, other.sequences[2].tokens)


def test_the_same_seed_gives_the_same_samples_which_differ_among_themselves(
    base_engine: Engine,
) -> None:
    request = SampleRequest(PROMPT, num_samples=4, max_tokens=10, seed=11, stop=[])
    one, other = (sample(base_engine, "base", request)[0] for _ in range(2))
    tokens = [tuple(s.tokens) for s in one.sequences]
    assert tokens == [tuple(s.tokens) for s in other.sequences]
    assert len(set(tokens)) == 4
    [unseeded] = sample(base_engine, "base", SampleRequest(PROMPT, 4, 10, stop=[]))
    assert tokens != [tuple(s.tokens) for s in unseeded.sequences]


def test_samples_follow_the_models_distribution(base_engine: Engine) -> None:
    """A chi-square-like bound on 20,000 first tokens, at two temperatures."""
    for temperature in (1.0, 2.0):
        found = []
        for seed in range(5):
            request = SampleRequest(PROMPT, 4_000, 1, temperature=temperature, seed=seed)
            [result] = sample(base_engine, "base", request)
            found += result.sequences
        first = np.array([s.tokens[0] for s in found])
        logprobs = {int(s.tokens[0]): float(s.logprobs[0]) for s in found}
        for token, logprob in logprobs.items():
            p = np.exp(logprob)
            expected, spread = 20_000 * p, np.sqrt(20_000 * p * (1 - p))
            assert abs((first == token).sum() - expected) <= 5.5 * spread + 1
        assert sum(np.exp(list(logprobs.values()))) == pytest.approx(1.0, abs=0.01)


def test_logprobs_are_those_of_the_temperature_scaled_distribution(base_engine: Engine) -> None:
    def first_logprobs(temperature: float) -> dict[int, float]:
        request = SampleRequest(PROMPT, 500, 1, temperature=temperature, seed=5)
        [result] = sample(base_engine, "base", request)
        return {int(s.tokens[0]): float(s.logprobs[0]) for s in result.sequences}

    plain, scaled = first_logprobs(1.0), first_logprobs(0.5)
    common = sorted(plain.keys() & scaled.keys())
    assert len(common) >= 3
    for i, j in itertools.pairwise(common):
        assert scaled[i] - scaled[j] == pytest.approx((plain[i] - plain[j]) / 0.5, abs=1e-3)


def test_temperature_zero_is_greedy_with_logprobs_at_temperature_one(base_engine: Engine) -> None:
    greedy = SampleRequest(PROMPT, 2, 5, temperature=0.0, stop=[], topk_prompt_logprobs=1)
    [result] = sample(base_engine, "base", greedy)
    assert np.array_equal(result.sequences[0].tokens, result.sequences[1].tokens)
    full = np.concatenate([PROMPT, result.sequences[0].tokens])
    check = SampleRequest(full, 1, 1, topk_prompt_logprobs=1)
    [scored] = sample(base_engine, "base", check)
    assert scored.topk_prompt_logprobs is not None
    top = scored.topk_prompt_logprobs
    assert top.token_ids[len(PROMPT) :, 0].tolist() == result.sequences[0].tokens.tolist()
    np.testing.assert_allclose(
        top.logprobs[len(PROMPT) :, 0], result.sequences[0].logprobs, atol=5e-5
    )


def test_top_k_and_top_p_narrow_the_choice_but_not_the_logprobs(base_engine: Engine) -> None:
    [everything] = sample(base_engine, "base", SampleRequest(PROMPT, 3000, 1, seed=1))
    known = {int(s.tokens[0]): float(s.logprobs[0]) for s in everything.sequences}
    ranked = sorted(known, key=lambda token: -known[token])
    [top3] = sample(base_engine, "base", SampleRequest(PROMPT, 500, 1, seed=2, top_k=3))
    seen = {int(s.tokens[0]): float(s.logprobs[0]) for s in top3.sequences}
    assert set(seen) == set(ranked[:3])
    assert all(seen[token] == pytest.approx(known[token], abs=5e-5) for token in seen)

    nucleus, mass = set(), 0.0
    for token in ranked:
        if mass >= 0.5:
            break
        nucleus.add(token)
        mass += np.exp(known[token])
    [half] = sample(base_engine, "base", SampleRequest(PROMPT, 500, 1, seed=3, top_p=0.5))
    assert {int(s.tokens[0]) for s in half.sequences} == nucleus


def without_stops(engine: Engine, seed: int) -> list[int]:
    request = SampleRequest(PROMPT, 1, 30, seed=seed, stop=[])
    return sample(engine, "base", request)[0].sequences[0].tokens.tolist()


def seed_without_end(engine: Engine) -> int:
    """A seed whose sample has no end token of the model in it."""
    [end] = engine.model.info.eos_token_ids
    return next(seed for seed in range(100) if end not in without_stops(engine, seed))


def test_a_token_stop_ends_the_sequence_and_is_included(base_engine: Engine) -> None:
    seed = seed_without_end(base_engine)
    tokens = without_stops(base_engine, seed)
    stop = tokens[12]
    [result] = sample(base_engine, "base", SampleRequest(PROMPT, 1, 30, seed=seed, stop=[stop]))
    [sequence] = result.sequences
    assert sequence.tokens.tolist() == tokens[: tokens.index(stop) + 1]
    assert sequence.stop_reason == "stop"
    assert len(sequence.logprobs) == len(sequence.tokens)


def test_a_string_stop_may_span_tokens_and_is_included(base_engine: Engine) -> None:
    seed = seed_without_end(base_engine)
    tokens = without_stops(base_engine, seed)
    decode = base_engine.model.tokenizer.decode
    text = next(
        pair
        for start in range(5, 28)
        if (pair := decode(tokens[start : start + 2])).isascii() and len(pair) == 2
    )
    request = SampleRequest(PROMPT, 1, 30, seed=seed, stop=["never this", text])
    [result] = sample(base_engine, "base", request)
    [sequence] = result.sequences
    assert sequence.stop_reason == "stop"
    assert text in decode(sequence.tokens)
    assert text not in decode(sequence.tokens[:-1])


def test_the_models_end_token_stops_unless_nothing_may(base_engine: Engine) -> None:
    [end] = base_engine.model.info.eos_token_ids
    seed = next(seed for seed in range(500) if end in without_stops(base_engine, seed))
    for stop in (None, ["never this"], [0]):
        [result] = sample(base_engine, "base", SampleRequest(PROMPT, 1, 30, seed=seed, stop=stop))
        [sequence] = result.sequences
        assert sequence.stop_reason == "stop"
        assert sequence.tokens[-1] in (end, 0)
    assert len(without_stops(base_engine, seed)) == 30


def test_reaching_max_tokens_is_reported_as_length(base_engine: Engine) -> None:
    [result] = sample(base_engine, "base", SampleRequest(PROMPT, 1, 4, seed=8, stop=[]))
    assert [s.stop_reason for s in result.sequences] == ["length"]


def test_without_max_tokens_the_context_is_the_limit(base_engine: Engine) -> None:
    [result] = sample(base_engine, "base", SampleRequest(PROMPT, 1, None, seed=8, stop=[]))
    assert len(PROMPT) + len(result.sequences[0].tokens) == 256


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (SampleRequest(PROMPT, 1, 0), "max_tokens is 0"),
        (SampleRequest(PROMPT, 1, 1000), "max_tokens is 1000"),
        (SampleRequest(np.zeros(256, np.int64), 1, 1), "context is 256"),
        (SampleRequest(np.empty(0, np.int64), 1, 1), "prompt is empty"),
        (SampleRequest(np.array([VOCABULARY]), 1, 1), "outside 0..271"),
        (SampleRequest(np.array([-1]), 1, 1), "outside 0..271"),
        (SampleRequest(PROMPT, 0, 1), "num_samples is 0"),
        (SampleRequest(PROMPT, 10**9, 1), "num_samples is 1000000000"),
        (SampleRequest(PROMPT, 1, 1, temperature=-1.0), "temperature is -1"),
        (SampleRequest(PROMPT, 1, 1, temperature=float("nan")), "temperature is nan"),
        (SampleRequest(PROMPT, 1, 1, top_p=0.0), "top_p is 0"),
        (SampleRequest(PROMPT, 1, 1, top_k=-7), "top_k is -7"),
        (SampleRequest(PROMPT, 1, 1, topk_prompt_logprobs=1000), "topk_prompt_logprobs is 1000"),
    ],
)
def test_a_bad_request_is_refused_with_what_is_right(
    base_engine: Engine, bad: SampleRequest, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        base_engine.sample(0, "base", bad)
    assert base_engine.sampling.is_idle
