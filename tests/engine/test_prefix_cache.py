"""The prefix cache: what is kept is found again, changes no answer, and makes way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mint.engine.engine import Engine
from mint.engine.lora import Adapter
from mint.engine.messages import IntArray, LoraSpec, SampleRequest, SampleResult, UserError
from mint.engine.model import BaseModel
from mint.engine.prefix_cache import PrefixCache
from mint.engine.sampler import Sampler
from tests.engine.conftest import ids, sample
from tests.engine.counting import tokens_run
from tests.engine.test_sampler import trained_engine, trainer_logprobs
from tests.tiny import FAMILIES, VOCABULARY, build_model

PROMPT = ids("Q: 1 + 1?\nA:")
ADAPTERS = [None, Adapter(LoraSpec(), {}), Adapter(LoraSpec(), {})]

Text = tuple[int, list[int]]
texts: st.SearchStrategy[Text] = st.tuples(
    st.integers(0, 2), st.lists(st.integers(0, 2), min_size=1, max_size=6)
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(texts, max_size=4)),
        st.tuples(st.just("find"), texts),
        st.tuples(st.just("shrink"), st.integers(0, 12)),
        st.tuples(st.just("forget"), st.integers(1, 2)),
    ),
    max_size=20,
)


def content(adapter: int, tokens: list[int]) -> float:
    """Stands for the keys and values of the last token: a number that names what leads to it."""
    return float(int("".join(str(1 + n) for n in (adapter, *tokens)), 5))


def add(cache: PrefixCache, batch: list[Text], limit: int) -> None:
    sequences = [(ADAPTERS[adapter], np.array(tokens)) for adapter, tokens in batch]
    new = cache.add(sequences, limit)
    values = [content(batch[e.sequence][0], batch[e.sequence][1][: e.position + 1]) for e in new]
    cache.write(new, [(0, torch.tensor(values).reshape(-1, 1, 1, 1))])


def found(cache: PrefixCache, text: Text) -> list[float]:
    slots = cache.find(ADAPTERS[text[0]], np.array(text[1]))
    return cache.layers[0][slots].flatten().tolist() if slots else []


@given(steps, st.integers(0, 12))
def test_whatever_happens_a_prefix_is_found_with_its_own_content(
    history: list[tuple[str, object]], limit: int
) -> None:
    cache = PrefixCache()
    seen: list[Text] = []
    for action, argument in history:
        match action:
            case "add":
                add(cache, argument, limit)
                seen += argument
            case "find":
                seen.append(argument)
            case "shrink":
                cache.shrink(argument)
                limit = min(limit, argument)
            case "forget":
                cache.forget(ADAPTERS[argument])
                assert not any(found(cache, text) for text in seen if text[0] == argument)
        assert len(cache) <= limit
        for adapter, tokens in seen:
            values = found(cache, (adapter, tokens))
            wanted = [content(adapter, tokens[: n + 1]) for n in range(len(tokens))]
            assert values == wanted[: len(values)]


def test_the_least_recently_used_goes_first_and_the_end_of_a_sequence_before_its_beginning() -> (
    None
):
    cache = PrefixCache()
    add(cache, [(0, [1, 1, 1]), (0, [2, 2, 2])], limit=6)
    found(cache, (0, [1, 1, 1]))
    add(cache, [(0, [0, 0])], limit=6)
    kept = {n: len(found(cache, (0, [n] * 3))) for n in range(3)}
    assert kept == {0: 2, 1: 3, 2: 1}


def test_a_sequence_longer_than_the_room_is_kept_as_far_as_it_goes() -> None:
    cache = PrefixCache()
    add(cache, [(0, [1, 2, 0, 1, 2]), (1, [1])], limit=3)
    assert len(found(cache, (0, [1, 2, 0, 1, 2]))) == 3
    assert len(cache) == 3


def test_what_is_kept_for_an_adapter_that_is_gone_is_never_found_by_another() -> None:
    cache = PrefixCache()
    for _ in range(50):  # an object made after another is gone may have its address
        adapter = Adapter(LoraSpec(), {})
        assert cache.find(adapter, PROMPT) == []
        cache.add([(adapter, PROMPT)], limit=10_000)
        del adapter


@pytest.fixture
def base_engine(engine: Engine) -> Engine:
    engine.create_sampler("base")
    return engine


def test_each_turn_of_a_conversation_prefills_only_what_is_new(base_engine: Engine) -> None:
    talk = PROMPT
    for turn in range(4):
        request = SampleRequest(talk, num_samples=1, max_tokens=5, stop=[])
        with tokens_run(base_engine.model) as seen:
            [result] = sample(base_engine, "base", request)
        # The last token of an answer was never run: it is new to the next turn.
        assert seen == [len(PROMPT) + (turn > 0), 1, 1, 1, 1]
        talk = np.concatenate([talk, result.sequences[0].tokens, PROMPT])


def test_examples_that_prompts_share_are_prefilled_once_over_steps(base_engine: Engine) -> None:
    examples = ids("2 + 2 = 4\n3 + 1 = 4\n")
    for question, wanted in (("1 + 1", len(examples) + 5), ("2 + 1", 5), ("2 + 0", 1)):
        prompt = np.concatenate([examples, ids(question)])
        with tokens_run(base_engine.model) as seen:
            sample(base_engine, "base", SampleRequest(prompt, 2, 1, stop=[]))
        assert seen == [wanted]


def test_a_prompt_that_is_kept_whole_runs_its_last_token_for_each_group(
    base_engine: Engine,
) -> None:
    request = SampleRequest(PROMPT, num_samples=3, max_tokens=2, seed=1, stop=[])
    [first] = sample(base_engine, "base", request)
    with tokens_run(base_engine.model) as seen:
        again = sample(base_engine, "base", request, request)
    assert seen == [1, 6]
    for one, other in zip(again[1].sequences, first.sequences, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


def test_samplers_of_different_weights_share_nothing(base: BaseModel) -> None:
    engine = trained_engine(base)
    for name in ("trained", "fresh"):
        with tokens_run(base) as seen:
            sample(engine, name, SampleRequest(PROMPT, 1, 1))
        assert seen == [len(PROMPT)]


def test_a_dropped_sampler_leaves_nothing_even_if_it_was_still_running(base: BaseModel) -> None:
    engine = trained_engine(base)
    sample(engine, "fresh", SampleRequest(PROMPT, 1, 3, stop=[]))
    assert engine.memory()["cache_tokens_kept"] == len(PROMPT) + 2
    engine.sample(0, "trained", SampleRequest(PROMPT, 1, 3, stop=[]))
    engine.sampling.step()
    engine.drop_sampler("fresh")
    engine.drop_sampler("trained")
    assert engine.memory()["cache_tokens_kept"] == 0
    while not engine.sampling.is_idle:
        engine.sampling.step()
    assert engine.memory()["cache_tokens_kept"] == 0


def test_kept_prefixes_make_way_for_running_sequences(base: BaseModel) -> None:
    engine = engine_with(base, cache_tokens=256, kept_tokens=128)
    for n in range(6):
        sample(engine, "base", SampleRequest(np.full(30, n), 1, 8, stop=[]))
    assert engine.sampling.tokens_kept == 128
    engine.sample(0, "base", SampleRequest(PROMPT, 3, 40, stop=[]))
    while not engine.sampling.is_idle:
        engine.sampling.step()
        assert engine.sampling.tokens_held <= 256
    assert 0 < engine.sampling.tokens_kept <= 64  # beside three rows of 64


def test_after_a_failure_nothing_is_kept(base_engine: Engine) -> None:
    sample(base_engine, "base", SampleRequest(PROMPT, 1, 3, stop=[]))
    base_engine.sampling.abandon()
    assert base_engine.sampling.tokens_held == 0


def test_a_rope_that_changes_with_the_length_of_a_batch_is_used_only_where_it_does_not(
    tmp_path: Path,
) -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [3.0] * 4, "rope_theta": 10_000.0}
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 64, **factors}
    folder = build_model(tmp_path / "model" / "longrope", "llama", rope_parameters=rope)
    model = BaseModel.load("longrope", folder, device="cpu")
    assert model.info.context_length == 64
    engine = engine_with(model, 4096, 2048)
    with pytest.raises(UserError, match="64"):
        sample(engine, "base", SampleRequest(ids("a" * 65), 1, 1, stop=[]))


def engine_with(
    model: BaseModel, cache_tokens: int, kept_tokens: int, prefill_tokens: int = 1024
) -> Engine:
    engine = Engine(model)
    engine.create_sampler("base")
    engine.sampling = Sampler(model, cache_tokens, kept_tokens, prefill_tokens)
    return engine


class Crowd:
    """Users who go on with earlier texts, at random moments, and sometimes give up."""

    def __init__(self, engine: Engine, samplers: list[str], seed: int) -> None:
        self._engine = engine
        self._samplers = samplers
        self._rng = np.random.default_rng(seed)
        self._texts: list[IntArray] = [PROMPT]
        self.asked: dict[int, tuple[str, SampleRequest]] = {}
        self.answers: dict[int, SampleResult] = {}

    def run(self, requests: int) -> None:
        while len(self.asked) < requests or not self._engine.sampling.is_idle:
            if len(self.asked) < requests and self._rng.random() < 0.3:
                for _ in range(self._rng.integers(1, 6)):
                    self._ask()
            if self.asked and self._rng.random() < 0.03:
                self._engine.sampling.cancel(int(self._rng.choice(list(self.asked))))
            for job in self._engine.sampling.step():
                self.answers[job.ticket] = job.result()
                for sequence in job.result().sequences:
                    self._texts.append(np.concatenate([job.request.prompt, sequence.tokens]))

    def _ask(self) -> None:
        rng, ticket = self._rng, len(self.asked)
        begin = self._texts[rng.integers(len(self._texts))]
        begin = begin[: rng.integers(1, min(len(begin), 60) + 1)]
        more = rng.integers(0, VOCABULARY, rng.integers(0, 4))
        request = SampleRequest(
            np.concatenate([begin, more]),
            num_samples=int(rng.integers(1, 4)),
            max_tokens=int(rng.integers(1, 10)),
            temperature=float(rng.choice([0.0, 1.0])),
            seed=ticket,
            stop=[],
            prompt_logprobs=bool(rng.random() < 0.2),
        )
        self.asked[ticket] = str(rng.choice(self._samplers)), request
        self._engine.sample(ticket, self.asked[ticket][0], request)


def load(family: str, folder: Path) -> BaseModel:
    return BaseModel.load(family, build_model(folder / "m" / family, family), device="cpu")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("cache", "kept"), [(100_000, 50_000), (2000, 150), (1000, 300)])
def test_a_sampler_that_keeps_nothing_gives_every_answer_the_same_logprobs(
    family: str, cache: int, kept: int, tmp_path: Path
) -> None:
    """Each answer is scored, not drawn again: a draw may fall on the edge between two tokens."""
    engine = trained_engine(load(family, tmp_path))
    engine.create_sampler("base")
    engine.sampling = Sampler(engine.model, cache, kept, prefill_tokens=100)
    crowd = Crowd(engine, ["base", "fresh", "trained"], seed=kept)
    crowd.run(requests=40)
    assert len(crowd.answers) >= 30
    assert engine.sampling.tokens_kept <= kept

    engine.sampling = Sampler(engine.model, 100_000, 0, prefill_tokens=1024)
    for ticket, answer in crowd.answers.items():
        name, request = crowd.asked[ticket]
        start = len(request.prompt)
        for sequence in answer.sequences:
            full = np.concatenate([request.prompt, sequence.tokens])
            scoring = SampleRequest(full, 1, 1, prompt_logprobs=True, topk_prompt_logprobs=1)
            [scores] = sample(engine, name, scoring)
            np.testing.assert_allclose(sequence.logprobs, scores.prompt_logprobs[start:], atol=1e-4)
            if request.temperature == 0:
                best = scores.topk_prompt_logprobs.logprobs[start:, 0]
                np.testing.assert_allclose(sequence.logprobs, best, atol=1e-4)
            if answer.prompt_logprobs is not None:
                mine, theirs = answer.prompt_logprobs, scores.prompt_logprobs[:start]
                np.testing.assert_allclose(mine, theirs, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_greedy_conversation_is_that_of_a_sampler_that_keeps_nothing(
    family: str, tmp_path: Path
) -> None:
    engine = trained_engine(load(family, tmp_path))
    talks = []
    for kept in (0, 10_000):
        engine.sampling = Sampler(engine.model, 20_000, kept, prefill_tokens=1024)
        talk = PROMPT
        for _ in range(4):
            request = SampleRequest(talk, 1, 6, temperature=0.0, stop=[])
            [result] = sample(engine, "trained", request)
            talk = np.concatenate([talk, result.sequences[0].tokens, PROMPT])
        talks.append(talk.tolist())
    assert talks[0] == talks[1]


@pytest.mark.parametrize(
    ("dtype", "largest", "mean"),
    [(torch.float32, 1e-4, 1e-4), (torch.bfloat16, 2e-2, 2e-3)],
)
def test_a_second_turn_agrees_with_the_trainer(
    tiny_model: Path, dtype: torch.dtype, largest: float, mean: float
) -> None:
    engine = trained_engine(BaseModel.load("tiny", tiny_model, device="cpu", dtype=dtype))
    [first] = sample(engine, "trained", SampleRequest(PROMPT, 1, 32, seed=1, stop=[]))
    talk = np.concatenate([PROMPT, first.sequences[0].tokens, PROMPT])
    [second] = sample(engine, "trained", SampleRequest(talk, 16, 32, seed=2, stop=[]))
    wanted = trainer_logprobs(engine, talk, second)
    gaps = np.concatenate(
        [np.abs(s.logprobs - lp) for s, lp in zip(second.sequences, wanted, strict=True)]
    )
    assert gaps.max() <= largest
    assert gaps.mean() <= mean
