"""Retention: what a rule deletes, what it never deletes, and clocks that jump."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from mint.service.access.auth import LOCAL_USER, create_key
from mint.service.checkpoints.retention import Rule
from mint.service.checkpoints.storage import CheckpointPath, NewCheckpoint
from mint.service.idleness import Idleness
from mint.service.store.database import RunRow, SamplerRow, SessionRow, now
from tests.reliability.local import Local, with_service
from tests.service_fixture import MODEL

DAY = 86400
LORA = {"rank": 4, "seed": 1, "train_attn": True, "train_mlp": True, "train_unembed": True}


def add_run(local: Local, session: str, user: str = "ada", silent_days: int = 30) -> RunRow:
    store = local.service.store
    store.add(SessionRow(id=session, user=user, last_seen=now() - timedelta(days=silent_days)))
    run = RunRow(id=f"{session}:train:0", session_id=session, user=user, base_model="m", lora=LORA)
    return store.add_once(run, run.id)


def add(local: Local, run: RunRow, name: str, days_old: float, kind: str = "weights") -> str:
    """Save a checkpoint; later calls are later saves, however old they look."""
    path = CheckpointPath(run.id, kind, name)
    new = NewCheckpoint(path, 1, False, None, {})
    checkpoints, store = local.service.checkpoints, local.service.store
    draft = checkpoints.begin(new)
    (draft / "adapter_config.json").write_text("{}")
    row = checkpoints.publish(new, draft, run)
    store.change_checkpoint(row, created_at=now() - timedelta(days=days_old))
    return path.uri


def names(local: Local, rule: Rule) -> list[str]:
    return [row.name for row in local.service.old_checkpoints(rule)]


def test_a_rule_deletes_what_is_old_and_not_among_the_newest(tmp_path: Path) -> None:
    async def work(local: Local) -> None:
        run, other = add_run(local, "a-1"), add_run(local, "a-2")
        for number, days in enumerate((90, 60, 40, 10, 5)):
            add(local, run, f"step-{number}", days)
        add(local, other, "only", 90)
        assert names(local, Rule(30 * DAY, 3, ())) == ["step-0", "step-1"]
        assert names(local, Rule(30 * DAY, 1, ())) == ["step-0", "step-1", "step-2"]
        assert names(local, Rule(50 * DAY, 0, ())) == ["step-0", "step-1", "only"]
        assert names(local, Rule(30 * DAY, 1, ("*-0", "only"))) == ["step-1", "step-2"]
        row = local.service.checkpoints.find(CheckpointPath(run.id, "weights", "step-1"), "ada")
        assert row is not None
        local.service.store.change_checkpoint(row, public=True)
        assert names(local, Rule(30 * DAY, 1, ())) == ["step-0", "step-2"]

    with_service(tmp_path, work)


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    """The newest of a run whose session is heard, and a checkpoint that is sampled from."""

    async def work(local: Local) -> None:
        store, everything = local.service.store, Rule(0, 0, ())
        live, silent = add_run(local, "b-1", silent_days=0), add_run(local, "b-2")
        for run in (live, silent):
            add(local, run, "old", 90)
            sampled = add(local, run, f"sampled-of-{run.session_id}", 80)
            store.add(
                SamplerRow(
                    id=f"{run.session_id}:sample:0",
                    session_id=run.session_id,
                    user="ada",
                    base_model="m",
                    model_path=sampled,
                )
            )
            add(local, run, "newest", 70)
        assert names(local, everything) == ["old", "old", "sampled-of-b-2", "newest"]
        await local.service.samplers.find("b-2:sample:0", "ada")  # the client is back
        await local.service.tidy()
        assert names(local, everything) == ["old", "old"]
        store.finish_session("b-1", "success", None)
        assert names(local, everything) == ["old", "sampled-of-b-1", "newest", "old"]

    with_service(tmp_path, work)


def test_a_checkpoint_that_was_sampled_by_name_is_in_use_for_a_while(
    tmp_path: Path, tiny_model: Path
) -> None:
    """Clients of the OpenAI API have no session that ends."""

    async def work(local: Local) -> None:
        service, everything = local.service, Rule(0, 0, ())
        made = {"session_id": await local.session(), "model_seq_id": 0, "base_model": MODEL}
        made |= {"lora_config": {"rank": 4, "seed": 1}}
        run = str((await result(local, await local.post("/create_model", made)))["model_id"])
        saving = {"model_id": run, "seq_id": 1, "path": "a"}
        saved = await result(local, await local.post("/save_weights_for_sampler", saving))
        await service.runs.release(run)
        body = {"model": saved["path"], "prompt": [1, 2], "max_tokens": 1}
        assert (await local.http.post("/v1/completions", json=body)).status_code == 200
        session = service.store.get(SessionRow, made["session_id"], LOCAL_USER)
        assert session is not None
        service.store.finish_session(session.id, "success", None)
        assert names(local, everything) == []
        await service.samplers.release_named(idle_s=3600.0)
        assert names(local, everything) == [], "it was used just now"
        await service.samplers.release_named(idle_s=-1.0)
        assert names(local, everything) == ["a"]
        assert (await local.http.post("/v1/completions", json=body)).status_code == 200

    with_service(tmp_path, work, aliases={MODEL: tiny_model}, precision="exact")


async def result(local: Local, answer: httpx.Response) -> dict[str, Any]:
    found = await local.post("/retrieve_future", {"request_id": answer.json()["request_id"]})
    assert found.status_code == 200
    body: dict[str, Any] = found.json()
    return body


def test_pruning_reaches_only_the_callers_checkpoints(tmp_path: Path) -> None:
    async def work(local: Local) -> None:
        key = create_key(local.service.store, "eve", "eve")
        its = add_run(local, "c-1"), add_run(local, "c-2", user="eve")
        paths = [add(local, run, "old", 90) for run in its]

        async def prune(**body: Any) -> httpx.Response:
            headers = {"X-API-Key": key}
            return await local.post("/mint/checkpoints/prune", body, headers=headers)

        listed = await prune(keep_last=0)
        assert [c["tinker_path"] for c in listed.json()["checkpoints"]] == [paths[1]]
        assert (await prune(keep_last=0, run_id=its[0].id, dry_run=False)).status_code == 404
        await prune(keep_last=0, dry_run=False)
        folders = [local.service.checkpoints.folder(CheckpointPath.parse(path)) for path in paths]
        assert [folder.exists() for folder in folders] == [True, False]

    with_service(tmp_path, work)


def test_housekeeping_obeys_the_rule_and_no_clock_that_jumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, ahead = [0.0], [timedelta(0)]

    def wall_clock() -> datetime:
        return now() + ahead[0]

    monkeypatch.setattr("mint.service.checkpoints.retention.now", wall_clock)

    async def work(local: Local) -> None:
        service = local.service
        service.idleness = Idleness(tmp_path / "idle.json", lambda: seconds[0])
        run = add_run(local, "d-1")
        folders = [
            service.checkpoints.folder(CheckpointPath.parse(add(local, run, name, 1)))
            for name in ("rl-final", "step-1", "step-2", "step-3")
        ]

        async def left() -> list[bool]:
            await service.tidy()
            return [folder.exists() for folder in folders]

        ahead[0] = timedelta(days=30)
        assert await left() == [True] * 4, "the clock jumped: they look old, and stay for an hour"
        seconds[0] += 1800
        ahead[0] = timedelta(0)
        assert await left() == [True] * 4, "it was put right"
        seconds[0] += 7200
        ahead[0] = timedelta(days=30)
        assert await left() == [True] * 4, "a second jump begins a new hour"
        seconds[0] += 3600
        assert await left() == [True, False, True, True], "old for an hour: the rule holds"

    settings: dict[str, Any] = {"retention_older_than_s": 7 * DAY, "retention_keep_last": 2}
    with_service(tmp_path, work, **settings)


def test_without_a_rule_housekeeping_keeps_everything(tmp_path: Path) -> None:
    async def work(local: Local) -> bool:
        local.service.idleness = Idleness(
            tmp_path / "idle.json", iter(range(0, 10**9, 10**4)).__next__
        )
        folder = local.service.checkpoints.folder(
            CheckpointPath.parse(add(local, add_run(local, "e-1"), "old", 9999))
        )
        for _ in range(3):
            await local.service.tidy()
        return folder.exists()

    assert with_service(tmp_path, work)


def test_an_expired_checkpoint_is_not_among_the_models(tmp_path: Path) -> None:
    async def work(local: Local) -> None:
        run = add_run(local, "a-1", user=LOCAL_USER)
        kept, expired = (add(local, run, name, 1, "sampler_weights") for name in ("a", "b"))
        row = local.service.checkpoints.require(expired, LOCAL_USER)
        local.service.store.change_checkpoint(row, expires_at=now() - timedelta(seconds=1))
        listed = (await local.http.get("/v1/models")).json()["data"]
        names = {model["id"] for model in listed}
        assert kept in names
        assert expired not in names

    with_service(tmp_path, work)
