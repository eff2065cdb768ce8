"""The same seed gives the same answer, bit for bit, whatever else the engine computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mint.engine.engine import Engine
from mint.engine.messages import (
    AdamSettings,
    Datum,
    ForwardBackward,
    LoraSpec,
    SampleRequest,
    SampleResult,
)
from mint.engine.model.base_model import BaseModel
from tests.engine.conftest import ids, sample
from tests.engine.counting import tokens_run
from tests.engine.sampling.test_sampler import small_pool
from tests.tiny import build_model

FEW_SHOT = ids("The quick brown fox jumps over the lazy dog. " * 3)
PROMPTS = [ids("Q: 1 + 1?\nA:"), FEW_SHOT, np.concatenate([FEW_SHOT, ids("Q: 2?\nA:")])]


def request(prompt: np.ndarray, number: int, **options: object) -> SampleRequest:
    settings: dict[str, object] = {"num_samples": 1, "max_tokens": 12, "stop": [], "seed": number}
    return SampleRequest(prompt, **(settings | options))  # type: ignore[arg-type]


def assert_equal(one: SampleResult, other: SampleResult) -> None:
    for mine, theirs in zip(one.sequences, other.sequences, strict=True):
        np.testing.assert_array_equal(mine.tokens, theirs.tokens)
        np.testing.assert_array_equal(mine.logprobs, theirs.logprobs)


def with_adapters(base: BaseModel, *ranks: int) -> Engine:
    """Return an engine with a sampler of the base model and one of each of several adapters."""
    engine = Engine(base, memory_gb=1.0)
    engine.create_sampler("base")
    text = FEW_SHOT[:40]
    for number, rank in enumerate(ranks):
        engine.create_run(f"run{number}", LoraSpec(rank=rank, seed=number))
        data = [Datum(text[:-1], {"target_tokens": text[1:]})]
        engine.forward_backward(f"run{number}", [ForwardBackward(data, "cross_entropy")])
        engine.optim_step(f"run{number}", AdamSettings(learning_rate=0.02))
        engine.create_sampler(f"s{number}", run_id=f"run{number}")
    return engine


FAMILIES = [
    *((name, "exact") for name in ("llama", "mistral", "gemma2", "gpt2", "phi3")),
    *((name, "bfloat16") for name in ("qwen3", "mistral", "gemma2")),
]


@pytest.fixture(scope="module", params=FAMILIES, ids="-".join)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    name, precision = request.param
    folder = build_model(tmp_path_factory.mktemp("model"), name)
    return BaseModel.load(name, folder, device="cpu", precision=precision)


def test_an_answer_alone_is_the_answer_among_others(family: BaseModel) -> None:
    engine = with_adapters(family, 3)
    requests = [
        request(PROMPTS[number % 3], number, max_tokens=4 + 7 * number, num_samples=1 + number % 4)
        for number in range(9)
    ]
    together = sample(engine, "s0", *requests)
    for one, result in zip(requests, together, strict=True):
        [alone] = sample(with_adapters(family, 3), "s0", one)
        assert_equal(alone, result)


def test_samples_with_seeds_of_their_own_are_those_of_single_requests(family: BaseModel) -> None:
    engine = with_adapters(family, 3)
    seeds = [5, 2**70, -3, 5]
    [together] = sample(engine, "s0", request(PROMPTS[0], 0, num_samples=4, seed=None, seeds=seeds))
    alone = sample(engine, "s0", *(request(PROMPTS[0], seed) for seed in seeds))
    assert_equal(together, SampleResult([one for each in alone for one in each.sequences]))
    assert together.sequences[0].tokens.tolist() != together.sequences[1].tokens.tolist()


def test_a_cached_prefix_changes_nothing(family: BaseModel) -> None:
    """A turn of a conversation starts from what decoding left in the pool, or from nothing."""
    engine = with_adapters(family, 3)
    [first] = sample(engine, "s0", request(PROMPTS[2], 5, max_tokens=40))
    longer = np.concatenate([PROMPTS[2], first.sequences[0].tokens, ids("\nQ: 3?\nA:")])
    with tokens_run(family) as seen:
        [cached] = sample(engine, "s0", request(longer, 6))
    assert seen[0] < len(longer) - len(PROMPTS[2])
    [fresh] = sample(with_adapters(family, 3), "s0", request(longer, 6))
    assert_equal(cached, fresh)


def test_a_pool_too_small_changes_nothing(family: BaseModel) -> None:
    """A prompt enters in chunks, and answers that lose their blocks are prefilled again."""
    requests = [request(FEW_SHOT, number, max_tokens=60) for number in range(3)]
    engine = with_adapters(family, 3)
    small_pool(engine, blocks=16)
    with tokens_run(family) as seen:
        crowded = sample(engine, "s0", *requests)
    assert sum(seen) > len(FEW_SHOT) + 3 * 59  # some were computed twice
    for one, result in zip(requests, crowded, strict=True):
        [alone] = sample(with_adapters(family, 3), "s0", one)
        assert_equal(alone, result)


def test_other_adapters_change_nothing(base: BaseModel) -> None:
    [alone] = sample(with_adapters(base, 3), "s0", request(PROMPTS[0], 1))
    engine = with_adapters(base, 3, 20, 1)
    requests = [request(PROMPTS[0], number) for number in range(4)]
    samplers = ["s1", "s0", "s2", "base"]
    for ticket, (name, one) in enumerate(zip(samplers, requests, strict=True)):
        engine.sample(ticket, name, one)
    results = {}
    while not engine.sampling.is_idle:
        results |= {job.ticket: job.result() for job in engine.sampling.step()}
    assert_equal(alone, results[1])


def test_prompts_are_scored_with_their_own_adapter_in_any_slot(base: BaseModel) -> None:
    asked = request(PROMPTS[1], 1, max_tokens=1, prompt_logprobs=True)
    engine = with_adapters(base, 3, 20, 1)
    names = ["s0", "s1", "s2", "base"]
    for ticket, name in enumerate(names):
        engine.sample(ticket, name, asked)
    results = {}
    while not engine.sampling.is_idle:
        results |= {job.ticket: job.result() for job in engine.sampling.step()}
    fresh = [sample(with_adapters(base, 3, 20, 1), name, asked)[0] for name in names]
    for ticket, alone in enumerate(fresh):
        np.testing.assert_array_equal(results[ticket].prompt_logprobs, alone.prompt_logprobs)
    assert not np.allclose(fresh[0].prompt_logprobs[1:], fresh[1].prompt_logprobs[1:], atol=1e-3)


@pytest.mark.parametrize("precision", ["exact", "bfloat16"])
def test_filters_and_penalties_of_others_change_nothing(tiny_model: Path, precision: str) -> None:
    base = BaseModel.load("tiny", tiny_model, device="cpu", precision=precision)
    plain = request(PROMPTS[1], 3, topk_sample_logprobs=4)
    others = [
        request(PROMPTS[1], 4, temperature=0.0),
        request(PROMPTS[0], 5, top_p=0.7, renormalize=True),
        request(PROMPTS[0], 6, top_k=3, temperature=0.5, frequency_penalty=0.5),
        request(PROMPTS[0], 7, temperature=0.7),
    ]
    together = sample(with_adapters(base), "base", plain, *others)
    for one, result in zip([plain, *others], together, strict=True):
        [alone] = sample(with_adapters(base), "base", one)
        assert_equal(alone, result)


@pytest.mark.parametrize("precision", ["exact", "bfloat16"])
def test_products_of_larger_layers(tmp_path: Path, precision: str) -> None:
    """Kernels for larger matrices are others than those for tiny ones."""
    sizes = {"hidden_size": 192, "intermediate_size": 512, "head_dim": 64, "vocab_size": 4096}
    folder = build_model(tmp_path, "llama", spread=0.05, **sizes)
    model = BaseModel.load("larger", folder, device="cpu", precision=precision)
    requests = [request(PROMPTS[number % 3], number, max_tokens=20) for number in range(13)]
    together = sample(with_adapters(model, 8), "s0", *requests)
    for number in (0, 1, 5, 12):
        [alone] = sample(with_adapters(model, 8), "s0", requests[number])
        assert_equal(alone, together[number])
