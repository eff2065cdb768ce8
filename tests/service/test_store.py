"""The database: migrations match the tables, several services share it."""

from __future__ import annotations

import threading
from datetime import UTC
from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, text

from mint.service.store import RunRow, SessionRow, Store, Table, now


def opened(home: Path) -> Store:
    store = Store(f"sqlite:///{home / 'mint.db'}", home)
    store.migrate()
    return store


def test_the_migrations_make_exactly_the_tables_of_the_code(tmp_path: Path) -> None:
    opened(tmp_path)
    with create_engine(f"sqlite:///{tmp_path / 'mint.db'}").connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Table.metadata) == []
        assert connection.execute(text("pragma journal_mode")).scalar() == "wal"


def test_several_services_may_start_at_once(tmp_path: Path) -> None:
    failures: list[Exception] = []

    def start() -> None:
        try:
            opened(tmp_path).add(SessionRow(id=str(threading.get_ident()), user="u"))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert opened(tmp_path).page(SessionRow, "u", 10, 0)[1] == 6


def test_rows_belong_to_their_user(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.add(SessionRow(id="s", user="ada"))
    assert store.get(SessionRow, "s", "ada") is not None
    assert store.get(SessionRow, "s", "eve") is None
    assert store.page(SessionRow, "eve", 10, 0) == ([], 0)


def test_adding_again_gives_the_first_row(tmp_path: Path) -> None:
    store = opened(tmp_path)
    first = RunRow(id="r", session_id="s", user="u", base_model="a", lora={"rank": 1})
    again = RunRow(id="r", session_id="s", user="u", base_model="b", lora={"rank": 2})
    store.add_once(first, "r")
    assert store.add_once(again, "r").base_model == "a"


def test_times_have_their_zone_and_touching_moves_them(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.add(SessionRow(id="s", user="u"))
    when = now()
    store.touch(SessionRow, {"s": when})
    row = store.get(SessionRow, "s", "u")
    assert row is not None
    assert row.last_seen == when
    assert row.last_seen.tzinfo == UTC


def test_the_first_word_about_the_end_of_a_session_wins(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.add(SessionRow(id="s", user="u"))
    store.finish_session("s", "success", None)
    store.finish_session("s", "errored", "late")
    row = store.get(SessionRow, "s", "u")
    assert row is not None
    assert (row.finish, row.finish_detail) == ("success", None)
