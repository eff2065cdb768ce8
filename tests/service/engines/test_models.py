"""Several base models in one service: loaded on first use, unloaded when idle or in the way."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy.exc import OperationalError

from mint.engine.messages import EngineOptions, EnginePlan, SampleRequest
from mint.service.admin.settings import Settings
from mint.service.engines.pool import Engines, Slot
from mint.service.engines.process import GB, EngineProcess
from mint.service.errors import EngineDied
from tests.processes import arguments_of
from tests.service.runs.test_recovery import logprobs, logprobs_of, train
from tests.service.samples import batch, json_datum
from tests.service_fixture import MODEL, LiveService, RawClient
from tests.tiny import build_model

OTHER = "Qwen/Qwen3-8B"


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("models") / "qwen" / "tiny", "qwen3")


def sampler_of(raw: RawClient, model: str, session: str, number: int) -> str:
    body = {"session_id": session, "sampling_session_seq_id": number, "base_model": model}
    return str(raw.post("/create_sampling_session", body).json()["sampling_session_id"])


@pytest.mark.slow
def test_models_take_turns_in_a_small_memory_and_runs_are_restored(
    own_service: Callable[..., LiveService], tiny_model: Path, other_model: Path
) -> None:
    service = own_service(aliases={MODEL: tiny_model, OTHER: other_model}, memory_gb=0.6)
    raw = RawClient(service.base_url)
    assert service.worker_pids() == [], "nothing is loaded before it is used"
    run, session = raw.run(), raw.session()
    following = train(raw, run, 1)
    saving = raw.operate("save_weights_for_sampler", run, following, sampling_session_seq_id=5)
    frozen = raw.result(saving)["sampling_session_id"]
    before = logprobs_of(raw, frozen, 0)
    raw.retrieve(
        raw.operate("forward_backward", run, following + 1, **batch(json_datum([5, 6, 9])))
    )
    [first] = service.worker_pids()

    reference = sampler_of(raw, OTHER, session, 0)
    assert b"error" not in logprobs_of(raw, reference, 0)
    [second] = service.worker_pids()
    assert second != first, "one made room for the other"

    assert logprobs_of(raw, frozen, 1) == before
    step = raw.operate("optim_step", run, following + 2, adam_params={"learning_rate": 0.01})
    assert raw.result(step)["metrics"]["grad_norm"] > 0, "a gradient that had no step came back"
    [third] = service.worker_pids()
    assert third not in (first, second)

    undisturbed = raw.run()
    number = train(raw, undisturbed, 1)
    raw.operate("forward_backward", undisturbed, number, **batch(json_datum([5, 6, 9])))
    raw.operate("optim_step", undisturbed, number + 1, adam_params={"learning_rate": 0.01})
    np.testing.assert_array_equal(
        logprobs(raw, run, following + 3), logprobs(raw, undisturbed, number + 2)
    )
    names = {
        model["model_name"]
        for model in raw.http.get("/get_server_capabilities").json()["supported_models"]
    }
    assert {MODEL, OTHER} <= names


@pytest.mark.slow
def test_an_engine_is_started_with_its_precision_and_memory(
    own_service: Callable[..., LiveService],
) -> None:
    [worker] = own_service().worker_pids()
    assert arguments_of(worker)[-2:] == ["--precision", "exact"], "what tests get by default"
    [worker] = own_service(models=(MODEL,), precision="bfloat16", memory_gb=2).worker_pids()
    told = ["--precision", "bfloat16", "--memory-gb", "2.000"]
    assert arguments_of(worker)[-4:] == told


@pytest.mark.slow
def test_preloaded_models_share_the_memory(
    own_service: Callable[..., LiveService], tiny_model: Path, other_model: Path
) -> None:
    service = own_service(
        aliases={MODEL: tiny_model, OTHER: other_model}, models=(MODEL, OTHER), memory_gb=3
    )
    shares = [float(arguments_of(worker)[-1]) for worker in service.worker_pids()]
    assert len(shares) == 2, "none had to make room for the other"
    assert shares == pytest.approx([1.5, 1.5], abs=0.1)
    assert sum(shares) <= 3


@pytest.mark.slow
def test_a_model_loaded_later_gets_what_the_first_leaves(
    own_service: Callable[..., LiveService], tiny_model: Path, other_model: Path
) -> None:
    aliases = {MODEL: tiny_model, OTHER: other_model}
    service = own_service(aliases=aliases, models=(MODEL,), memory_gb=4)
    [first] = service.worker_pids()
    assert arguments_of(first)[-1] == "4.000"
    raw = RawClient(service.base_url)
    assert b"error" not in logprobs_of(raw, sampler_of(raw, OTHER, raw.session(), 0), 0)
    [second] = set(service.worker_pids()) - {first}
    assert 0.4 < float(arguments_of(second)[-1]) < 4


DECIDED = r"{} on \S.*: precision exact \(.+\), [\d,]+ KV tokens \(\d+\.\d GB\), "
DECIDED += r"[\d,]+ training tokens a pass"


@pytest.mark.slow
def test_the_service_says_what_its_engines_decided(
    own_service: Callable[..., LiveService], tiny_model: Path, other_model: Path
) -> None:
    service = own_service(aliases={MODEL: tiny_model, OTHER: other_model}, models=(MODEL,))
    raw = RawClient(service.base_url)
    assert b"error" not in logprobs_of(raw, sampler_of(raw, OTHER, raw.session(), 0), 0)
    service.stop()
    assert service.process.stdout is not None
    [printed] = service.process.stdout.read().splitlines()
    assert re.fullmatch("mint: " + DECIDED.format(MODEL), printed), "after the ready line"
    logged = (service.home / "service.log").read_text()
    assert len(re.findall(DECIDED.format(OTHER), logged)) == 1
    assert not re.findall(DECIDED.format(MODEL), logged), "it was printed"


async def nothing_to_save(engine: EngineProcess) -> None:
    pass


def test_an_engine_counts_by_the_memory_of_its_device(tmp_path: Path, tiny_model: Path) -> None:
    async def sizes() -> tuple[int, int, int]:
        settings = Settings(home=tmp_path, aliases={MODEL: tiny_model}, precision="exact")
        engines = Engines(settings, before_unload=nothing_to_save)
        starting = asyncio.create_task(engines.get(MODEL))
        slot = Slot(MODEL, weights_bytes=5, starting=starting, granted_bytes=7 * GB)
        try:
            before, engine = slot.size, await starting
            on_cpu, on_gpu = (
                dataclasses.replace(engine.info, plan=EnginePlan(device, "exact", "", 0, 0, 0, 123))
                for device in ("cpu", "NVIDIA H200")
            )
            engine.info = on_cpu
            resident = slot.size
            engine.info = on_gpu
            return before, resident, slot.size
        finally:
            await engines.stop()

    before, resident, on_device = asyncio.run(sizes())
    assert before == 7 * GB, "it may take that much"
    assert resident > 10**8
    assert on_device == 123


@pytest.mark.parametrize("error", [OperationalError("select 1", {}, OSError()), ValueError("x")])
def test_an_engine_is_stopped_also_when_it_cannot_be_saved(
    tmp_path: Path, tiny_model: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async def cannot_save(engine: EngineProcess) -> None:
        raise error

    async def work() -> None:
        settings = Settings(
            home=tmp_path, aliases={MODEL: tiny_model}, precision="exact", model_idle_s=0.0
        )
        engines = Engines(settings, before_unload=cannot_save)
        try:
            engine = await engines.get(MODEL)
            await engines.unload_idle()
            assert not engine.is_alive
            assert engines.why_waiting(MODEL) is not None, "its memory is free"
        finally:
            await engines.stop()

    asyncio.run(work())
    assert "was not saved" in caplog.text


def test_a_model_that_never_fits_is_refused(own_service: Callable[..., LiveService]) -> None:
    raw = RawClient(own_service(memory_gb=0.1).base_url)
    body = {"session_id": raw.session(), "model_seq_id": 0, "base_model": MODEL}
    answer = raw.post("/create_model", {**body, "lora_config": {"rank": 4}})
    failure = raw.result(answer.json()["request_id"])
    assert "memory_gb" in failure["error"]
    assert failure["category"] == "user"


@pytest.mark.slow
def test_an_idle_model_is_unloaded_and_its_run_resumes(
    own_service: Callable[..., LiveService],
) -> None:
    service = own_service(model_idle_s=0.2)
    raw = RawClient(service.base_url)
    run = raw.run()
    following = train(raw, run, 1)
    while service.worker_pids():
        pass
    assert list((service.home / "runs").glob("*/snapshot-*")), "it comes back without a replay"
    train(raw, run, following)


def test_progress_that_cannot_be_passed_on_fails_its_own_call_only(
    tiny_model: Path, tmp_path: Path
) -> None:
    """A listener that fails must not end the reading of the engine's other answers."""

    def broken(_: object) -> None:
        raise ValueError("this token has no text")

    async def work() -> int:
        log, options = tmp_path / "engine.log", EngineOptions("exact", None)
        engine = await EngineProcess.start("tiny", tiny_model, log, 120.0, options)
        try:
            await engine.call("create_sampler", sampler_id="s", folder=None)
            request = SampleRequest(np.array([1, 2, 3]), max_tokens=8, stop=[], progress=True)
            streamed = engine.call("sample", broken, sampler_id="s", request=request)
            other = engine.call("sample", sampler_id="s", request=request)
            failed, sampled = await asyncio.gather(streamed, other, return_exceptions=True)
            assert isinstance(failed, ValueError)
            assert engine.is_alive
            assert engine.depth == 0
            return len(sampled.sequences[0].tokens)
        finally:
            await engine.stop()

    assert asyncio.run(work()) == 8


def test_a_worker_that_is_slow_to_start_delays_no_client(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may take long to start a program, for example from a disk that hangs."""
    others, start = threading.Event(), subprocess.Popen

    def start_late(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        assert others.wait(10), "nothing else could run meanwhile"
        return start(*arguments, **options)

    async def work() -> None:
        asyncio.get_running_loop().call_soon(others.set)
        log, options = tmp_path / "log", EngineOptions("exact")
        engine = await EngineProcess.start("tiny", tiny_model, log, 60, options)
        await engine.stop()

    monkeypatch.setattr(subprocess, "Popen", start_late)
    asyncio.run(work())


def test_a_call_to_an_engine_that_is_stopped_while_it_ends_does_not_wait_for_ever(
    tmp_path: Path,
) -> None:
    async def work() -> BaseException | None:
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(["true"])
        engine = EngineProcess("tiny", process, ours, tmp_path / "log")
        waiting = asyncio.create_task(engine.call("memory"))
        await asyncio.to_thread(theirs.recv, 1)
        theirs.close()
        while not engine._channel._sender.cancelling():
            await asyncio.sleep(0)
        engine._read_task.cancel()
        await asyncio.wait([engine._read_task])
        await asyncio.wait([waiting], timeout=0)
        return waiting.exception() if waiting.done() else None

    assert isinstance(asyncio.run(work()), EngineDied)
