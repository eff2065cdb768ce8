"""A run that begins where a checkpoint ends, made by one request."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tinker

from mint.service.access.auth import LOCAL_USER
from mint.service.checkpoints.storage import CheckpointPath, NewCheckpoint
from tests.reliability.local import Local, with_service
from tests.service.checkpoints.test_retention import result
from tests.service.checkpoints.test_transfers import train
from tests.service.runs.test_recovery import logprobs
from tests.service.runs.test_recovery import train as train_raw
from tests.service_fixture import MODEL, LiveService, RawClient


def direct_client(url: str) -> tinker.ServiceClient:
    client = tinker.ServiceClient(base_url=url, api_key="tml-test")
    flags = {"create_model_via_load_weights": True}
    client.holder._client_config = client.holder._client_config.model_copy(update=flags)
    return client


def test_the_newest_client_resumes_with_one_request(service: str) -> None:
    client = direct_client(service)
    training = client.create_lora_training_client(base_model=MODEL, rank=4)
    train(training, 0, 1)
    path = training.save_state("halfway").result().path
    expected = train(training, 2, 3)
    resumed = client.create_training_client_from_state_with_optimizer(
        path, user_metadata={"renderer_name": "plain"}
    )
    assert train(resumed, 2, 3) == expected
    only_weights = train(client.create_training_client_from_state(path), 2, 3)
    assert only_weights[0] == expected[0]
    assert only_weights[1] != expected[1]
    assert resumed.get_info().lora_rank == 4


def creation(session: str, path: str, **fields: Any) -> dict[str, Any]:
    body = {"session_id": session, "model_seq_id": 3, "path": path, "optimizer": True}
    return {**body, "type": "load_weights", **fields}


def test_it_is_made_once_and_outlives_its_checkpoint_and_the_service(
    own_service: Callable[..., LiveService],
) -> None:
    service = own_service()
    raw = RawClient(service.base_url)
    source, session = raw.run(), raw.session()
    following = train_raw(raw, source, 1, 2)
    path = raw.result(raw.operate("save_weights", source, following, path="x"))["path"]
    expected = logprobs(raw, source, following + 1)
    answer = raw.post("/load_weights", creation(session, path)).json()
    assert answer["model_id"] == f"{session}:train:3"
    assert raw.result(answer["request_id"])["type"] == "load_weights"
    assert raw.post("/load_weights", creation(session, path)).json() == answer
    raw.http.delete(f"/training_runs/{source}/checkpoints/weights/x")
    service.kill()
    raw = RawClient(own_service(service.port).base_url)
    assert raw.result(answer["request_id"])["type"] == "load_weights"
    assert (logprobs(raw, answer["model_id"], 1) == expected).all()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"path": "tinker://a:train:0/weights/none"}, "There is no checkpoint"),
        ({"path": None}, "path"),
        ({"path": 5}, "path"),
        ({"model_seq_id": None}, "model_seq_id"),
        ({"model_seq_id": -1}, "model_seq_id"),
        ({"model_seq_id": 2**70}, "model_seq_id"),
        ({"session_id": 5}, "session_id"),
        ({"optimizer_config": {"type": "dimuon"}}, "dimuon"),
        ({"weights_access_token": "t"}, "weights_access_token"),
        ({"user_metadata": 5}, "user_metadata"),
    ],
)
def test_a_mistake_is_named(raw: RawClient, fields: dict[str, Any], named: str) -> None:
    path = "tinker://a:train:0/weights/none"
    answer = raw.post("/load_weights", {**creation(raw.session(), path), **fields})
    assert answer.status_code in ((404,) if named.startswith("There is no") else (400, 422))
    assert named in answer.json()["detail"]


def test_a_checkpoint_without_an_optimizer_or_of_another_model(raw: RawClient) -> None:
    run, session = raw.run(), raw.session()
    path = raw.result(raw.operate("save_weights_for_sampler", run, 1, path="p"))["path"]
    refused = raw.post("/load_weights", creation(session, path))
    assert "without optimizer state" in refused.json()["detail"]
    made = raw.post("/load_weights", creation(session, path, optimizer=False)).json()
    assert raw.result(made["request_id"])["model_id"] == made["model_id"]
    other = creation(session, path, optimizer=False, base_model="no/such", model_seq_id=4)
    refused = raw.post("/load_weights", other)
    assert refused.status_code == 400
    assert f"was trained from {MODEL}, not from no/such" in refused.json()["detail"]


def test_a_checkpoint_that_is_deleted_meanwhile_is_not_replaced_by_a_fresh_adapter(
    tmp_path: Path, tiny_model: Path
) -> None:
    async def work(local: Local) -> None:
        checkpoints, session = local.service.checkpoints, await local.session()
        made = {"session_id": session, "model_seq_id": 0, "base_model": MODEL}
        made |= {"lora_config": {"rank": 4, "seed": 1}}
        source = (await result(local, await local.post("/create_model", made)))["model_id"]
        saving = {"model_id": source, "seq_id": 1, "path": "x"}
        path = (await result(local, await local.post("/save_weights", saving)))["path"]
        row, once = checkpoints.require(path, LOCAL_USER), itertools.count()

        def delete(event: str, arguments: tuple[object, ...]) -> None:
            if event == "os.mkdir" and "snapshot-" in str(arguments[0]) and not next(once):
                checkpoints.delete(row)

        sys.addaudithook(delete)
        refused = await local.post("/load_weights", creation(session, path))
        assert refused.status_code == 404, refused.text
        assert "was deleted meanwhile" in refused.text
        assert (await local.post("/load_weights", creation(session, path))).status_code == 404

    with_service(tmp_path, work, aliases={MODEL: tiny_model}, precision="exact")


def test_a_checkpoint_that_is_overwritten_meanwhile_is_taken_in_one_version(
    tmp_path: Path, tiny_model: Path
) -> None:
    """It is overwritten when its first file was taken, or as soon as the others are."""

    async def work(local: Local) -> None:
        checkpoints, session = local.service.checkpoints, await local.session()
        made = {"session_id": session, "model_seq_id": 0, "base_model": MODEL}
        made |= {"lora_config": {"rank": 4, "seed": 1}}
        source = (await result(local, await local.post("/create_model", made)))["model_id"]
        saving = {"model_id": source, "seq_id": 1, "path": "x"}
        path = (await result(local, await local.post("/save_weights", saving)))["path"]
        folder = checkpoints.folder(CheckpointPath.parse(path))
        names = ("adapter_config.json", "adapter_model.safetensors", "optimizer.safetensors")
        first = [(folder / name).read_bytes() for name in names]
        run = local.service.runs.row(source, LOCAL_USER)

        def save() -> None:
            new = NewCheckpoint(CheckpointPath.parse(path), 2, overwrite=True)
            draft = checkpoints.begin(new)
            for name in names:
                (draft / name).write_text("the second version")
            checkpoints.publish(new, draft, run)

        overwrite, links = threading.Thread(target=save), itertools.count(1)

        def notice(event: str, arguments: tuple[object, ...]) -> None:
            if event == "os.link" and str(tmp_path) in str(arguments[0]) and next(links) == 2:
                overwrite.start()
                if not checkpoints._publishing.locked():
                    overwrite.join()

        sys.addaudithook(notice)
        await local.post("/load_weights", creation(session, path))
        overwrite.join()
        [taken] = (tmp_path / "runs").glob("*_3/snapshot-*")
        assert [(taken / name).read_bytes() for name in names] == first

    with_service(tmp_path, work, aliases={MODEL: tiny_model}, precision="exact")
