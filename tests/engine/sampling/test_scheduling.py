"""Scheduling: the order of requests, what is computed once, and what a failure affects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mint.engine import attention
from mint.engine.attention.blocked import BlockedAttention
from mint.engine.attention.layout import Chunk
from mint.engine.engine import Engine
from mint.engine.messages import SampleRequest, SampleResult, UserError
from mint.engine.model.base_model import BaseModel
from mint.engine.model.context import Attention
from mint.engine.sampling.kv_pool import BLOCK_SIZE, KVPool
from mint.engine.sampling.runner import Runner, Tokens
from mint.engine.sampling.sampler import Sampler
from mint.engine.sampling.sequence import Job
from tests.engine.conftest import ids, sample
from tests.engine.counting import tokens_run
from tests.engine.plain_decode import ReferenceDecode
from tests.engine.sampling.test_sampler import small_pool, trained_engine, trainer_logprobs
from tests.tiny import FAMILIES, VOCABULARY, build_model

PROMPT = ids("Q: 1 + 1?\nA:")
LONG = ids("The quick brown fox jumps over the lazy dog. " * 3)


@pytest.fixture
def base_engine(engine: Engine) -> Engine:
    engine.create_sampler("base")
    return engine


def assert_same(one: SampleResult, other: SampleResult) -> None:
    for mine, theirs in zip(one.sequences, other.sequences, strict=True):
        np.testing.assert_array_equal(mine.tokens, theirs.tokens)
        np.testing.assert_allclose(mine.logprobs, theirs.logprobs, atol=5e-5)


# ---- what is computed once ----------------------------------------------------------------------


def test_requests_with_the_same_prompt_prefill_it_once(base_engine: Engine) -> None:
    requests = [SampleRequest(PROMPT, num_samples=2, max_tokens=3, stop=[])] * 4
    with tokens_run(base_engine.model) as seen:
        sample(base_engine, "base", *requests)
    assert seen == [len(PROMPT), 8, 8]


def test_prompts_of_one_batch_share_the_blocks_of_their_examples(base_engine: Engine) -> None:
    prompts = [np.concatenate([LONG, ids(text)]) for text in ("1+1", "22+2", "3")]
    shared = len(LONG) // BLOCK_SIZE * BLOCK_SIZE
    with tokens_run(base_engine.model) as seen:
        results = sample(base_engine, "base", *(SampleRequest(p, 1, 4, seed=1) for p in prompts))
    assert seen[0] == sum(len(prompt) for prompt in prompts) - 2 * shared
    for prompt, result in zip(prompts, results, strict=True):
        other = Engine(base_engine.model)
        other.create_sampler("base")
        assert_same(result, sample(other, "base", SampleRequest(prompt, 1, 4, seed=1))[0])


def test_a_turn_of_a_conversation_prefills_only_its_new_blocks(base_engine: Engine) -> None:
    talk, previous = LONG, 0
    for turn in range(3):
        with tokens_run(base_engine.model) as seen:
            [result] = sample(base_engine, "base", SampleRequest(talk, 1, 9, seed=1, stop=[]))
        known = 0 if turn == 0 else (previous - 1) // BLOCK_SIZE * BLOCK_SIZE
        assert seen[0] == len(talk) - known
        previous = len(talk) + 9  # the answer's newest token was never run
        talk = np.concatenate([talk, result.sequences[0].tokens, ids("And then?")])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_second_turn_agrees_with_the_trainer(family: str, tmp_path: Path) -> None:
    folder = build_model(tmp_path / "m" / family, family)
    engine = trained_engine(BaseModel.load(family, folder, device="cpu", precision="exact"))
    prompt = LONG[:40]
    for _ in range(2):
        request = SampleRequest(prompt, num_samples=3, max_tokens=20, seed=1, stop=[])
        [result] = sample(engine, "trained", request)
        for got, want in zip(
            result.sequences, trainer_logprobs(engine, prompt, result), strict=True
        ):
            assert np.abs(got.logprobs - want).max() <= 1e-4
        prompt = np.concatenate([prompt, result.sequences[0].tokens, PROMPT])


# ---- attention backends -------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_grouped_decoding_equals_the_plain_reference(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of uneven size and length, with rows that come and go, against a gather per step."""
    folder = build_model(tmp_path / "m" / family, family)
    model = BaseModel.load(family, folder, device="cpu", precision="exact")
    results = []
    for is_plain in (False, True):
        engine = trained_engine(model)
        if is_plain:
            pool = engine._runner.pool

            def plain_view(chunks: list[Chunk], pool: KVPool = pool) -> Attention:
                is_decode = all(len(chunk.tokens) == 1 for chunk in chunks)
                return ReferenceDecode(pool, chunks) if is_decode else BlockedAttention(chunks)

            monkeypatch.setattr(attention, "BlockedAttention", plain_view)
        requests = [
            SampleRequest(LONG[:70], 5, 30, seed=1, stop=[]),
            SampleRequest(PROMPT, 1, 9, seed=2, stop=[]),
            SampleRequest(LONG[:33], 2, 70, seed=3, stop=[]),
        ]
        results.append(sample(engine, "trained", *requests))
    for grouped, plain in zip(*results, strict=True):
        assert_same(grouped, plain)


# ---- memory -------------------------------------------------------------------------------------


def test_a_pool_that_is_too_small_for_all_makes_answers_resume_with_the_same_tokens(
    base: BaseModel,
) -> None:
    requests = [
        SampleRequest(LONG[: 20 + n], num_samples=3, max_tokens=40, seed=n, stop=[])
        for n in range(4)
    ]
    small, roomy = Engine(base), Engine(base)
    small_pool(small, blocks=14)
    for engine in (small, roomy):
        engine.create_sampler("base")
    for one, other in zip(
        sample(small, "base", *requests), sample(roomy, "base", *requests), strict=True
    ):
        assert_same(one, other)
    assert small.sampling.tokens_held == small.sampling.tokens_kept


def test_memory_grows_with_live_tokens_and_not_with_max_tokens(base: BaseModel) -> None:
    engine = Engine(base)
    small_pool(engine, blocks=17)
    engine.create_sampler("base")
    for ticket in range(8):
        engine.sample(ticket, "base", SampleRequest(PROMPT, 1, 200, seed=ticket, stop=[]))
    for _ in range(3):
        engine.sampling.step()
    assert len(engine.sampling.scheduler.running) == 8


def test_a_request_larger_than_the_pool_is_refused(base: BaseModel) -> None:
    engine = Engine(base)
    small_pool(engine, blocks=4)
    engine.create_sampler("base")
    with pytest.raises(UserError, match="has memory for"):
        engine.sample(0, "base", SampleRequest(PROMPT, 1, 100))


def test_a_long_prompt_is_prefilled_in_chunks_while_answers_continue(base: BaseModel) -> None:
    engine = Engine(base)
    small_pool(engine, blocks=60)  # with chunks of 64 tokens
    engine.create_sampler("base")
    engine.sample(0, "base", SampleRequest(PROMPT, 1, 50, seed=1, stop=[]))
    engine.sampling.step()
    engine.sample(1, "base", SampleRequest(np.tile(LONG, 2)[:200], 1, 4, seed=1, stop=[]))
    running = engine.sampling.scheduler.running[0]
    for chunk in (64, 64, 64, 8):
        before = len(running.tokens)
        with tokens_run(base) as seen:
            engine.sampling.step()
        assert seen == [1, chunk]  # the running answer's token, then the prompt
        assert len(running.tokens) == before + 1


class RunsPassesLater(Runner):
    """Launches prefill passes as a GPU does: when they end, the test says."""

    has_ended = False

    def pass_end(self) -> Callable[[], bool]:
        return lambda: self.has_ended


def test_running_answers_do_not_wait_for_the_first_token_of_a_prompt(base: BaseModel) -> None:
    """Picking waits for the device, so it follows in the step after the pass has ended."""
    engine, runner = engine_with(base, RunsPassesLater, max_rows=4)
    engine.sample(0, "base", SampleRequest(PROMPT, 1, 50, seed=1, stop=[]))
    engine.sampling.step()
    assert engine.sampling.started == [0]  # nothing else runs
    engine.sample(1, "base", SampleRequest(LONG, 1, 4, seed=1, stop=[]))
    for _ in range(3):
        engine.sampling.step()
        assert engine.sampling.started == []
    runner.has_ended = True  # type: ignore[attr-defined]
    engine.sampling.step()
    assert engine.sampling.started == [1]
    finish(engine)


def test_passes_are_short_while_few_prompts_wait_and_many_answers_run(base: BaseModel) -> None:
    engine = Engine(base)
    pool = KVPool(base.kv_shapes, 200, torch.float32, torch.device("cpu"))
    engine.sampling = Sampler(Runner(base, pool), max_rows=64, chunk_tokens=128, busy_tokens=32)
    engine.create_sampler("base")
    rng = np.random.default_rng(0)

    def prompt_pass(prompts: int, length: int) -> int:
        for _ in range(prompts):
            prompt = rng.integers(0, VOCABULARY, length)
            engine.sample(len(tickets), "base", SampleRequest(prompt, 1, 100, seed=1, stop=[]))
            tickets.append(length)
        with tokens_run(base) as seen:
            engine.sampling.step()
        return seen[-1]  # after the pass of running answers

    tickets: list[int] = []
    assert prompt_pass(1, 100) == 100  # nothing runs yet
    assert prompt_pass(1, 100) == 32  # one runs and one waits
    while len(engine.sampling.scheduler.running) < 2:
        engine.sampling.step()
    assert prompt_pass(8, 16) == 128  # many wait: the sooner they run, the better
    assert prompt_pass(2, 40) == 32  # ten run


# ---- fairness and failures ----------------------------------------------------------------------


def test_samplers_take_turns_in_being_admitted(base: BaseModel) -> None:
    engine = trained_engine(base)
    engine.create_sampler("base")
    small_pool(engine, blocks=6)
    for ticket in range(20):
        engine.sample(ticket, "base", SampleRequest(PROMPT, 1, 12, seed=ticket, stop=[]))
    engine.sample(20, "trained", SampleRequest(PROMPT, 1, 12, seed=0, stop=[]))
    done: list[int] = []
    while 20 not in done:
        done += [job.ticket for job in engine.sampling.step()]
    assert len(done) <= 8


def test_admission_looks_at_each_waiting_request_once(base_engine: Engine) -> None:
    """10,000 waiting requests are not walked through at every step."""
    scheduler = base_engine.sampling.scheduler
    looked = 0
    original = scheduler._make_prefill

    def counting(*args):  # type: ignore[no-untyped-def]
        nonlocal looked
        looked += 1
        return original(*args)

    scheduler._make_prefill = counting  # type: ignore[method-assign]
    for ticket in range(2000):
        prompt = np.array([ticket % 250, ticket // 250, 7])
        base_engine.sample(ticket, "base", SampleRequest(prompt, 1, 2, seed=1, stop=[]))
    steps = 0
    while not base_engine.sampling.is_idle:
        base_engine.sampling.step()
        steps += 1
    assert looked <= 2000 + 2 * steps


def test_one_sample_does_not_wait_for_the_many_of_another_request(base: BaseModel) -> None:
    engine = Engine(base)
    small_pool(engine, blocks=200)  # with 16 rows
    engine.create_sampler("base")
    engine.sample(0, "base", SampleRequest(PROMPT, 200, 8, seed=1, stop=[]))
    engine.sampling.step()
    engine.sample(1, "base", SampleRequest(LONG[:20], 1, 8, seed=1, stop=[]))
    steps, done = 0, []
    while 1 not in done:
        done += [job.ticket for job in engine.sampling.step()]
        steps += 1
    assert steps <= 30  # 200 answers in 16 rows take a hundred
    while not engine.sampling.is_idle:
        done += [job.ticket for job in engine.sampling.step()]
    assert done == [1, 0]


class Broken(Runner):
    """A runner whose passes fail on one token, as a failed allocation would."""

    def prefill(self, steps):  # type: ignore[no-untyped-def]
        if any((step.chunk.tokens == 200).any() for step in steps):
            raise torch.OutOfMemoryError("no room")
        return super().prefill(steps)


def test_a_prompt_whose_prefill_fails_fails_alone(base: BaseModel) -> None:
    engine = Engine(base)
    pool = KVPool(base.kv_shapes, 60, torch.float32, torch.device("cpu"))
    engine.sampling = Sampler(Broken(base, pool), max_rows=16, chunk_tokens=64)
    engine.create_sampler("base")
    good = SampleRequest(PROMPT, 2, 5, seed=1, stop=[])
    engine.sample(0, "base", good)
    engine.sample(1, "base", SampleRequest(np.array([1, 200, 3]), 3, 5))
    # Shares the bad prompt's blocks within the pass, and must not be computed from them.
    bad = np.concatenate([LONG[:32], [200, 200]])
    engine.sample(3, "base", SampleRequest(bad, 1, 5, seed=2, stop=[]))
    shares = SampleRequest(LONG[:40], 1, 5, seed=2, stop=[])
    engine.sample(2, "base", shares)
    over = {}
    while not engine.sampling.is_idle:
        over |= {job.ticket: job for job in engine.sampling.step()}
    assert isinstance(over[1].error, torch.OutOfMemoryError)
    assert [over[ticket].error for ticket in (0, 2)] == [None, None]
    fresh = Engine(base)
    fresh.create_sampler("base")
    assert isinstance(over[3].error, torch.OutOfMemoryError)
    assert_same(over[0].result(), sample(fresh, "base", good)[0])
    assert_same(over[2].result(), sample(fresh, "base", shares)[0])
    assert engine.sampling.scheduler.blocks.free == engine.sampling.scheduler.blocks.capacity


class Faulty(Runner):
    """A runner whose next ``failures`` passes of one kind run out of memory."""

    kind = ""
    failures = 0

    def _maybe_fail(self, kind: str) -> None:
        if kind == self.kind and self.failures > 0:
            self.failures -= 1
            raise torch.OutOfMemoryError("no room")

    def first(self, sequences):  # type: ignore[no-untyped-def]
        self._maybe_fail("first")
        yield from super().first(sequences)

    def decode(self, sequences, version, extended):  # type: ignore[no-untyped-def]
        self._maybe_fail("decode")
        return super().decode(sequences, version, extended)

    def copy_blocks(self, copies):  # type: ignore[no-untyped-def]
        self._maybe_fail("copy_blocks" if copies else "")
        super().copy_blocks(copies)


def finish(engine: Engine) -> dict[int, Job]:
    """Run until nothing is left; return the jobs by ticket."""
    over = {}
    while not engine.sampling.is_idle:
        over |= {job.ticket: job for job in engine.sampling.step()}
    return over


def engine_with(base: BaseModel, runner: type[Runner], max_rows: int = 16) -> tuple[Engine, Runner]:
    engine = Engine(base)
    pool = KVPool(base.kv_shapes, 60, torch.float32, torch.device("cpu"))
    made = runner(base, pool)
    engine.sampling = Sampler(made, max_rows=max_rows, chunk_tokens=64)
    engine.create_sampler("base")
    return engine, made


@pytest.mark.parametrize("kind", ["first", "decode", "copy_blocks"])
def test_a_pass_without_memory_is_retried_with_fewer_rows(base: BaseModel, kind: str) -> None:
    requests = [SampleRequest(LONG[:20], 3, 8, seed=1, stop=[]), SampleRequest(PROMPT, 4, 9)]
    engine, runner = engine_with(base, Faulty)
    runner.kind, runner.failures = kind, 1  # type: ignore[attr-defined]
    for ticket, request in enumerate(requests):
        engine.sample(ticket, "base", replace(request, seed=ticket, stop=[]))
    over = finish(engine)
    plain = Engine(base)
    plain.create_sampler("base")
    for ticket, request in enumerate(requests):
        [alone] = sample(plain, "base", replace(request, seed=ticket, stop=[]))
        assert_same(over[ticket].result(), alone)
    assert engine.sampling.scheduler.blocks.free == engine.sampling.scheduler.blocks.capacity


@pytest.mark.parametrize(("kind", "failures"), [("first", 2), ("decode", 3), ("copy_blocks", 2)])
def test_a_request_that_fails_alone_too_is_the_only_one_to_fail(
    base: BaseModel, kind: str, failures: int
) -> None:
    """The pass of all rows fails, then those of ever fewer, until one row is left."""
    engine, runner = engine_with(base, Faulty)
    for ticket in range(4):
        engine.sample(ticket, "base", SampleRequest(LONG[: 20 + ticket], 1, 8, seed=1, stop=[]))
    runner.kind, runner.failures = kind, failures  # type: ignore[attr-defined]
    over = finish(engine)
    assert len(over) == 4
    assert runner.failures == 0  # type: ignore[attr-defined]
    assert [type(job.error) for job in over.values()].count(torch.OutOfMemoryError) == 1
    assert sum(len(job.result().sequences) for job in over.values() if job.error is None) == 3


def test_a_step_that_fails_for_ever_fails_its_requests_and_ends(base: BaseModel) -> None:
    engine, runner = engine_with(base, Faulty)
    runner.kind, runner.failures = "decode", 1000  # type: ignore[attr-defined]
    for ticket in range(3):
        engine.sample(ticket, "base", SampleRequest(PROMPT, 4, 8, seed=ticket, stop=[]))
    over = finish(engine)
    assert [type(over[ticket].error) for ticket in range(3)] == [torch.OutOfMemoryError] * 3


class OneStepLate(Runner):
    """A runner that returns the tokens of a step with the next one, as that of a GPU does."""

    flight: Tokens | None = None

    @property
    def ahead(self) -> int:  # type: ignore[override]
        return 0 if self.flight is None else 1

    @property
    def is_idle(self) -> bool:
        return self.flight is None

    def decode(self, sequences, version, extended):  # type: ignore[no-untyped-def]
        before, self.flight = self.flight, None
        unknown = [(s, token) for s, token, *_ in before.rows()] if before else []
        for sequence, token in unknown:
            sequence.tokens.append(token)
        self.flight = super().decode(sequences, version, extended)
        for sequence, _ in unknown:
            sequence.tokens.pop()
        return before

    def drain(self) -> Tokens | None:
        before, self.flight = self.flight, None
        return before


def test_answers_that_give_way_while_a_step_is_in_flight_are_not_changed(base: BaseModel) -> None:
    """The rows of a crowd give way to another tenant, lengths at which answers end among them."""
    engine, _ = engine_with(base, OneStepLate, max_rows=4)
    requests = {
        ticket: SampleRequest(
            LONG[: 15 + ticket], 2, 7 + ticket % 5, seed=ticket, stop=[], tenant="crowd"
        )
        for ticket in range(8)
    }
    for ticket, request in requests.items():
        engine.sample(ticket, "base", request)
    over: dict[int, Job] = {}
    for ticket in range(8, 14):
        for _ in range(3):
            over |= {job.ticket: job for job in engine.sampling.step()}
        requests[ticket] = SampleRequest(PROMPT, 1, 5, seed=ticket, stop=[], tenant=f"t{ticket}")
        engine.sample(ticket, "base", requests[ticket])
    over |= finish(engine)
    plain = Engine(base)
    plain.create_sampler("base")
    for ticket, request in requests.items():
        assert_same(over[ticket].result(), sample(plain, "base", request)[0])


def test_an_answer_that_ends_while_another_is_cancelled_is_returned(base: BaseModel) -> None:
    """Cancelling waits for the step in flight, which may hold the last token of another."""
    engine, _ = engine_with(base, OneStepLate)
    engine.sample(0, "base", SampleRequest(PROMPT, 1, 3, seed=1, stop=[]))
    engine.sample(1, "base", SampleRequest(PROMPT, 1, 50, seed=2, stop=[]))
    for _ in range(3):
        engine.sampling.step()
    assert engine.sampling.cancel(1)
    assert list(finish(engine)) == [0]


def test_a_request_that_fails_leaves_its_prompt_to_those_that_share_it(base: BaseModel) -> None:
    """Its first rows fail while more of its answers wait; the other's first tokens are picked."""
    engine, _ = engine_with(base, Runner, max_rows=4)
    good = SampleRequest(LONG[:20], 1, 5, seed=1, stop=[])
    engine.sample(0, "base", good)
    engine.sample(1, "base", replace(good, num_samples=9, repetition_penalty=1e-300))
    over = finish(engine)
    assert isinstance(over[1].error, UserError)
    plain = Engine(base)
    plain.create_sampler("base")
    assert_same(over[0].result(), sample(plain, "base", good)[0])
    assert engine.sampling.scheduler.blocks.free == engine.sampling.scheduler.blocks.capacity


def test_answers_that_the_failing_step_finished_are_kept(base: BaseModel) -> None:
    class BreaksDown(Faulty):
        def recover(self) -> None:
            raise RuntimeError("the device is lost")

    engine, runner = engine_with(base, BreaksDown)
    engine.sample(0, "base", SampleRequest(PROMPT, 1, 2, seed=1, stop=[]))
    engine.sampling.step()
    engine.sample(1, "base", SampleRequest(LONG[:20], 1, 4, seed=1, stop=[]))
    runner.kind, runner.failures = "first", 1  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError) as lost:
        engine.sampling.step()
    over = {job.ticket: job for job in engine.sampling.abandon(lost.value)}
    assert len(over[0].result().sequences[0].tokens) == 2
    assert over[1].error is lost.value


def test_a_bank_that_could_not_grow_loads_its_adapters_again(tiny_model: Path) -> None:
    base = BaseModel.load("tiny", tiny_model, device="cpu", precision="exact")
    engine = trained_engine(base)
    request = SampleRequest(PROMPT, 2, 6, seed=3, stop=[])
    [alone] = sample(engine, "trained", request)
    *_, last = (p for p in base.products.values() if p.sites)

    def fail(slots: int, rank: int) -> None:
        del last.new_bank  # type: ignore[method-assign]
        raise torch.OutOfMemoryError("no room")

    last.new_bank = fail  # type: ignore[method-assign]
    before = base.bank.writes
    with pytest.raises(torch.OutOfMemoryError):
        base.bank.use([engine._samplers["trained"], engine._samplers["fresh"]])
    assert base.bank.writes > before  # whoever remembers slots, as a GPU's runner, looks again
    assert_same(alone, sample(engine, "trained", request)[0])


def test_a_request_without_max_tokens_gets_what_the_pool_has(base: BaseModel) -> None:
    engine = Engine(base)
    small_pool(engine, blocks=3)  # fewer tokens than the context
    engine.create_sampler("base")
    [result] = sample(engine, "base", SampleRequest(PROMPT, 1, None, seed=1, stop=[]))
    assert len(PROMPT) + len(result.sequences[0].tokens) == engine.sampling.capacity
    with pytest.raises(UserError, match="this engine has memory for"):
        engine.sample(0, "base", SampleRequest(LONG, 1, None))


def test_a_prompt_that_leaves_no_block_to_begin_an_answer_is_refused(base: BaseModel) -> None:
    """It would wait for a block for ever, and everyone else with it."""
    engine = Engine(base)
    small_pool(engine, blocks=4)
    engine.create_sampler("base")
    prompt = LONG[: 2 * BLOCK_SIZE + 4]  # in all three blocks, the last with room for 12 tokens
    with pytest.raises(UserError, match="has memory for"):
        engine.sample(0, "base", SampleRequest(prompt, 1, 12))
    for max_tokens in (1, None):  # a single token needs no block
        [result] = sample(engine, "base", SampleRequest(prompt, 1, max_tokens, stop=[]))
        assert len(result.sequences[0].tokens) == 1
    [result] = sample(engine, "base", SampleRequest(prompt[: 2 * BLOCK_SIZE], 1, 16, stop=[]))
    assert len(result.sequences[0].tokens) == 16


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"stop": ["\ud800"]}, "not valid Unicode"),
        ({"stop": ["x" * 1001]}, "1001 characters"),
        ({"topk_sample_logprobs": 41, "num_samples": 4096, "max_tokens": 100}, "numbers in all"),
        ({"min_p": 1.5}, "min_p is 1.5"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty is nan"),
        ({"logit_bias": {272: 1.0}}, "logit_bias has 272"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias has 1: inf"),
    ],
)
def test_a_bad_request_is_refused_before_it_joins_others(
    base_engine: Engine, bad: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        base_engine.sample(0, "base", SampleRequest(PROMPT, **{"max_tokens": 4, **bad}))  # type: ignore[arg-type]
    assert base_engine.sampling.is_idle


def test_a_top_k_beyond_any_vocabulary_is_off(base_engine: Engine) -> None:
    huge = SampleRequest(PROMPT, 2, 6, seed=3, stop=[], top_k=2**63)
    plain = SampleRequest(PROMPT, 2, 6, seed=3, stop=[])
    assert_same(sample(base_engine, "base", huge)[0], sample(base_engine, "base", plain)[0])


def test_a_cancelled_job_leaves_its_blocks_and_the_others_alone(base_engine: Engine) -> None:
    keep = SampleRequest(PROMPT, 2, 12, seed=1, stop=[])
    base_engine.sample(0, "base", keep)
    base_engine.sample(1, "base", SampleRequest(LONG[:40], 4, 100, seed=1, stop=[]))
    for _ in range(4):
        base_engine.sampling.step()
    base_engine.sample(2, "base", SampleRequest(LONG[:50], 4, 100, seed=1, stop=[]))
    assert base_engine.sampling.cancel(1)
    assert base_engine.sampling.cancel(2)
    assert not base_engine.sampling.cancel(1)
    done = []
    while not base_engine.sampling.is_idle:
        done += base_engine.sampling.step()
    assert [job.ticket for job in done] == [0]
    assert len(done[0].result().sequences) == 2
    blocks = base_engine.sampling.scheduler.blocks
    assert blocks.free == blocks.capacity


def test_after_a_failure_of_everything_new_requests_work(base_engine: Engine) -> None:
    request = SampleRequest(PROMPT, 2, 6, seed=3, stop=[])
    [before] = sample(base_engine, "base", request)
    base_engine.sample(0, "base", SampleRequest(LONG[:40], 4, 100, stop=[]))
    base_engine.sampling.step()
    [lost] = base_engine.sampling.abandon(RuntimeError("lost"))
    assert isinstance(lost.error, RuntimeError)
    assert base_engine.sampling.is_idle
    assert_same(before, sample(base_engine, "base", request)[0])


def test_more_adapters_than_slots_take_turns(base: BaseModel) -> None:
    engine = trained_engine(base)
    names = [f"s{n}" for n in range(20)]
    for name in names:
        engine.create_sampler(name, run_id="run")
    request = SampleRequest(PROMPT, 2, 6, seed=3, stop=[])
    [alone] = sample(engine, "trained", request)
    for ticket, name in enumerate(names):
        engine.sample(ticket, name, request)
    results = {}
    while not engine.sampling.is_idle:
        results |= {job.ticket: job.result() for job in engine.sampling.step()}
    assert len(results) == 20
    for result in results.values():
        assert_same(alone, result)


def test_a_slot_taken_by_another_adapter_is_counted_for_runners_that_remember_slots(
    base: BaseModel,
) -> None:
    """A runner that remembers slots, as the GPU's does, must see that one was written."""
    engine = trained_engine(base)
    engine.create_sampler("other", run_id="run")
    bank = base.bank
    one, other = (engine._samplers[name] for name in ("trained", "other"))
    assert one is not None
    assert other is not None
    bank.use([one])
    before = bank.writes
    bank.use([one])
    assert bank.writes == before
    slots = [bank.use([adapter]) for adapter in (other, one)]
    assert bank.writes >= before + (slots[0][other] == slots[1][one])
    both = bank.use([one, other])
    assert both[one] != both[other]
    assert bank.writes > before


def test_scoring_with_another_sampler_leaves_running_answers_their_own_weights(
    base: BaseModel,
) -> None:
    engine = trained_engine(base)
    request = SampleRequest(PROMPT, 4, 30, seed=1, stop=[])
    [alone] = sample(engine, "trained", request)
    engine.sample(0, "trained", request)
    done = []
    for step in range(5):
        done += engine.sampling.step()
        score = SampleRequest(ids(f"number {step}"), 1, 1, prompt_logprobs=True)
        engine.sample(1 + step, "fresh", score)
    while not engine.sampling.is_idle:
        done += engine.sampling.step()
    [mine] = [job.result() for job in done if job.ticket == 0]
    assert_same(alone, mine)
