"""Usage: counted once for each key and run, kept over restarts and crashes, seen by its key."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.exc import OperationalError

from mint.service.access.auth import create_key
from mint.service.access.scopes import Scope
from mint.service.access.usage import Usage
from mint.service.store.database import RunRow, Store, now
from tests.service.samples import TOKENS, batch, forward
from tests.service_fixture import MODEL, LiveService, RawClient

PROMPT = [1, 2, 3]


def opened(home: Path) -> Store:
    home.mkdir(parents=True, exist_ok=True)
    store = Store(f"sqlite:///{home / 'mint.db'}", home)
    store.migrate()
    return store


def usage(client: RawClient, **query: Any) -> dict[str, dict[str, Any]]:
    answer = client.http.get("/mint/usage", params=query)
    assert answer.status_code == 200, answer.text
    return {row.get("run_id", row["key"]): row for row in answer.json()["usage"]}


def tokens(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["prompt_tokens"], row["tokens_sampled"], row["tokens_trained"]


def sample(client: RawClient, session: str, number: int, path: str | None) -> None:
    source = {"model_path": path} if path else {"base_model": MODEL}
    body = {"session_id": session, "sampling_session_seq_id": number, **source}
    sampler = client.post("/create_sampling_session", body).json()["sampling_session_id"]
    prompt = {"chunks": [{"tokens": PROMPT, "type": "encoded_text"}]}
    parameters = {"max_tokens": 4, "stop": []}
    body = {"sampling_session_id": sampler, "prompt": prompt, "sampling_params": parameters}
    asked = client.post("/asample", {**body, "num_samples": 2})
    assert client.retrieve(asked.json()["request_id"]).status_code == 200


def test_a_key_sees_its_own_usage_and_an_admin_all(
    own_service: Callable[..., LiveService], tmp_path: Path
) -> None:
    store = opened(tmp_path / "home")
    ada, eve = create_key(store, "ada-laptop", "ada"), create_key(store, "eve-laptop", "eve")
    root = create_key(store, "root", "root", scope=Scope.ADMIN)
    service = own_service(models=(MODEL,))
    client, other = RawClient(service.base_url, ada), RawClient(service.base_url, eve)
    session = client.session()
    run = client.run(session)
    client.retrieve(client.operate("forward_backward", run, 1, **batch()))
    client.result(client.operate("optim_step", run, 2))
    client.retrieve(client.operate("forward", run, 3, **forward()))
    saved = client.result(client.operate("save_weights_for_sampler", run, 4, path="a"))
    sample(client, session, 0, saved["path"])
    sample(client, session, 1, None)
    completion = {"model": MODEL, "prompt": PROMPT, "max_tokens": 3, "stop": []}
    answer = httpx.post(
        f"{service.base_url}/v1/completions",
        json=completion,
        headers={"authorization": f"Bearer {eve}"},
        timeout=60,
    ).json()["usage"]

    trained = len(TOKENS) - 1
    by_run = usage(client, by="run")
    assert by_run.keys() == {run, ""}
    assert tokens(by_run[run]) == (trained + 3, 8, trained)
    assert tokens(by_run[""]) == (3, 8, 0)
    assert by_run[run]["checkpoints"] == 1
    assert by_run[run]["bytes"] > 0
    by_key = usage(client, since_s=3600)
    assert by_key.keys() == {"ada-laptop"}
    assert tokens(by_key["ada-laptop"]) == (trained + 6, 16, trained)
    assert usage(other).keys() == {"eve-laptop"}
    everything = usage(RawClient(service.base_url, root))
    assert everything.keys() == {"ada-laptop", "eve-laptop", "root"}
    assert tokens(everything["eve-laptop"]) == (3, answer["completion_tokens"], 0)
    assert all(row["last_used"] for row in everything.values())


def test_the_tokens_of_a_stream_that_is_left_are_counted(
    own_service: Callable[..., LiveService],
) -> None:
    url = own_service(models=(MODEL,)).base_url
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 250, "n": 128, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
        next(answer.iter_lines())
    while RawClient(url).http.get("/mint/load").json()["samples_in_progress"]:
        pass
    prompt, sampled, _ = tokens(usage(RawClient(url))["local"])
    assert prompt == len(PROMPT)
    assert 0 < sampled < 128 * 250


@pytest.mark.slow
def test_a_crash_counts_nothing_twice(own_service: Callable[..., LiveService]) -> None:
    first = own_service(models=(MODEL,))
    client = RawClient(first.base_url)
    run = client.run()
    client.retrieve(client.operate("forward_backward", run, 1, **batch()))
    before = usage(client, by="run")  # asking writes
    os.kill(first.worker_pids()[0], signal.SIGKILL)
    client.result(client.operate("optim_step", run, 2))  # after a replay
    assert tokens(usage(client, by="run")[run]) == tokens(before[run]) == (0, 0, len(TOKENS) - 1)
    first.kill()
    again = RawClient(own_service(models=(MODEL,)).base_url)
    again.result(again.operate("optim_step", run, 3))
    assert tokens(usage(again, by="run")[run]) == tokens(before[run])


def test_what_was_not_saved_is_kept(tmp_path: Path) -> None:
    store = opened(tmp_path)
    counts = Usage(store)

    def rename(old: str, new: str) -> None:
        with store._engine.begin() as connection:
            connection.exec_driver_sql(f"alter table {old} rename to {new}")

    async def work() -> list[dict[str, Any]]:
        counts.add("k", "r", tokens_sampled=2)
        rename("usage", "broken")
        with pytest.raises(OperationalError):
            await counts.save()
        rename("broken", "usage")
        counts.add("k", "r", tokens_sampled=3, prompt_tokens=1)
        await counts.save()
        other = Usage(store)  # another service with the same database
        other.add("k", "r", tokens_sampled=10)
        return await other.read("run")

    [row] = asyncio.run(work())
    assert tokens(row) == (1, 15, 0)


def test_only_the_time_that_was_asked_for_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = Usage(opened(tmp_path))

    async def work() -> list[int]:
        for days in (0, 3, 30):
            with monkeypatch.context() as earlier:
                earlier.setattr(
                    "mint.service.access.usage.now", lambda d=days: now() - timedelta(days=d)
                )
                counts.add("k", None, tokens_sampled=10**days if days < 10 else 7)
        since = [None, now() - timedelta(days=7), now() - timedelta(hours=1)]
        return [(await counts.read("key", time))[0]["tokens_sampled"] for time in since]

    assert asyncio.run(work()) == [1 + 1000 + 7, 1 + 1000, 1]


def test_an_old_database_gets_the_table_and_keeps_its_runs(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'mint.db'}", tmp_path)
    store.migrate("0003")
    with store._engine.begin() as connection:
        connection.exec_driver_sql(
            "insert into runs (id, session_id, user, base_model, lora, user_metadata, created_at, "
            "last_request_at) values ('r', 's', 'local', 'm', '{}', '{}', '2026-01-01 00:00:00', "
            "'2026-01-02 00:00:00')"
        )
    store.migrate()
    assert store.get(RunRow, "r", "local") is not None
    [row] = asyncio.run(Usage(store).read("run"))
    assert (row["key"], row["run_id"], row["tokens_trained"]) == ("local", "r", 0)
    assert row["last_used"].isoformat() == "2026-01-02T00:00:00+00:00"
