"""A database that is locked, hangs, is damaged or has no free connection: the error says so."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import QueuePool

from mint.service.errors import UserError
from mint.service.store.database import Store
from tests.reliability.local import Local, with_service
from tests.service_fixture import DATABASES


@DATABASES
def test_a_request_that_a_lock_stops_gets_503_and_the_reason(
    database: str | None, tmp_path: Path
) -> None:
    if database is None:
        url, lock, why = (
            f"sqlite:///{tmp_path / 'mint.db'}?timeout=0.1",
            "begin immediate",
            "locked",
        )
    else:
        url, why = f"{database}&options=-cstatement_timeout%3D200ms", "statement timeout"
        lock = "lock table sessions in access exclusive mode"

    async def work(local: Local) -> None:
        other = Store(url, tmp_path)
        with other._engine.connect() as connection:
            connection.execute(text(lock))
            refused = await local.post("/create_session", {"tags": []})
            connection.rollback()
        other.close()
        assert refused.status_code == 503, refused.text
        assert "database failed" in refused.json()["detail"]
        assert why in refused.json()["detail"]
        assert await local.session()

    with_service(tmp_path, work, database_url=url)


@DATABASES
def test_a_statement_has_a_limit(database: str | None, tmp_path: Path) -> None:
    with Store(database or f"sqlite:///{tmp_path / 'mint.db'}", tmp_path)._engine.connect() as one:
        show = "pragma busy_timeout" if database is None else "show statement_timeout"
        assert str(one.execute(text(show)).scalar()) in ("30000", "30s")


def test_a_request_without_a_free_connection_gets_503_and_the_reason(tmp_path: Path) -> None:
    async def work(local: Local) -> None:
        store = local.service.store
        url = store._engine.url
        store._engine.dispose()
        small = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.01, "poolclass": QueuePool}
        store._sessions.configure(bind=create_engine(url, **small))
        assert await local.session()
        with ExitStack() as stack:
            stack.enter_context(store.transaction()).connection()
            refused = await local.post("/create_session", {"tags": []})
        assert refused.status_code == 503, refused.text
        assert "database failed: QueuePool limit" in refused.json()["detail"]
        assert await local.session()

    with_service(tmp_path, work)


def test_a_request_to_a_damaged_database_gets_503_and_the_reason(tmp_path: Path) -> None:
    async def work(local: Local) -> None:
        store = local.service.store
        store._engine.dispose()
        file = Path(str(store._engine.url.database))
        file.write_bytes(file.read_bytes()[:1024] + bytes(file.stat().st_size))
        refused = await local.post("/create_session", {"tags": []})
        assert refused.status_code == 503, refused.text
        assert "database failed: malformed database schema" in refused.json()["detail"]

    with_service(tmp_path, work)


def test_what_is_not_the_url_of_a_database_is_refused_without_its_password(tmp_path: Path) -> None:
    for url in ("s3cret", "postgresql//mint:s3cret@/mint", "postgre://mint:s3cret@/mint"):
        with pytest.raises(UserError, match=r"Write postgresql://USER@HOST/NAME") as error:
            Store(url, tmp_path)
        assert "s3cret" not in str(error.value)


def test_a_damaged_database_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "mint.db").write_bytes(b"junk" * 1000)
    with pytest.raises(UserError, match=r"cannot be used: file is not a database.*mint doctor"):
        Store(f"sqlite:///{tmp_path / 'mint.db'}", tmp_path).migrate()


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_request_to_a_database_that_hangs_gets_503_and_the_reason(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mint.service.access.auth._KEYS_WITHIN_S", 0.2)
    monkeypatch.setattr("mint.service.access.auth._RELOAD_KEYS_S", 0.0)

    async def work(local: Local) -> None:
        assert await local.session()
        backends = "select pid from pg_stat_activity where datname = current_database()"
        with local.service.store.transaction() as session:
            pids = list(session.scalars(text(backends)))
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            refused = await local.post("/create_session", {"tags": []})
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        assert refused.status_code == 503, refused.text
        assert "database failed: it does not answer" in refused.json()["detail"]
        assert await local.session()

    with_service(tmp_path, work, database_url=database)
