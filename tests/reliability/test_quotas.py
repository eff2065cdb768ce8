"""Quotas of keys: a clear error that says what to delete, or 429 where waiting helps."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mint.cli import main
from mint.service.access.auth import create_key
from mint.service.store.database import ApiKey, RunRow, SamplerRow, Store
from tests.reliability.local import Local, with_service
from tests.service_fixture import MODEL, LiveService, RawClient, start_service


@pytest.fixture(scope="module")
def home_service(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveService]:
    service = start_service(
        tmp_path_factory.mktemp("quotas"), tiny_model, models=(MODEL,), quota_runs=3
    )
    yield service
    service.stop()


def store_of(service: LiveService) -> Store:
    return Store(f"sqlite:///{service.home / 'mint.db'}", service.home)


def client(service: LiveService, name: str, **quota: int | None) -> RawClient:
    """A client with a new key of its own user."""
    new = RawClient(service.base_url, create_key(store_of(service), name, name, quota=quota))
    while new.http.get("/auth/apikey/me").status_code == 401:
        pass  # the service reads its keys every two seconds
    return new


def save(client: RawClient, run: str, seq_id: int, **fields: Any) -> dict[str, Any]:
    return client.result(client.operate("save_weights_for_sampler", run, seq_id, **fields))


def sampler(client: RawClient, session: str, number: int) -> str:
    body = {"session_id": session, "sampling_session_seq_id": number, "base_model": MODEL}
    return str(client.post("/create_sampling_session", body).json()["sampling_session_id"])


def sample(client: RawClient, sampler: str, samples: int, tokens: int) -> httpx.Response:
    parameters = {"max_tokens": tokens, "seed": 1, "stop": []}
    prompt = {"chunks": [{"tokens": [1, 2], "type": "encoded_text"}]}
    body = {"sampling_session_id": sampler, "prompt": prompt, "num_samples": samples}
    return client.post("/asample", {**body, "sampling_params": parameters})


def test_a_run_beyond_the_quota_is_refused_until_another_is_unloaded(
    home_service: LiveService,
) -> None:
    key = client(home_service, "of-runs", runs=1)
    session = key.session()
    run = key.run(session)
    assert key.run(session) == run, "the same request again makes no other run"
    body = {"session_id": session, "base_model": MODEL, "lora_config": {"rank": 4}}
    refused = key.post("/create_model", {**body, "model_seq_id": 1})
    assert refused.status_code == 403
    assert "has 1 run, and its quota is 1" in refused.json()["detail"]
    assert "mint runs unload RUN" in refused.json()["detail"]
    assert client(home_service, "of-others").run()
    key.post("/unload_model", {"model_id": run})
    assert key.run(session, 1)


def test_a_session_beyond_the_quota_is_refused(home_service: LiveService) -> None:
    key = client(home_service, "of-sessions", sessions=2)
    with_run = key.session()
    key.run(with_run)
    assert key.session()
    assert key.session(), "a session with a run does not count"
    refused = key.post("/create_session", {"tags": [], "sdk_version": "0.22.0"})
    assert refused.status_code == 403
    assert "has 2 sessions without runs, and its quota is 2" in refused.json()["detail"]
    assert "mint keys quota of-sessions --sessions N" in refused.json()["detail"]
    assert key.post("/session_heartbeat", {"session_id": with_run}).status_code == 200
    assert client(home_service, "of-other-sessions", sessions=1).session()


def test_sessions_that_are_created_together_are_all_counted(tmp_path: Path) -> None:
    async def work(local: Local) -> list[int]:
        key = create_key(local.service.store, "ada", "ada", quota={"sessions": 2})
        headers = {"X-API-Key": key}
        asked = (local.post("/create_session", {}, headers=headers) for _ in range(8))
        return sorted(answer.status_code for answer in await asyncio.gather(*asked))

    assert with_service(tmp_path, work) == [200] * 2 + [403] * 6


def test_a_key_without_a_quota_has_the_services(home_service: LiveService) -> None:
    key = client(home_service, "of-default")
    session = key.session()
    for number in range(3):
        key.run(session, number)
    body = {"session_id": session, "base_model": MODEL, "lora_config": {"rank": 4}}
    assert key.post("/create_model", {**body, "model_seq_id": 3}).status_code == 403
    free = client(home_service, "of-no-limit", runs=None)
    session = free.session()
    assert len({free.run(session, number) for number in range(4)}) == 4


def test_a_checkpoint_beyond_the_quota_is_a_users_error(home_service: LiveService) -> None:
    key = client(home_service, "of-checkpoints", checkpoints=2)
    run = key.run()
    save(key, run, 1, path="a")
    save(key, run, 2, path="b")
    refused = save(key, run, 3, path="c")
    assert refused["category"] == "user"
    assert "has 2 checkpoints, and its quota is 2" in refused["error"]
    assert "mint checkpoints delete" in refused["error"]
    assert "path" in save(key, run, 4, path="a", overwrite=True)
    key.http.delete(f"/training_runs/{run}/checkpoints/sampler_weights/b").raise_for_status()
    assert "path" in save(key, run, 5, path="c")


def test_bytes_are_counted_with_those_of_uploads_and_copies(home_service: LiveService) -> None:
    key = client(home_service, "of-bytes")
    run = key.run()
    path = save(key, run, 1, path="a")["path"]
    [checkpoint] = key.http.get("/checkpoints").json()["checkpoints"]
    store_of(home_service).set_quota("of-bytes", {"bytes": checkpoint["size_bytes"] * 5 // 2})
    copied = {"source_path": path, "destination_project_id": "p"}
    waiting = key.post("/copy_weights", copied)
    assert waiting.status_code == 200
    while key.http.get("/auth/apikey/me").status_code == 200:  # until the service has read it
        refused = key.post("/copy_weights", copied)
        if refused.status_code != 200:
            break
    assert refused.status_code == 400
    assert "and the quota is" in refused.json()["detail"]
    failed = save(key, run, 2, path="b")
    assert failed["category"] == "user"
    assert not list((home_service.home / "checkpoints").glob("*/*/.draft-*"))


def test_tokens_in_flight_are_waited_for(home_service: LiveService) -> None:
    key = client(home_service, "of-tokens", tokens_in_flight=100 * 202)
    its = sampler(key, key.session(), 0)
    never = sample(key, its, 102, 200)
    assert never.status_code == 400
    assert "may use 20402 tokens" in never.json()["detail"]
    first = sample(key, its, 100, 200)
    later = sample(key, its, 3, 8)
    assert later.status_code == 200, "there is place beside it"
    waits = sample(key, its, 100, 200)
    assert waits.status_code == 429
    assert "tokens in flight" in waits.json()["detail"]
    for accepted in (first, later):
        key.retrieve(accepted.json()["request_id"])
    assert sample(key, its, 100, 200).status_code == 200


def test_samplers_take_turns_in_memory(home_service: LiveService) -> None:
    key = client(home_service, "of-samplers", samplers=1)
    session = key.session()
    one, other = sampler(key, session, 0), sampler(key, session, 1)
    first = sample(key, one, 100, 200)
    waits = sample(key, other, 1, 4)
    assert waits.status_code == 429
    assert "is sampling from 1 sampler" in waits.json()["detail"]
    key.retrieve(first.json()["request_id"])
    answers = []
    for its in (other, one, other):
        accepted = sample(key, its, 1, 4)
        assert accepted.status_code == 200
        answers.append(key.retrieve(accepted.json()["request_id"]).content)
    assert len(set(answers)) == 1, "the same weights after coming back"


def test_the_command_sets_and_shows_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINT_HOME", str(tmp_path))
    monkeypatch.setenv("MINT_QUOTA_BYTES", "5GB")

    def command(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["mint", "keys", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return said.err if end.value.code else said.out

    command("create", "app", "--quota", "runs=4,tokens-in-flight=10000")
    limits = json.loads(command("quota", "app", "--checkpoints", "7", "--json"))
    assert limits == {
        "runs": 4,
        "samplers": None,
        "checkpoints": 7,
        "sessions": None,
        "tokens_in_flight": 10000,
        "bytes": 5_000_000_000,
    }
    limits = json.loads(command("quota", "app", "--runs", "default", "--bytes", "10GB", "--json"))
    assert (limits["runs"], limits["bytes"]) == (None, 10_000_000_000)
    assert "5.0GB" in command("quota", "app", "--bytes", "default")
    assert "10GB or 500MiB" in command("quota", "app", "--bytes", "lots")
    assert "There is no quota 'rnus'" in command("create", "b", "--quota", "rnus=1")
    assert "Active keys: app" in command("quota", "other")


def test_an_old_databases_runs_belong_to_the_only_key_of_their_user(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'mint.db'}", tmp_path)
    store.migrate("0003")
    with store._engine.begin() as connection:
        for name, user in (("one", "ada"), ("two", "eve"), ("three", "eve")):
            connection.exec_driver_sql(
                "insert into api_keys (hash, name, user, created_at) values (?, ?, ?, ?)",
                (hashlib.sha256(name.encode()).hexdigest(), name, user, "2026-01-01 00:00:00"),
            )
        for user in ("ada", "eve", "local"):
            connection.exec_driver_sql(
                "insert into runs (id, session_id, user, base_model, lora, user_metadata, "
                "created_at, last_request_at) values (?, 's', ?, 'm', '{}', '{}', ?, ?)",
                (user, user, "2026-01-01 00:00:00", "2026-01-01 00:00:00"),
            )
            connection.exec_driver_sql(
                "insert into samplers (id, session_id, user, base_model, created_at) "
                "values (?, 's', ?, 'm', '2026-01-01 00:00:00')",
                (user, user),
            )
    store.migrate()
    assert [key.quota for key in store.all_keys()] == [{}, {}, {}]
    for table in (RunRow, SamplerRow):
        rows = [store.get(table, user, user) for user in ("ada", "eve", "local")]
        assert [row.key for row in rows if row is not None] == ["one", "eve", "local"]
    assert store.runs_of_key("one") == ["ada"]
    assert store.get(ApiKey, hashlib.sha256(b"one").hexdigest(), "ada") is not None
