"""Connections to the database: their drivers and limits."""

from typing import Any

from sqlalchemy import Engine, ExceptionContext, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError

from mint.service.errors import UserError

_STATEMENT_LIMIT_S = 30
"""How long a statement may wait for a lock or run before it fails."""


def connect(url: str) -> Engine:
    """Return the engine of a database. Raises UserError if its URL or driver is not there."""
    try:
        parsed = make_url(url)
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        is_sqlite = parsed.get_backend_name() == "sqlite"
        name, limit_s = ("timeout", _STATEMENT_LIMIT_S) if is_sqlite else ("connect_timeout", 10)
        limits = {} if name in parsed.query else {name: limit_s}
        engine = create_engine(
            parsed, pool_pre_ping=not is_sqlite, hide_parameters=True, connect_args=limits
        )
    except ArgumentError:  # its message may contain a password
        why = "database_url is not the URL of a database. Write postgresql://USER@HOST/NAME"
        raise UserError(f"{why} or leave it out.") from None
    except ModuleNotFoundError as error:
        raise UserError(
            f"database_url is {parsed!r}, and the Python package {error.name} is not installed. "
            "For PostgreSQL, type: pip install 'mint[postgresql]'"
        ) from None
    event.listen(engine, "connect", _prepare_sqlite if is_sqlite else _prepare_postgresql)
    event.listen(engine, "handle_error", _report_damage)
    return engine


def _report_damage(context: ExceptionContext) -> None:
    """Raise OperationalError for a damaged file of SQLite, which has no error of its own."""
    if type(found := context.sqlalchemy_exception) is DatabaseError:
        raise OperationalError(found.statement, None, found.orig, True)  # type: ignore[arg-type]


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
