"""The database, SQLite and PostgreSQL: migrations match the tables, several services share it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from mint.service.access.usage import Usage
from mint.service.errors import UserError
from mint.service.store.database import (
    ApiKey,
    CheckpointRow,
    RunRow,
    SamplerRow,
    SessionRow,
    Store,
    Table,
    now,
)
from mint.service.store.search import SessionSearch, search
from tests.service_fixture import DATABASES

pytestmark = DATABASES


@dataclass(frozen=True)
class Place:
    """A database, and the home folder of the services that use it."""

    url: str
    home: Path

    def open(self) -> Store:
        store = Store(self.url, self.home)
        store.migrate()
        return store


@pytest.fixture
def place(database: str | None, tmp_path: Path) -> Place:
    return Place(database or f"sqlite:///{tmp_path / 'mint.db'}", tmp_path)


@pytest.fixture
def store(place: Place) -> Iterator[Store]:
    store = place.open()
    yield store
    store.close()


def at_once(work: Callable[[int], None], count: int = 6) -> None:
    """Do some work in several threads; the first failure is raised."""
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_the_migrations_make_exactly_the_tables_of_the_code(store: Store) -> None:
    with store._engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Table.metadata) == []
        if connection.dialect.name == "sqlite":
            assert connection.execute(text("pragma journal_mode")).scalar() == "wal"


def test_what_an_older_version_stored_is_still_there_after_the_migrations(place: Place) -> None:
    store = Store(place.url, place.home)
    store.migrate("0001")
    with store._engine.begin() as connection:
        columns = 'hash, name, "user", created_at'
        connection.execute(
            text(f"insert into api_keys ({columns}) values ('h', 'laptop', 'ada', :t)"),
            {"t": now()},
        )
    store.migrate()
    [key] = store.active_keys()
    assert (key.name, key.user, key.scope, key.expires_at) == ("laptop", "ada", "admin", None)
    store.close()


def test_several_services_may_start_at_once(place: Place) -> None:
    """Each with a home folder of its own, as on several machines."""

    def start(number: int) -> None:
        home = place.home / str(number) if "postgresql" in place.url else place.home
        store = Place(place.url, home).open()
        store.add(SessionRow(id=str(number), user="u"))
        store.close()

    at_once(start)
    store = place.open()
    assert store.page(SessionRow, "u", 10, 0)[1] == 6
    store.close()


def test_rows_belong_to_their_user(store: Store) -> None:
    store.add(SessionRow(id="s", user="ada"))
    assert store.get(SessionRow, "s", "ada") is not None
    assert store.get(SessionRow, "s", "eve") is None
    assert store.page(SessionRow, "eve", 10, 0) == ([], 0)


def test_adding_again_gives_the_first_row(store: Store) -> None:
    first = RunRow(id="r", session_id="s", user="u", base_model="a", lora={"rank": 1})
    again = RunRow(id="r", session_id="s", user="u", base_model="b", lora={"rank": 2})
    store.add_once(first, "r")
    assert store.add_once(again, "r").base_model == "a"


def test_times_have_their_zone_and_touching_moves_them(store: Store) -> None:
    store.add(SessionRow(id="s", user="u"))
    when = now()
    store.touch(SessionRow, {"s": when})
    row = store.get(SessionRow, "s", "u")
    assert row is not None
    assert row.last_seen == when
    assert row.last_seen.tzinfo == UTC


def test_samplers_of_silent_sessions_are_deleted_and_sessions_without_a_run(store: Store) -> None:
    for name in ("silent", "with a run", "alive"):
        store.add(SessionRow(id=name, user="u"))
        store.add(SamplerRow(id=f"of {name}", session_id=name, user="u", base_model="m"))
    run = RunRow(id="r", session_id="with a run", user="u", base_model="m", lora={})
    store.add_once(run, "r")
    store.touch(SessionRow, {name: now() - timedelta(days=8) for name in ("silent", "with a run")})
    silent = {row.id for row in store.forgotten_sessions(now() - timedelta(days=7))}
    assert silent == {"silent", "with a run"}
    for session_id in silent:
        store.delete_session(session_id)
    left = [row.id for row in store.page(SessionRow, "u", 10, 0)[0]]
    assert sorted(left) == ["alive", "with a run"]
    assert [row.id for row in store.page(SamplerRow, "u", 10, 0)[0]] == ["of alive"]
    assert store.forgotten_sessions(now() - timedelta(days=7)) == []


def test_the_first_word_about_the_end_of_a_session_wins(store: Store) -> None:
    store.add(SessionRow(id="s", user="u"))
    store.finish_session("s", "success", None)
    store.finish_session("s", "errored", "late")
    row = store.get(SessionRow, "s", "u")
    assert row is not None
    assert (row.finish, row.finish_detail) == ("success", None)


def test_a_row_that_several_add_at_once_is_there_once(store: Store) -> None:
    def add(number: int) -> None:
        row = RunRow(id="r", session_id="s", user="u", base_model=str(number), lora={})
        found.append(store.add_once(row, "r").base_model)

    found: list[str] = []
    at_once(add)
    assert len(found) == 6
    assert len(set(found)) == 1


def test_no_two_clients_of_a_sampler_have_one_number(store: Store) -> None:
    store.add(SamplerRow(id="a", session_id="s", user="u", base_model="m"))
    numbers: list[int] = []
    at_once(lambda _: numbers.append(store.add_client("a")))
    assert sorted(numbers) == [1, 2, 3, 4, 5, 6]


def checkpoint(name: str = "a", **fields: object) -> CheckpointRow:
    values = {"run_id": "r", "kind": "weights", "user": "u", "base_model": "m", "lora": {"rank": 4}}
    return CheckpointRow(**values, name=name, **{"seq_id": 2**62, "size_bytes": 2**40, **fields})


def test_a_checkpoint_replaces_the_one_of_its_name(store: Store) -> None:
    store.put_checkpoint(checkpoint(seq_id=1))
    store.put_checkpoint(checkpoint(size_bytes=2**50))
    store.put_checkpoint(checkpoint("b"))
    row = store.checkpoint("r", "weights", "a")
    assert row is not None
    assert (row.seq_id, row.size_bytes, row.lora) == (2**62, 2**50, {"rank": 4})
    assert store.page(CheckpointRow, "u", 10, 0)[1] == 2
    store.change_checkpoint(row, public=True, expires_at=now() - timedelta(seconds=1))
    assert [row.name for row in store.expired_checkpoints()] == ["a"]
    store.delete_checkpoint(row)
    assert store.checkpoint("r", "weights", "a") is None


def test_expired_and_revoked_keys_are_not_in_force(store: Store) -> None:
    for name, expires_at in (("old", now()), ("new", now() + timedelta(days=1)), ("ever", None)):
        store.add(ApiKey(hash=name * 3, name=name, user="u", expires_at=expires_at))
    assert {key.name for key in store.active_keys()} == {"new", "ever"}
    assert store.revoke_key("ever")
    assert not store.revoke_key("ever")
    assert [key.name for key in store.active_keys()] == ["new"]
    assert len(store.all_keys()) == 3


def test_sessions_are_found_by_their_metadata_name_and_project(store: Store) -> None:
    for number in range(5):
        metadata = {"team": "β" if number % 2 else "a'b", "n": str(number)}
        name = f"Night {number} 100%"
        store.add(SessionRow(id=str(number), user="u", user_metadata=metadata, display_name=name))
    store.set_project("3", "p")
    store.add(RunRow(id="r", session_id="3", user="u", base_model="m", lora={}))
    store.put_checkpoint(checkpoint())

    def found(**wanted: object) -> list[str]:
        page = search(store, "u", SessionSearch.model_validate(wanted), 300.0)
        return sorted(row["session_id"] for row in page["sessions"])

    assert found(user_metadata={"team": "β"}) == ["1", "3"]
    assert found(user_metadata={"team": "a'b", "n": "4"}) == ["4"]
    assert found(display_name="nIGHT 2") == ["2"]
    assert found(display_name="100%") == ["0", "1", "2", "3", "4"]
    assert found(project_ids=["p"]) == ["3"]
    assert found(statuses=[{"type": "active"}]) == ["0", "1", "2", "3", "4"]
    [session] = search(store, "u", SessionSearch(session_id="3"), 300.0)["sessions"]
    assert json.dumps(session["checkpoint_storage_bytes"]) == str(2**40)
    first = search(store, "u", SessionSearch(limit=3), 300.0)
    rest = search(store, "u", SessionSearch(limit=3, cursor=first["next_cursor"]), 300.0)
    seen = [row["session_id"] for row in first["sessions"] + rest["sessions"]]
    assert sorted(seen) == ["0", "1", "2", "3", "4"]


def test_a_database_that_cannot_be_used_is_named_without_its_password(place: Place) -> None:
    (place.home / "mint.db").mkdir()
    url = place.url.replace("mint@/", "mint:s3cret@/absent-")
    with pytest.raises(UserError, match=r"cannot be used: .*Start it") as error:
        Store(url, place.home).migrate()
    assert "s3cret" not in str(error.value)


def test_usage_adds_up_by_key_and_by_run(store: Store) -> None:
    store.add(RunRow(id="r", session_id="s", user="u", key="k", base_model="m", lora={}))
    store.put_checkpoint(checkpoint())

    async def count() -> list[list[dict[str, Any]]]:
        usage = Usage(store)
        for tokens in (2**40, 2):
            usage.add("k", "r", prompt_tokens=tokens, tokens_sampled=1)
            await usage.save()
        return [await usage.read("key"), await usage.read("run", key="k")]

    for [row] in asyncio.run(count()):
        counted = {"prompt_tokens": 2**40 + 2, "tokens_sampled": 2, "tokens_trained": 0}
        assert {**row, **counted, "checkpoints": 1, "bytes": 2**40} == row
        assert row["last_used"].tzinfo == UTC
