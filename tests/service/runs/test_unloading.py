"""Runs leave the memory of their engine for good, whatever waits for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from mint.service.access.auth import LOCAL_USER
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
