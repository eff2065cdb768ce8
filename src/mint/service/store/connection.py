"""Connections to the database: their drivers and limits."""

from typing import Any

from sqlalchemy import Engine, create_engine, event, make_url

from mint.service.errors import UserError

_STATEMENT_LIMIT_S = 30
"""How long a statement may wait for a lock or run before it fails."""


def connect(url: str) -> Engine:
    """Return the engine of a database. Raises UserError if its driver is missing."""
    parsed = make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    is_sqlite = parsed.get_backend_name() == "sqlite"
    name, limit_s = ("timeout", _STATEMENT_LIMIT_S) if is_sqlite else ("connect_timeout", 10)
    limits = {} if name in parsed.query else {name: limit_s}
    try:
        engine = create_engine(
            parsed, pool_pre_ping=not is_sqlite, hide_parameters=True, connect_args=limits
        )
    except ModuleNotFoundError as error:
        raise UserError(
            f"database_url is {parsed!r}, and the Python package {error.name} is not installed. "
            "For PostgreSQL, type: pip install 'mint[postgresql]'"
        ) from None
    event.listen(engine, "connect", _prepare_sqlite if is_sqlite else _prepare_postgresql)
    return engine


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=full")


def _prepare_postgresql(connection: Any, _: object) -> None:
    """Limit the time of a statement, which may wait for a lock, unless a limit is set already."""
    connection.cursor().execute(
        f"select set_config('statement_timeout', '{_STATEMENT_LIMIT_S}s', false) "
        "where current_setting('statement_timeout') = '0'"
    )
    connection.commit()
