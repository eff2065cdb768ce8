"""Kills at named points: what was acknowledged happens exactly once, and the answer comes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from mint.service.engines.process import EngineProcess
from mint.service.errors import EngineDied
from mint.service.runs.journal import Journal
from tests.reliability.conftest import Faults
from tests.reliability.local import Local, with_service
from tests.service.runs.test_create_by_load import creation
from tests.service.samples import batch, json_datum
from tests.service_fixture import (
    DATABASES,
    MODEL,
    SLOWLY_BOTH,
    LiveService,
    RawClient,
)

Start = Callable[..., LiveService]
STEP = {"adam_params": {"learning_rate": 0.01}}
GRADIENT = "mint.engine.engine:Engine.forward_backward_steps"


def saved(raw: RawClient, run: str, home: Path, seq_id: int) -> bytes:
    """The adapter of a run as its files have it."""
    result = raw.result(raw.operate("save_weights", run, seq_id, path=f"at-{seq_id}"))
    name = result["path"].split("/")[-1]
    folder = home / "checkpoints" / run.replace(":", "_") / "weights" / name
    return (folder / "adapter_model.safetensors").read_bytes()


def steps(raw: RawClient, run: str, count: int) -> list[str]:
    """Submit training steps without waiting; returns their request ids."""
    ids = []
    for step in range(count):
        data = batch(json_datum([5, 6, 7 + step]))
        ids.append(raw.operate("forward_backward", run, 2 * step + 1, **data))
        ids.append(raw.operate("optim_step", run, 2 * step + 2, **STEP))
    return ids


@pytest.fixture(scope="module")
def undisturbed(live_service: LiveService) -> bytes:
    """The adapter after three steps that nothing disturbed."""
    raw = RawClient(live_service.base_url)
    run = raw.run()
    steps(raw, run, 3)
    return saved(raw, run, live_service.home, 7)


def no_failures(raw: RawClient, request_ids: list[str]) -> None:
    for request_id in request_ids:
        answer = raw.retrieve(request_id)
        assert answer.status_code == 200, answer.text
        assert b'"error"' not in answer.content, answer.text


@SLOWLY_BOTH
@pytest.mark.slow
def test_a_worker_that_dies_again_and_again_loses_no_step(
    own_service: Start, faults: Faults, undisturbed: bytes
) -> None:
    """It dies while the run is made, under an operation, while it is replayed and released."""
    faults.at("mint.engine.engine:Engine.create_run", 1)
    faults.at(GRADIENT, 2)
    faults.at("mint.engine.engine:Engine.optim_step", 2, "kill after")
    faults.at("mint.engine.engine:Engine.drop_run", 1)
    service = own_service()
    raw = RawClient(service.base_url)
    run = raw.run()
    no_failures(raw, steps(raw, run, 3))
    assert saved(raw, run, service.home, 7) == undisturbed
    assert raw.post("/unload_model", {"model_id": run}).status_code == 200
    faults.require_all()
    Journal(service.home / "runs" / run.replace(":", "_")).close()  # the lock was given back


@SLOWLY_BOTH
@pytest.mark.slow
def test_an_applied_gradient_is_not_reported_as_failed_after_a_restart(
    own_service: Start, faults: Faults, undisturbed: bytes
) -> None:
    """The service dies with the answers, and then workers die during the replay."""
    service = own_service()
    raw = RawClient(service.base_url)
    run = raw.run()
    ids = steps(raw, run, 3)
    raw.result(ids[-1])
    service.kill()
    faults.at(GRADIENT, 1)
    faults.at(GRADIENT, 2)
    service = own_service(service.port)
    raw = RawClient(service.base_url)
    no_failures(raw, ids)
    assert saved(raw, run, service.home, 7) == undisturbed
    faults.require_all()


@DATABASES
@pytest.mark.slow
def test_a_service_killed_at_every_kind_of_write_resumes(
    own_service: Start, faults: Faults, undisturbed: bytes
) -> None:
    """Before and after an outcome, in a snapshot, and when a checkpoint gets its name."""
    faults.at("mint.service.runs.journal:Journal.append_outcome", 2, "kill")
    faults.at("mint.service.runs.journal:Journal._replace", 1, "kill after")
    faults.at("mint.service.runs.journal:Journal.cut", 1, "kill after")
    faults.at("mint.service.checkpoints.storage:CheckpointStore.publish", 1, "kill after")
    service = own_service(snapshot_after_bytes=0)
    run = RawClient(service.base_url).run()

    def train_and_save(client: RawClient) -> bytes:
        no_failures(client, steps(client, run, 3))
        return saved(client, run, service.home, 7)

    for _ in range(len(faults.planned) + 1):
        try:
            final = train_and_save(RawClient(service.base_url))
            break
        except httpx.TransportError:
            service.process.wait(60)
            service = own_service(service.port, snapshot_after_bytes=0)
    assert final == undisturbed
    faults.require_all()


@SLOWLY_BOTH
@pytest.mark.slow
def test_an_operation_that_kills_every_worker_fails_alone(
    own_service: Start, faults: Faults, undisturbed: bytes
) -> None:
    """Another run trains in the same workers, and resumes each time."""
    for _ in range(3):
        faults.at("mint.engine.engine:Engine.save_adapter", 1)
    service = own_service()
    raw = RawClient(service.base_url)
    other, run = raw.run(), raw.run()
    poison = raw.operate("save_weights_for_sampler", run, 1, path="poison")
    no_failures(raw, steps(raw, other, 3))
    result = raw.result(poison)
    assert saved(raw, other, service.home, 7) == undisturbed
    assert "3 times" in result["error"]
    assert result["category"] == "server"
    assert "metrics" in raw.result(raw.operate("optim_step", run, 2, **STEP))
    faults.require_all()


@pytest.mark.slow
def test_an_operation_beside_one_that_kills_its_workers_is_not_in_the_next_ones_with_it(
    tmp_path: Path, tiny_model: Path
) -> None:
    """Both are in the first worker, and would be in all three if they were not tried alone."""

    async def work(local: Local) -> None:
        service, bodies = local.service, {"session_id": await local.session(), "base_model": MODEL}
        for number in range(2):
            body = {**bodies, "model_seq_id": number, "lora_config": {"rank": 4, "seed": 1}}
            assert (await local.post("/create_model", body)).status_code == 200
        one, other = (run._in_engine for run in service.runs._runs.values())
        is_alone, beside = service.engines._suspects[MODEL].locked, asyncio.Event()

        async def kill(engine: EngineProcess) -> None:
            if not is_alone():
                await beside.wait()
            engine.kill()
            await engine.call("memory")

        async def wait(engine: EngineProcess) -> None:
            beside.set()
            while not is_alone():
                await engine.call("memory")

        waiting = asyncio.create_task(other._in_engine("waiting", wait))
        with pytest.raises(EngineDied, match="happened 3 times"):
            await one._in_engine("killing", kill)
        await waiting

    with_service(tmp_path, work, aliases={MODEL: tiny_model})


@pytest.mark.slow
@pytest.mark.parametrize("deaths", [2, 3])
def test_a_sample_survives_two_deaths_of_its_worker(
    own_service: Start, faults: Faults, deaths: int
) -> None:
    for _ in range(deaths):
        faults.at("mint.engine.sampling.sampler:Sampler.step", 3)
    raw = RawClient(own_service().base_url)
    body = {"session_id": raw.session(), "sampling_session_seq_id": 0, "base_model": MODEL}
    sampler = raw.post("/create_sampling_session", body).json()["sampling_session_id"]
    params = {"max_tokens": 8, "stop": []}
    body = {"sampling_session_id": sampler, "seq_id": 1, "sampling_params": params}
    sample = raw.post("/asample", {**body, "prompt": {"chunks": [{"tokens": [5, 6, 7]}]}})
    answer = raw.retrieve(sample.json()["request_id"])
    assert answer.status_code == 200
    assert (b"was killed by SIGKILL" in answer.content) == (deaths == 3)
    faults.require_all()


def test_a_failed_creation_is_retried_when_it_is_requested_again(raw: RawClient) -> None:
    body = {"session_id": raw.session(), "model_seq_id": 0, "base_model": MODEL}
    first = raw.post("/create_model", {**body, "lora_config": {"rank": 5000}}).json()["request_id"]
    assert "rank is 5000" in raw.result(first)["error"]
    again = raw.post("/create_model", {**body, "lora_config": {"rank": 4}}).json()["request_id"]
    assert raw.result(again)["model_id"] == again.removesuffix(":0")


@pytest.mark.slow
def test_a_repeated_creation_that_fails_keeps_the_run(
    own_service: Start, faults: Faults, undisturbed: bytes
) -> None:
    """After a restart the service does not know that the request was answered before."""
    service = own_service()
    raw = RawClient(service.base_url)
    run = raw.run()
    no_failures(raw, steps(raw, run, 3))
    service.kill()
    faults.at("mint.engine.engine:Engine.create_run", 1, "EIO")
    raw = RawClient(own_service(service.port).base_url)
    body = {"session_id": run.split(":")[0], "model_seq_id": 0, "base_model": MODEL}
    body["lora_config"] = {"rank": 4, "seed": 1}
    failed = raw.result(raw.post("/create_model", body).json()["request_id"])
    assert failed["category"] == "server"
    faults.require_all()
    assert raw.http.get(f"/training_runs/{run}").status_code == 200
    again = raw.result(raw.post("/create_model", body).json()["request_id"])
    assert again["model_id"] == run
    assert saved(raw, run, service.home, 7) == undisturbed


@SLOWLY_BOTH
@pytest.mark.slow
def test_a_hung_worker_is_killed_and_its_runs_resume(own_service: Start, faults: Faults) -> None:
    """Housekeeping waits for the hung worker at the same time, to release a silent session."""
    faults.at("mint.engine.engine:Engine.drop_run", 1, "stop")
    service = own_service(stuck_after_s=15.0, session_idle_s=0.2)
    raw = RawClient(service.base_url)
    run = raw.run()
    [worker] = service.worker_pids()
    while service.worker_pids() == [worker]:
        raw.http.get("/healthz")
    assert "metrics" in raw.result(raw.operate("optim_step", run, 1, **STEP))
    faults.require_all()


@SLOWLY_BOTH
@pytest.mark.slow
def test_replayed_loading_takes_the_weights_of_then(
    own_service: Start, faults: Faults, undisturbed: bytes
) -> None:
    """The checkpoint is overwritten after it was loaded, and there is no snapshot in between."""
    faults.at("mint.service.runs.journal:Journal.cut", 1, "EIO")
    service = own_service()
    raw = RawClient(service.base_url)
    run = raw.run()
    no_failures(raw, steps(raw, run, 3))
    assert saved(raw, run, service.home, 7) == undisturbed
    other = raw.run()
    loaded = raw.operate("load_weights", other, 1, path=f"tinker://{run}/weights/at-7")
    no_failures(raw, [loaded])
    step = raw.operate("optim_step", run, 8, **STEP)
    no_failures(raw, [step, raw.operate("save_weights", run, 9, path="at-7", overwrite=True)])
    faults.require_all()
    [worker] = service.worker_pids()
    os.kill(worker, signal.SIGKILL)
    assert saved(raw, other, service.home, 2) == undisturbed


@pytest.mark.slow
def test_a_kill_between_the_row_and_the_files_of_a_checkpoint_leaves_no_folder(
    own_service: Start, faults: Faults, tmp_path: Path
) -> None:
    """The row of a deleted one is gone and its files are not; those of a copy have no row yet."""
    faults.at("mint.service.store.database:Store.delete_checkpoint", action="kill after")
    faults.at("mint.service.store.database:Store.put_checkpoint", call=3)
    root = tmp_path / "home" / "checkpoints"

    def folders() -> set[str]:
        return {folder.name for folder in root.glob("*/*/*")}

    service = own_service()
    raw = RawClient(service.base_url)
    run = raw.run()
    for number, name in enumerate(("gone", "kept"), 1):
        path = raw.result(raw.operate("save_weights", run, number, path=name))["path"]
    with pytest.raises(httpx.TransportError):
        raw.post("/copy_weights", {"source_path": path, "destination_project_id": "p"})
    assert len(list(root.glob("*/*/kept"))) == 2
    service = own_service(service.port)
    raw = RawClient(service.base_url)
    while len(list(root.glob("*/*/kept"))) > 1 or folders() - {"gone", "kept"}:
        assert service.process.poll() is None
    with pytest.raises(httpx.TransportError):
        raw.http.delete(f"/training_runs/{run}/checkpoints/weights/gone")
    faults.require_all()
    assert "gone" in folders()
    service = own_service(service.port)
    while folders() != {"kept"}:
        assert service.process.poll() is None
    [left] = RawClient(service.base_url).http.get("/checkpoints").json()["checkpoints"]
    assert left["checkpoint_id"] == "weights/kept"


@SLOWLY_BOTH
@pytest.mark.slow
def test_a_run_that_is_unloaded_after_a_crash_first_does_what_was_acknowledged(
    own_service: Start, faults: Faults, undisturbed: bytes
) -> None:
    """The service dies before an outcome is recorded, and the run is not used before its end."""
    faults.at("mint.service.runs.journal:Journal.append_outcome", 6)
    service = own_service()
    raw = RawClient(service.base_url)
    run = raw.run()
    raw.operate("save_weights", run, 7, path="last")
    with contextlib.suppress(httpx.TransportError):
        steps(raw, run, 3)
    service.process.wait(60)
    faults.require_all()
    raw = RawClient(own_service().base_url)
    assert raw.post("/unload_model", {"model_id": run}).status_code == 200
    folder = service.home / "checkpoints" / run.replace(":", "_") / "weights" / "last"
    assert (folder / "adapter_model.safetensors").read_bytes() == undisturbed


@SLOWLY_BOTH
def test_a_run_whose_files_could_not_be_taken_begins_with_them_when_it_is_asked_for_again(
    own_service: Start, faults: Faults
) -> None:
    """The second request was never answered, and after a restart the run had fresh weights."""
    faults.at("mint.service.runs.journal:Journal.begin_from", 1, "EIO")
    service = own_service()
    raw = RawClient(service.base_url)
    source, session = raw.run(), raw.session()
    steps(raw, source, 1)
    path = raw.result(raw.operate("save_weights", source, 3, path="x"))["path"]
    assert raw.post("/load_weights", creation(session, path)).status_code == 503
    faults.require_all()
    answer = raw.post("/load_weights", creation(session, path)).json()
    assert raw.result(answer["request_id"])["type"] == "load_weights"
    copy = saved(raw, answer["model_id"], service.home, 1)
    assert copy == saved(raw, source, service.home, 4)


@SLOWLY_BOTH
def test_a_step_without_a_gradient_is_refused_also_when_its_run_could_not_be_restored_at_first(
    own_service: Start, faults: Faults
) -> None:
    """Which gradients had failed was only known once the run was restored."""
    service = own_service()
    raw = RawClient(service.base_url)
    run = raw.run()
    steps(raw, run, 1)
    assert "error" in raw.result(
        raw.operate("forward_backward", run, 3, **batch(json_datum([1, 99999])))
    )
    service.kill()
    faults.at("mint.service.runs.in_engine:RunInEngine._restore", 1, "EIO")
    raw = RawClient(own_service(service.port).base_url)
    step = raw.operate("optim_step", run, 4, adam_params={"learning_rate": 0.01})
    assert "did nothing" in raw.result(step).get("error", "")
    faults.require_all()
