"""A sampler answers with the weights that it was made with, or not at all."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from mint.engine.messages import LoraSpec
from mint.service.engines.process import EngineProcess
from mint.service.files import checksums
from mint.service.sampling.session import SamplingSession
from mint.service.store.database import SamplerRow, Store
from tests.reliability.local import Local, with_service
from tests.reliability.machine import tokens_of
from tests.service.sampling.test_release import with_sampler
from tests.service_fixture import MODEL, LiveService, RawClient, start_service

HEADER = "X-Mint-Weights"


@pytest.fixture(scope="module")
def weights_service(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveService]:
    """A service that keeps one sampler of a run in memory, the others on disk."""
    service = start_service(tmp_path_factory.mktemp("weights"), tiny_model, samplers_per_run=1)
    yield service
    service.stop()


@dataclass
class Trained:
    """A run whose weights change with every sampler that is made of it."""

    client: RawClient
    home: Path
    run: str
    seq_id: int = 0

    def operate(self, kind: str, **fields: Any) -> dict[str, Any]:
        self.seq_id += 1
        return self.client.result(self.client.operate(kind, self.run, self.seq_id, **fields))

    def train(self) -> dict[str, Any]:
        """Take a step on a gradient of its own."""
        targets = [5 + self.seq_id, 6, 7]
        tensors = {
            "target_tokens": {"data": targets, "dtype": "int64"},
            "weights": {"data": [1.0, 1.0, 1.0], "dtype": "float32"},
        }
        data = [
            {
                "model_input": {"chunks": [{"tokens": [5, 6, 7]}]},
                "loss_fn_inputs": tensors,
            }
        ]
        self.seq_id += 1
        fields = {"forward_backward_input": {"data": data, "loss_fn": "cross_entropy"}}
        request = self.client.operate("forward_backward", self.run, self.seq_id, **fields)
        assert self.client.retrieve(request).status_code == 200
        return self.operate("optim_step", adam_params={"learning_rate": 0.1})

    def sampler(self) -> str:
        """Train a step; return an ephemeral sampler of what came out."""
        self.train()
        fields = {"sampling_session_seq_id": self.seq_id}
        return str(self.operate("save_weights_for_sampler", **fields)["sampling_session_id"])

    def sample(self, sampler: str, number: int) -> httpx.Response:
        body = {
            "sampling_session_id": sampler,
            "seq_id": number,
            "num_samples": 1,
            "prompt": {"chunks": [{"tokens": [1, 2, 3]}]},
            "sampling_params": {"max_tokens": 8, "seed": 1, "stop": []},
        }
        asked = self.client.post("/asample", body)
        assert asked.status_code == 200, asked.text
        return self.client.retrieve(asked.json()["request_id"])

    def evicted(self, sampler: str) -> Path:
        """Return the file of a sampler that left memory."""
        folder = self.home / "samplers" / self.run.replace(":", "_") / sampler.replace(":", "_")
        return folder / "adapter_model.safetensors"


@pytest.fixture
def trained(weights_service: LiveService) -> Trained:
    client = RawClient(weights_service.base_url)
    return Trained(client, weights_service.home, client.run())


def is_refused(answer: httpx.Response) -> bool:
    return "could not be verified" in answer.json().get("error", "")


def test_every_sample_carries_the_digest_of_the_weights_that_made_it(trained: Trained) -> None:
    one, two = trained.sampler(), trained.sampler()
    assert trained.evicted(one).exists(), "one sampler is in memory, the other on disk"
    first, second = trained.sample(one, 0), trained.sample(two, 0)
    assert first.headers[HEADER] != second.headers[HEADER]
    trained.train()
    again = trained.sample(one, 1)  # it was evicted and loaded again
    assert (again.headers[HEADER], again.content) == (first.headers[HEADER], first.content)
    info = trained.client.http.get(f"/samplers/{one}").json()
    assert info["weights_digest"] == first.headers[HEADER]


def test_a_named_checkpoint_has_the_digest_of_the_run_and_the_base_model_has_none(
    trained: Trained,
) -> None:
    live = trained.sampler()
    path = trained.operate("save_weights_for_sampler", path="named")["path"]
    body = {"session_id": trained.run.split(":")[0], "sampling_session_seq_id": 90}
    named = trained.client.post("/create_sampling_session", {**body, "model_path": path}).json()
    body["sampling_session_seq_id"] = 91
    base = trained.client.post("/create_sampling_session", {**body, "base_model": MODEL}).json()
    digest = trained.sample(live, 0).headers[HEADER]
    assert trained.sample(named["sampling_session_id"], 0).headers[HEADER] == digest
    assert HEADER not in trained.sample(base["sampling_session_id"], 0).headers


@pytest.mark.parametrize("place", [-1, 20], ids=["of the last number", "of the header"])
def test_a_flipped_bit_in_an_evicted_sampler_is_refused(trained: Trained, place: int) -> None:
    one, two = trained.sampler(), trained.sampler()
    file = trained.evicted(one)
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    answer = trained.sample(one, 0)
    assert is_refused(answer) or "cannot be read" in answer.json()["error"]
    assert file.read_bytes() == bytes(content), "the file is left for who looks into it"
    assert HEADER in trained.sample(two, 0).headers, "the others answer"
    assert "metrics" in trained.train(), "and the run trains on"


def test_swapped_files_of_evicted_samplers_are_refused(trained: Trained) -> None:
    one, two, _ = trained.sampler(), trained.sampler(), trained.sampler()
    mine, theirs = trained.evicted(one), trained.evicted(two)
    content = mine.read_bytes()
    mine.write_bytes(theirs.read_bytes())
    theirs.write_bytes(content)
    assert is_refused(trained.sample(one, 0))
    assert is_refused(trained.sample(two, 0))


def test_other_weights_under_the_name_of_a_checkpoint_are_refused(trained: Trained) -> None:
    """Even when the checksums of its files are those of the other weights."""
    paths = []
    for name in ("old", "new"):
        trained.train()
        paths.append(trained.operate("save_weights_for_sampler", path=name)["path"])
    root = trained.home / "checkpoints" / trained.run.replace(":", "_") / "sampler_weights"
    file = root / "new" / "adapter_model.safetensors"
    file.write_bytes((root / "old" / file.name).read_bytes())
    description = root / "new" / "checkpoint.json"
    changed = json.loads(description.read_text())
    changed["sha256"] = checksums(root / "new", but=description.name)
    description.write_text(json.dumps(changed))
    answers = []
    for number, path in enumerate(paths):
        body = {"session_id": trained.run.split(":")[0], "sampling_session_seq_id": 80 + number}
        made = trained.client.post("/create_sampling_session", {**body, "model_path": path})
        answers.append(trained.sample(made.json()["sampling_session_id"], 0))
    assert HEADER in answers[0].headers
    assert is_refused(answers[1])


def test_a_sampler_is_restored_with_the_same_weights_after_its_engine_died(
    trained: Trained, weights_service: LiveService
) -> None:
    one, two = trained.sampler(), trained.sampler()
    before = [trained.sample(sampler, 0) for sampler in (one, two)]
    kill_engines(weights_service)
    after = [trained.sample(sampler, 1) for sampler in (one, two)]
    for mine, theirs in zip(before, after, strict=True):
        assert (mine.headers[HEADER], mine.content) == (theirs.headers[HEADER], theirs.content)


def kill_engines(service: LiveService) -> None:
    for pid in service.worker_pids():
        os.kill(pid, 9)


def unload(trained: Trained) -> None:
    answer = trained.client.post("/unload_model", {"model_id": trained.run})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("order", ["kill, unload", "unload, kill", "kill, unload, kill"])
def test_a_sampler_of_an_unloaded_run_answers_with_its_weights_whatever_is_killed(
    trained: Trained, weights_service: LiveService, order: str
) -> None:
    sampler = trained.sampler()
    before = trained.sample(sampler, 0)
    for step in order.split(", "):
        if step == "kill":
            kill_engines(weights_service)
        else:
            unload(trained)
    after = trained.sample(sampler, 1)
    assert (after.headers.get(HEADER), after.content) == (before.headers[HEADER], before.content)


@pytest.mark.slow
def test_a_run_that_is_unloaded_after_a_restart_of_the_service_keeps_its_samplers(
    own_service: Callable[..., LiveService],
) -> None:
    service = own_service()
    client = RawClient(service.base_url)
    trained = Trained(client, service.home, client.run())
    sampler = trained.sampler()
    before = trained.sample(sampler, 0)
    service.kill()
    service = own_service()
    trained.client = RawClient(service.base_url)
    unload(trained)
    kill_engines(service)
    after = trained.sample(sampler, 1)
    assert (after.headers.get(HEADER), after.content) == (before.headers[HEADER], before.content)


def test_a_sampler_that_is_no_longer_kept_is_an_error_of_the_user(
    own_service: Callable[..., LiveService],
) -> None:
    """No sampler is kept on disk, so the one in memory is lost with its engine."""
    service = own_service(samplers_kept_per_run=0)
    client = RawClient(service.base_url)
    trained = Trained(client, service.home, client.run())
    sampler = trained.sampler()
    unload(trained)
    assert HEADER in trained.sample(sampler, 0).headers, "it is still in memory"
    kill_engines(service)
    answer = trained.sample(sampler, 1).json()
    assert answer["category"] == "user"
    assert "no longer kept" in answer["error"]


@pytest.mark.slow
def test_a_sampler_that_a_replay_does_not_reproduce_is_refused_and_its_run_continues(
    own_service: Callable[..., LiveService],
) -> None:
    """The digest in the store is changed, as if the replay had given other weights."""
    service = own_service()
    client = RawClient(service.base_url)
    trained = Trained(client, service.home, client.run())
    sampler = trained.sampler()
    service.kill()
    store = Store(f"sqlite:///{service.home / 'mint.db'}", service.home)
    with store.transaction() as session:
        session.get_one(SamplerRow, sampler).digest = "0" * 64
    store.close()
    trained.client = RawClient(own_service().base_url)
    assert is_refused(trained.sample(sampler, 0))
    assert "metrics" in trained.train()
    assert HEADER in trained.sample(trained.sampler(), 0).headers


def test_a_sampler_is_restored_though_the_engine_dies_meanwhile(
    tmp_path: Path, tiny_model: Path
) -> None:
    """It was reported as no longer kept: its run was restored in the next engine."""

    async def work(local: Local) -> None:
        async def result(path: str, **body: Any) -> httpx.Response:
            request_id = (await local.post(path, body)).json()["request_id"]
            while True:
                answer = await local.post("/retrieve_future", {"request_id": request_id})
                if answer.status_code != 408:
                    return answer

        session = await local.session()
        created = await result(
            "/create_model", session_id=session, model_seq_id=0, base_model="tiny",
            lora_config={"rank": 4},
        )  # fmt: skip
        fields = {"seq_id": 1, "sampling_session_seq_id": 0}
        saved = await result(
            "/save_weights_for_sampler", model_id=created.json()["model_id"], **fields
        )
        sampler_id = saved.json()["sampling_session_id"]

        def sample() -> Awaitable[httpx.Response]:
            return result(
                "/asample", sampling_session_id=sampler_id, num_samples=1,
                prompt={"chunks": [{"tokens": [1, 2, 3]}]},
                sampling_params={"max_tokens": 4, "temperature": 0},
            )  # fmt: skip

        before = await sample()
        sampler = local.service.samplers._samplers[sampler_id]
        restore, engines = sampler.restore_run, local.service.engines

        async def kill() -> None:
            engine = engines.running("tiny")
            assert engine is not None
            engine.kill()
            while engine.is_alive:
                await asyncio.sleep(0)

        async def restore_in_the_next_engine(run_id: str, user: str) -> None:
            sampler.restore_run = restore
            await kill()
            await restore(run_id, user)

        sampler.restore_run = restore_in_the_next_engine
        await kill()
        after = await sample()
        assert sampler.restore_run is restore, "the second engine died"
        assert b'"error"' not in after.content, after.text
        assert tokens_of(after) == tokens_of(before)

    with_service(tmp_path, work, aliases={"tiny": tiny_model})


def test_a_digest_is_recorded_though_the_database_failed_the_first_time(
    tmp_path: Path, tiny_model: Path
) -> None:
    """It was kept in memory only, so a restarted service had nothing to compare with."""

    async def digest(local: Local, sampler: str) -> str | None:
        found = (await local.http.get(f"/api/v1/samplers/{sampler}")).json()["weights_digest"]
        assert found is None or isinstance(found, str)
        return found

    async def freeze(local: Local) -> tuple[str, str | None]:
        failures = []

        def fail_once(_: Any, __: Any, statement: str, *rest: Any) -> None:
            if statement.startswith("UPDATE samplers SET digest") and not failures:
                failures.append(statement)
                raise OperationalError(statement, {}, Exception("database is locked"))

        event.listen(local.service.store._engine, "before_cursor_execute", fail_once)

        async def result(path: str, **body: Any) -> dict[str, Any]:
            request_id = (await local.post(path, body)).json()["request_id"]
            while True:
                answer = await local.post("/retrieve_future", {"request_id": request_id})
                if answer.status_code != 408:
                    found: dict[str, Any] = answer.json()
                    return found

        created = await result(
            "/create_model", session_id=await local.session(), model_seq_id=0, base_model="tiny",
            lora_config={"rank": 4},
        )  # fmt: skip
        fields = {"seq_id": 1, "sampling_session_seq_id": 0}
        saved = await result("/save_weights_for_sampler", model_id=created["model_id"], **fields)
        assert failures
        sampler = saved["sampling_session_id"]
        return sampler, await digest(local, sampler)

    models = {"tiny": tiny_model}
    sampler, recorded = with_service(tmp_path, freeze, aliases=models)
    assert recorded is not None
    assert with_service(tmp_path, lambda local: digest(local, sampler), aliases=models) == recorded


def test_an_answer_of_other_weights_than_the_samplers_is_refused(
    tmp_path: Path, tiny_model: Path
) -> None:
    """The engine has other weights under the sampler's id; the next answer is of the right ones."""

    async def work(local: Local, sampler: SamplingSession, engine: EngineProcess) -> None:
        async def sample() -> httpx.Response:
            body = {"sampling_session_id": sampler.row.id, "num_samples": 1}
            body |= {"prompt": {"chunks": [{"tokens": [1, 2, 3]}]}}
            asked = await local.post("/asample", {**body, "sampling_params": {"max_tokens": 1}})
            while True:
                answer = await local.post("/retrieve_future", asked.json())
                if answer.status_code != 408:
                    return answer

        await engine.call("create_run", run_id="other", lora=LoraSpec(rank=4, seed=2))
        await engine.call("create_sampler", sampler_id=sampler.row.id, run_id="other")
        assert b"could not be verified" in (await sample()).content
        assert (await sample()).headers[HEADER] == sampler.row.digest

    with_sampler(tmp_path, tiny_model, work)
