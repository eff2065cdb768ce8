"""Samplers are loaded and evicted, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from mint.service import background
from mint.service.access.auth import LOCAL_USER
from mint.service.access.scopes import Caller
from mint.service.checkpoints.storage import DESCRIPTION, CheckpointPath, NewCheckpoint
from mint.service.engines.process import EngineProcess
from mint.service.errors import UserError
from mint.service.sampling.session import SamplingSession
from tests.reliability.local import Local, with_service
from tests.service.checkpoints.test_retention import result
from tests.service_fixture import MODEL

Work = Callable[[Local, SamplingSession, EngineProcess], Awaitable[None]]


def with_sampler(home: Path, model: Path, work: Work) -> None:
    """Do some work with a sampler of a checkpoint, in its engine."""

    async def prepared(local: Local) -> None:
        session = await local.session()
        made = {"session_id": session, "model_seq_id": 0, "base_model": MODEL}
        made |= {"lora_config": {"rank": 4, "seed": 1}}
        run = (await result(local, await local.post("/create_model", made)))["model_id"]
        saving = {"model_id": run, "seq_id": 1, "path": "a"}
        saved = await result(local, await local.post("/save_weights_for_sampler", saving))
        wanted = {"session_id": session, "sampling_session_seq_id": 5, "model_path": saved["path"]}
        answer = await local.post("/create_sampling_session", wanted)
        sampler_id = answer.json()["sampling_session_id"]
        sampler = await local.service.samplers.find(sampler_id, LOCAL_USER)
        async with local.service.engines.using(MODEL) as engine:
            await sampler.load(engine)
            await work(local, sampler, engine)

    with_service(home, prepared, aliases={MODEL: model}, precision="exact")


def test_a_sampler_stays_while_the_database_fails(
    tmp_path: Path, tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(local: Local, sampler: SamplingSession, engine: EngineProcess) -> None:
        def rename(old: str, new: str) -> None:
            with local.service.store.transaction() as session:
                session.execute(text(f"alter table {old} rename to {new}"))

        rename("checkpoints", "gone")
        await sampler.evict()
        assert sampler.engine is engine
        assert "was not evicted" in caplog.text
        await sampler.drop()
        await local.service.samplers._preload(sampler)
        assert sampler.engine is None
        assert "is not loaded yet" in caplog.text
        rename("gone", "checkpoints")
        await local.service.samplers._preload(sampler)
        assert sampler.engine is engine
        await sampler.evict()
        assert sampler.engine is None

    with_sampler(tmp_path, tiny_model, work)


def test_a_sampler_that_is_used_while_its_session_is_released_is_still_known(
    tmp_path: Path, tiny_model: Path
) -> None:
    async def work(local: Local, sampler: SamplingSession, engine: EngineProcess) -> None:
        samplers = local.service.samplers
        releasing = asyncio.create_task(samplers.release_session(sampler.row.session_id))
        await asyncio.sleep(0)
        again = await samplers.find(sampler.row.id, LOCAL_USER)
        await again.load(engine)
        await releasing
        assert await samplers.find(sampler.row.id, LOCAL_USER) is again
        assert again.engine is engine

    with_sampler(tmp_path, tiny_model, work)


def test_a_session_that_is_released_while_its_sampler_loads_leaves_no_weights_in_the_engine(
    tmp_path: Path, tiny_model: Path
) -> None:
    async def work(local: Local, sampler: SamplingSession, engine: EngineProcess) -> None:
        samplers, session = local.service.samplers, sampler.row.session_id
        await asyncio.gather(*background._running)  # it may still be loading
        await sampler.drop()
        waiting = asyncio.create_task(samplers._preload(sampler))  # it waits for its engine
        await samplers.release_session(session)
        await waiting
        assert (await engine.call("memory"))["samplers_resident"] == 0
        again = await samplers.find(sampler.row.id, LOCAL_USER)
        loading = asyncio.create_task(samplers._preload(again))
        while not again.is_loading:
            await asyncio.sleep(0)
        assert samplers.is_sampling(session), "housekeeping keeps the session for now"
        await loading
        assert not samplers.is_sampling(session)

    with_sampler(tmp_path, tiny_model, work)


def test_weights_that_no_one_can_ask_for_by_name_any_more_are_not_saved(
    tmp_path: Path, tiny_model: Path
) -> None:
    """They were saved when a checkpoint that an OpenAI client had used was deleted."""

    async def work(local: Local, sampler: SamplingSession, engine: EngineProcess) -> None:
        path, caller = str(sampler.row.model_path), Caller(LOCAL_USER, LOCAL_USER)
        named = await local.service.samplers.named(caller, path)
        await named.load(engine)
        checkpoints = local.service.checkpoints
        checkpoints.delete(checkpoints.require(path, LOCAL_USER))
        await named.evict()
        assert named.engine is None
        assert not list(tmp_path.glob("samplers/*"))
        await sampler.evict()
        assert len(list(tmp_path.glob("samplers/*/*"))) == 1, "a client has the id of this one"

    with_sampler(tmp_path, tiny_model, work)


def overwrite_while_read(local: Local, path: str, other: str, name: str) -> None:
    """Overwrite a checkpoint with the files of another when this file of it is taken next."""
    checkpoints, once = local.service.checkpoints, itertools.count()
    old, new = (checkpoints.require(each, LOCAL_USER) for each in (path, other))
    file, found = checkpoints.folder(old) / name, checkpoints.folder(new)
    run = local.service.runs.row(old.run_id, LOCAL_USER)

    def overwrite() -> None:
        request = NewCheckpoint(CheckpointPath.parse(path), 99, overwrite=True)
        draft = checkpoints.begin(request)
        shutil.copytree(found, draft, dirs_exist_ok=True)
        digest = json.loads((draft / DESCRIPTION).read_text())["adapter_digest"]
        checkpoints.publish(request, draft, run, digest)

    def notice(event: str, arguments: tuple[object, ...]) -> None:
        is_taken = event in ("open", "os.link") and str(arguments[0]) == str(file)
        if is_taken and not next(once):
            thread = threading.Thread(target=overwrite)
            thread.start()
            if not checkpoints._publishing.locked():
                thread.join()

    sys.addaudithook(notice)


@pytest.mark.parametrize("name", ["checkpoint.json", "adapter_model.safetensors"])
def test_a_sampler_never_has_the_weights_that_replaced_its_checkpoint_while_it_loaded(
    tmp_path: Path, tiny_model: Path, name: str
) -> None:
    async def work(local: Local, sampler: SamplingSession, engine: EngineProcess) -> None:
        path, other = str(sampler.row.model_path), await save_other(local)
        overwrite_while_read(local, path, other, name)
        await sampler.drop()
        first, sampler.row.digest = sampler.row.digest, None
        refused = ""
        try:
            await sampler.load(engine)
        except UserError as error:
            refused = str(error)
        if refused:
            assert "are no longer kept" in refused
            assert sampler.engine is None
        else:
            assert sampler.row.digest == first

    with_sampler(tmp_path, tiny_model, work)


async def save_other(local: Local) -> str:
    """Save a checkpoint of another run; return its path."""
    made = {"session_id": await local.session(), "model_seq_id": 0, "base_model": MODEL}
    made |= {"lora_config": {"rank": 4, "seed": 2}}
    run = (await result(local, await local.post("/create_model", made)))["model_id"]
    saving = {"model_id": run, "seq_id": 1, "path": "b"}
    saved = await result(local, await local.post("/save_weights_for_sampler", saving))
    return str(saved["path"])


def test_clients_without_a_session_evict_only_samplers_of_their_own_key(
    tmp_path: Path, tiny_model: Path
) -> None:
    async def work(local: Local) -> None:
        samplers = local.service.samplers
        async with local.service.engines.using(MODEL) as engine:
            loaded = []
            for key in ("ada", "eve"):
                sampler = await samplers.named(Caller(key, key), MODEL)
                await sampler.load(engine)
                loaded.append(sampler)
        assert [sampler.engine for sampler in loaded] == [engine, engine]

    with_service(tmp_path, work, aliases={MODEL: tiny_model}, samplers_per_run=1)
