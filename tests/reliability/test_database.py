"""A database that is locked, hangs or has no free connection: 503, then recovery."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import QueuePool

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
