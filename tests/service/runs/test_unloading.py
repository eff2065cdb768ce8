"""Runs leave the memory of their engine for good, whatever waits for them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from mint.service.access.auth import LOCAL_USER
from mint.service.runs.journal import Journal
from tests.reliability.local import Local, with_service
from tests.service.samples import batch
from tests.service_fixture import MODEL


async def retrieve(local: Local, request_id: str) -> Any:
    while True:
        answer = await local.post("/retrieve_future", {"request_id": request_id})
        if answer.status_code != 408:
            return answer


def train(home: Path, model: Path) -> dict[str, Any]:
    """Train a run of a service that ends then; return the request that created the run."""

    async def work(local: Local) -> dict[str, Any]:
        body = {"session_id": await local.session(), "model_seq_id": 0, "base_model": MODEL}
        body |= {"lora_config": {"rank": 4, "seed": 1}}
        created = (await local.post("/create_model", body)).json()["request_id"]
        run = (await retrieve(local, created)).json()["model_id"]
        sent = {"model_id": run, "seq_id": 1, **batch()}
        gradient = (await local.post("/forward_backward", sent)).json()["request_id"]
        assert (await retrieve(local, gradient)).status_code == 200
        return body

    return with_service(home, work, aliases={MODEL: model})


def test_a_run_that_is_unloaded_while_it_is_created_again_leaves_its_engine(
    tmp_path: Path, tiny_model: Path
) -> None:
    body = train(tmp_path, tiny_model)

    async def work(local: Local) -> None:
        created = (await local.post("/create_model", body)).json()["request_id"]
        run = created.rpartition(":")[0]
        while not local.service.runs._runs[run].is_working:
            await asyncio.sleep(0)
        answer = await local.post("/unload_model", {"model_id": run})
        assert answer.status_code == 200
        await retrieve(local, created)
        async with local.service.engines.using(MODEL) as engine:
            assert (await engine.call("memory"))["runs_resident"] == 0

    with_service(tmp_path, work, aliases={MODEL: tiny_model})


def test_an_answer_is_not_waited_for_in_vain_when_its_run_was_released_before_it_was_restored(
    tmp_path: Path, tiny_model: Path
) -> None:
    run = f"{train(tmp_path, tiny_model)['session_id']}:train:0"

    async def work(local: Local) -> None:
        await local.service.runs._get(run, LOCAL_USER)
        await local.service.runs.release(run)
        assert (await retrieve(local, f"{run}:1")).status_code == 200

    with_service(tmp_path, work, aliases={MODEL: tiny_model}, long_poll_s=0.2)


async def create(local: Local) -> str:
    body = {"session_id": await local.session(), "model_seq_id": 0, "base_model": MODEL}
    body |= {"lora_config": {"rank": 4, "seed": 1}}
    created = (await local.post("/create_model", body)).json()["request_id"]
    return str((await retrieve(local, created)).json()["model_id"])


async def step(local: Local, run: str, number: int) -> str:
    sent = {"model_id": run, "seq_id": number, "adam_params": {"learning_rate": 0.1}}
    return str((await local.post("/optim_step", sent)).json()["request_id"])


def test_an_operation_that_waits_while_its_run_is_saved_is_kept_in_the_journal(
    tmp_path: Path, tiny_model: Path
) -> None:
    async def work(local: Local) -> None:
        run = await create(local)
        await retrieve(local, await step(local, run, 1))
        one = local.service.runs._runs[run]
        async with one._turn:
            waiting = await step(local, run, 2)
            await one._in_engine.snapshot(one._stream.next)
        assert "metrics" in (await retrieve(local, waiting)).json()

    with_service(tmp_path, work, aliases={MODEL: tiny_model})


def test_operations_do_not_stop_when_there_is_no_memory_for_a_snapshot(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    async def work(local: Local) -> None:
        run = await create(local)
        monkeypatch.setattr(hashlib, "file_digest", fail)
        one = local.service.runs._runs[run]
        async with one._turn:
            both = [await step(local, run, number) for number in (1, 2)]
        assert one._worker is not None
        await asyncio.wait([one._worker])
        for waiting in both:
            answer = await local.post("/retrieve_future", {"request_id": waiting})
            assert "metrics" in answer.json()

    settings = {"snapshot_after_bytes": 0, "long_poll_s": 0.0}
    with_service(tmp_path, work, aliases={MODEL: tiny_model}, **settings)


def test_an_operation_that_there_is_no_memory_to_write_fails_and_the_next_are_executed(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        monkeypatch.undo()
        raise MemoryError("there is none left")

    async def work(local: Local) -> None:
        run = await create(local)
        monkeypatch.setattr(os, "fdatasync", fail)
        failed, later = [await step(local, run, number) for number in (1, 2)]
        assert "there is none left" in (await retrieve(local, failed)).text
        assert "metrics" in (await retrieve(local, later)).json()
        await local.service.runs.release(run)
        assert "metrics" in (await retrieve(local, await step(local, run, 3))).json()

    with_service(tmp_path, work, aliases={MODEL: tiny_model})


def test_a_run_that_is_deleted_cannot_be_opened_any_more_when_its_files_begin_to_disappear(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "runs" / "1_train_0"
    seen: list[bool] = []

    def notice(event: str, arguments: tuple[object, ...]) -> None:
        if event == "shutil.rmtree" and str(arguments[0]).startswith(str(folder)):
            seen.append(folder.exists())

    async def work(local: Local) -> None:
        Journal(folder).close()
        sys.addaudithook(notice)
        local.service.runs.delete_forgotten(local.service.idleness)
        assert seen == [False]
        assert not list(folder.parent.iterdir())

    with_service(tmp_path, work, run_kept_s=0.0)
