"""Tenants share an engine: many requests of one do not delay the single sample of another.

Steps are counted, not seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
import torch

from mint.engine.adapters.lora import MAX_SLOTS
from mint.engine.engine import Engine
from mint.engine.messages import LoraSpec, SampleRequest, SampleResult
from mint.engine.model.base_model import BaseModel
from mint.engine.sampling.kv_pool import KVPool
from mint.engine.sampling.runner import Runner
from mint.engine.sampling.sampler import Sampler
from mint.service.access.auth import create_key
from tests.reliability.local import Local, with_service
from tests.service_fixture import MODEL

FEW = 5  # steps that a sample may take beside one per token


@pytest.fixture(scope="module")
def base(tiny_model: Path) -> BaseModel:
    return BaseModel.load("tiny", tiny_model, device="cpu", precision="exact")


def engine_of(base: BaseModel, rows: int = 16, blocks: int = 400, chunk: int = 64) -> Engine:
    engine = Engine(base)
    pool = KVPool(base.kv_shapes, blocks, torch.float32, torch.device("cpu"))
    engine.sampling = Sampler(Runner(base, pool), max_rows=rows, chunk_tokens=chunk)
    engine.create_sampler("base")
    return engine


def crowd(engine: Engine, jobs: int, sampler: str = "base", tokens: int = 60) -> None:
    """Queue requests of one tenant, each of four long answers to a prompt of its own."""
    first = 1000 + len(engine.sampling._jobs)
    for number in range(first, first + jobs):
        prompt = np.array([number % 250, number // 250, 7])
        request = SampleRequest(prompt, 4, tokens, stop=[], tenant="crowd", seed=number)
        engine.sample(number, sampler, request)


def single(tokens: int = 8, **options: object) -> SampleRequest:
    options = {"stop": [], "tenant": "ada", "seed": 1} | options
    return SampleRequest(np.array([1, 2, 3]), 1, tokens, **options)  # type: ignore[arg-type]


def run(engine: Engine, steps: int) -> dict[int, SampleResult]:
    done: dict[int, SampleResult] = {}
    for _ in range(steps):
        done |= {job.ticket: job.result() for job in engine.sampling.step()}
    return done


def steps_until(engine: Engine, ticket: int, limit: int = 2000) -> int:
    """Advance until a request is done; return how many steps it took."""
    for step in range(1, limit):
        if any(job.ticket == ticket for job in engine.sampling.step()):
            return step
    raise AssertionError(f"request {ticket} was not done after {limit} steps")


def rows_of(engine: Engine, tenant: str) -> int:
    return sum(s.job.tenant == tenant for s in engine.sampling.scheduler.running)


def test_a_single_sample_does_not_wait_for_the_rows_of_another_tenant(base: BaseModel) -> None:
    engine = engine_of(base)
    crowd(engine, 2500)  # 10,000 answers
    run(engine, 5)
    assert rows_of(engine, "crowd") == 16, "a tenant that is alone has all rows"
    engine.sample(1, "base", single(8))
    assert steps_until(engine, 1) <= 8 + FEW


def test_a_single_sample_does_not_wait_for_the_blocks_of_another_tenant(base: BaseModel) -> None:
    engine = engine_of(base, rows=64, blocks=40)
    crowd(engine, 50, tokens=200)
    run(engine, 60)
    assert engine.sampling.scheduler.blocks.free < 5, "the pool is full"
    engine.sample(1, "base", single(8))
    assert steps_until(engine, 1) <= 8 + FEW


def test_a_single_sample_does_not_wait_for_the_samplers_of_another_tenant(base: BaseModel) -> None:
    """One tenant's samplers take all slots for adapters, and more of them wait."""
    engine = engine_of(base, rows=64)
    engine.create_run("run", LoraSpec(rank=2, seed=1))
    names = [f"s{number}" for number in range(MAX_SLOTS + 4)]
    for name in [*names, "ada"]:
        engine.create_sampler(name, run_id="run")
    for name in names:
        crowd(engine, 3, name)
    run(engine, 5)
    engine.sample(1, "ada", single(8))
    assert steps_until(engine, 1) <= 8 + FEW


def test_a_single_sample_does_not_wait_for_the_long_prompts_of_another_tenant(
    base: BaseModel,
) -> None:
    engine = engine_of(base, chunk=8)
    for number in range(20):
        prompt = np.concatenate([[number], np.arange(220)])
        engine.sample(100 + number, "base", SampleRequest(prompt, 1, 20, tenant="crowd", stop=[]))
    run(engine, 2)
    engine.sample(1, "base", single(8))
    assert steps_until(engine, 1) <= 8 + FEW


@pytest.mark.parametrize("tenants", [1, MAX_SLOTS], ids=["of the same tenant", "of others"])
def test_a_sampler_does_not_wait_for_the_queues_of_those_that_have_all_slots(
    base: BaseModel, tenants: int
) -> None:
    """Each slot has an adapter with a long queue, so that none is ever without an answer."""
    engine = engine_of(base, rows=4 * MAX_SLOTS)
    engine.create_run("run", LoraSpec(rank=2, seed=1))
    names = [f"s{number}" for number in range(MAX_SLOTS)]
    for name in [*names, "late"]:
        engine.create_sampler(name, run_id="run")
    random = np.random.default_rng(0)
    longest = 40
    for number in range(100 * MAX_SLOTS):
        who = number % MAX_SLOTS
        tokens = int(random.integers(5, longest))
        tenant = f"tenant {who % tenants}"
        prompt = np.array([number % 250, number // 250])
        request = SampleRequest(prompt, 1, tokens, stop=[], tenant=tenant, seed=number)
        engine.sample(1000 + number, names[who], request)
    run(engine, 3)
    engine.sample(1, "late", single(8, tenant="tenant 0" if tenants == 1 else "ada"))
    assert steps_until(engine, 1) <= 2 * longest + 8 + FEW


def test_two_crowds_have_half_the_rows_each(base: BaseModel) -> None:
    engine = engine_of(base)
    crowd(engine, 100)
    run(engine, 5)
    for number in range(100):
        engine.sample(number, "base", single(60, seed=number))
    run(engine, 10)
    assert (rows_of(engine, "crowd"), rows_of(engine, "ada")) == (8, 8)


def test_the_samplers_of_one_tenant_take_turns(base: BaseModel) -> None:
    engine = engine_of(base, rows=4)
    engine.create_run("run", LoraSpec(rank=2, seed=1))
    engine.create_sampler("other", run_id="run")
    crowd(engine, 40, tokens=4)
    engine.sample(1, "other", single(4, tenant="crowd"))
    assert steps_until(engine, 1) <= 3 * 4 + FEW


def test_an_answer_that_gave_way_is_bit_equal(base: BaseModel) -> None:
    requests = {
        1000 + n: SampleRequest(np.array([n, 2, 7]), 2, 40, stop=[], tenant="crowd", seed=n)
        for n in range(20)
    }
    results = []
    for is_disturbed in (False, True):
        engine = engine_of(base, blocks=60)
        for ticket, request in requests.items():
            engine.sample(ticket, "base", request)
        done = run(engine, 3)
        for number in range(60):
            if is_disturbed:
                engine.sample(number, "base", single(3, seed=number))
            done |= run(engine, 3)
        while not engine.sampling.is_idle:
            done |= run(engine, 1)
        blocks = engine.sampling.scheduler.blocks
        assert blocks.free == blocks.capacity
        results.append({ticket: done[ticket] for ticket in requests})
    for ticket in requests:
        for mine, theirs in zip(
            results[0][ticket].sequences, results[1][ticket].sequences, strict=True
        ):
            np.testing.assert_array_equal(mine.tokens, theirs.tokens)
            np.testing.assert_array_equal(mine.logprobs, theirs.logprobs)


def test_many_tenants_all_end(base: BaseModel) -> None:
    """More tenants than rows or slots, in a small pool, with long and short requests mixed."""
    engine = engine_of(base, rows=8, blocks=40)
    engine.create_run("run", LoraSpec(rank=2, seed=1))
    for number in range(20):
        engine.create_sampler(f"s{number}", run_id="run")
    random = np.random.default_rng(0)
    tickets = set(range(40))
    for ticket in tickets:
        prompt = random.integers(0, 250, random.integers(1, 200))
        request = SampleRequest(
            prompt,
            int(random.integers(1, 6)),
            int(random.integers(1, 40)),
            stop=[],
            tenant=f"tenant {ticket % 20}",
            seed=ticket,
        )
        engine.sample(ticket, f"s{random.integers(20)}", request)
    for _ in range(20_000):
        tickets -= {job.ticket for job in engine.sampling.step()}
        if engine.sampling.is_idle:
            break
    assert not tickets
    blocks = engine.sampling.scheduler.blocks
    assert blocks.free == blocks.capacity


def calls_of_scheduling(engine: Engine) -> int:
    """Run until all is done; return how many functions the scheduler's own code called."""
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        if event in ("call", "c_call"):
            calls += Path(frame.f_code.co_filename).stem in ("scheduler", "holdings", "waiting")

    sys.setprofile(count)
    try:
        while not engine.sampling.is_idle:
            engine.sampling.step()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("prompts", [1, 10_000], ids=["one prompt", "a prompt each"])
def test_scheduling_a_request_takes_no_longer_when_many_wait(base: BaseModel, prompts: int) -> None:
    calls = []
    for count in (128, 1024):
        engine = engine_of(base, rows=64)
        for ticket in range(count):
            number = ticket % prompts
            prompt = np.array([number % 250, number // 250])
            request = SampleRequest(prompt, 1, 2, stop=[], tenant=str(ticket % 3))
            engine.sample(ticket, "base", request)
        calls.append(calls_of_scheduling(engine) / count)
    assert calls[1] <= 1.5 * calls[0]


# ---- through the service ------------------------------------------------------------------------


def keys_of(local: Local, *users: str) -> list[dict[str, str]]:
    """Create a key for each user; return the headers that present it."""
    return [{"X-API-Key": create_key(local.service.store, user, user)} for user in users]


async def sampler_of(local: Local, headers: dict[str, str]) -> str:
    body = {"session_id": await local.session(headers=headers), "sampling_session_seq_id": 0}
    made = await local.post(
        "/create_sampling_session", {**body, "base_model": MODEL}, headers=headers
    )
    return str(made.json()["sampling_session_id"])


def sample_body(sampler: str, number: int, samples: int, tokens: int) -> dict[str, object]:
    return {
        "sampling_session_id": sampler,
        "seq_id": number,
        "num_samples": samples,
        "prompt": {"chunks": [{"tokens": [number % 250, 2, 3]}]},
        "sampling_params": {"max_tokens": tokens, "stop": []},
    }


@pytest.mark.slow
def test_the_samples_of_one_key_do_not_keep_those_of_another_waiting(
    tiny_model: Path, tmp_path: Path
) -> None:
    """200 times 4 answers of 200 tokens of one key, then 8 tokens of another."""

    async def work(local: Local) -> None:
        crowd, ada = keys_of(local, "crowd", "ada")
        many = await sampler_of(local, crowd)
        ids = []
        for number in range(200):
            answer = await local.post("/asample", sample_body(many, number, 4, 200), headers=crowd)
            ids.append(answer.json()["request_id"])
        one = await sampler_of(local, ada)
        asked = await local.post("/asample", sample_body(one, 0, 1, 8), headers=ada)
        question = {"request_id": asked.json()["request_id"]}
        while (await local.post("/retrieve_future", question, headers=ada)).status_code == 408:
            pass
        unfinished = sum(local.service.futures.is_open(request_id) for request_id in ids)
        assert unfinished >= 100

    with_service(tmp_path / "home", work, aliases={MODEL: tiny_model}, precision="exact")


@pytest.mark.slow
def test_one_key_does_not_take_all_samples_that_may_be_in_progress(
    tiny_model: Path, tmp_path: Path
) -> None:
    async def work(local: Local) -> None:
        crowd, ada = keys_of(local, "crowd", "ada")
        many, one = await sampler_of(local, crowd), await sampler_of(local, ada)
        statuses = []
        for number in range(30):
            body = sample_body(many, number, 2000, 240)
            statuses.append((await local.post("/asample", body, headers=crowd)).status_code)
        assert statuses == [200] * 16 + [429] * 14
        asked = await local.post("/asample", sample_body(one, 0, 1, 8), headers=ada)
        assert asked.status_code == 200

    settings = {"aliases": {MODEL: tiny_model}, "precision": "exact"}
    with_service(tmp_path / "home", work, max_outstanding_samples=20, **settings)
