"""The database: keys, sessions, runs, samplers, checkpoints. Never tensors or tokens.

SQLite (WAL) by default, PostgreSQL by URL. Every method is one short transaction and is called
from the service through ``asyncio.to_thread``.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    DateTime,
    Delete,
    Dialect,
    Select,
    String,
    TypeDecorator,
    UniqueConstraint,
    Update,
    and_,
    delete,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from mint.service.errors import NotFound, UserError
from mint.service.store import migrations
from mint.service.store.connection import connect


def now() -> datetime:
    return datetime.now(UTC)


class UtcTime(TypeDecorator[datetime]):
    """A time in UTC: SQLite stores no time zone, and PostgreSQL answers in that of its server."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Table(DeclarativeBase):
    type_annotation_map: ClassVar = {datetime: UtcTime, dict[str, Any]: JSON, list[str]: JSON}


class Owned:
    """The columns of everything that belongs to a user."""

    user: Mapped[str] = mapped_column(index=True)
    created_at: Mapped[datetime] = mapped_column(default=now)


class ApiKey(Table):
    __tablename__ = "api_keys"
    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    user: Mapped[str]
    scope: Mapped[str] = mapped_column(default="admin")
    quota: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[datetime] = mapped_column(default=now)
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class SessionRow(Owned, Table):
    __tablename__ = "sessions"
    id: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(index=True, default="")
    last_seen: Mapped[datetime] = mapped_column(default=now)
    sdk_version: Mapped[str] = mapped_column(default="")
    display_name: Mapped[str | None]
    project_id: Mapped[str | None]
    tags: Mapped[list[str]] = mapped_column(default=list)
    user_metadata: Mapped[dict[str, Any]] = mapped_column(default=dict)
    finish: Mapped[str | None]
    finish_detail: Mapped[str | None]


class RunRow(Owned, Table):
    __tablename__ = "runs"
    id: Mapped[str] = mapped_column(primary_key=True)
    session_id: Mapped[str] = mapped_column(index=True)
    key: Mapped[str] = mapped_column(index=True, default="")
    base_model: Mapped[str]
    lora: Mapped[dict[str, Any]]
    user_metadata: Mapped[dict[str, Any]] = mapped_column(default=dict)
    last_request_at: Mapped[datetime] = mapped_column(default=now)


class SamplerRow(Owned, Table):
    __tablename__ = "samplers"
    id: Mapped[str] = mapped_column(primary_key=True)
    session_id: Mapped[str] = mapped_column(index=True)
    key: Mapped[str] = mapped_column(index=True, default="")
    base_model: Mapped[str]
    model_path: Mapped[str | None]
    run_id: Mapped[str | None]
    seq_id: Mapped[int | None] = mapped_column(BigInteger)
    version: Mapped[str | None]
    digest: Mapped[str | None] = mapped_column(String(64))
    clients: Mapped[int] = mapped_column(default=0)

    @property
    def group(self) -> str:
        """Samplers of one group share a limit on how many are kept."""
        return self.run_id or f"{self.session_id}:{self.key}"


class CheckpointRow(Owned, Table):
    __tablename__ = "checkpoints"
    __table_args__ = (UniqueConstraint("run_id", "kind", "name"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(index=True)
    kind: Mapped[str]
    name: Mapped[str]
    seq_id: Mapped[int] = mapped_column(BigInteger)
    base_model: Mapped[str]
    lora: Mapped[dict[str, Any]]
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    public: Mapped[bool] = mapped_column(default=False)
    user_metadata: Mapped[dict[str, Any]] = mapped_column(default=dict)
    expires_at: Mapped[datetime | None]

    @property
    def uri(self) -> str:
        return f"tinker://{self.run_id}/{self.kind}/{self.name}"

    @property
    def version(self) -> str:
        """Distinguishes a checkpoint from one that replaced it under the same name."""
        return f"{self.id}-{self.created_at.timestamp():.6f}"


class UsageRow(Table):
    __tablename__ = "usage"
    key: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(primary_key=True)
    hour: Mapped[datetime] = mapped_column(primary_key=True)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    tokens_sampled: Mapped[int] = mapped_column(BigInteger)
    tokens_trained: Mapped[int] = mapped_column(BigInteger)
    last_used_at: Mapped[datetime]


Condition = ColumnElement[bool]
Found = TypeVar("Found")
Row = TypeVar("Row", bound=Table)
Listed = TypeVar("Listed", SessionRow, RunRow, SamplerRow, CheckpointRow)
_TOUCHED: dict[type[Table], tuple[str, str]] = {
    SessionRow: ("id", "last_seen"),
    RunRow: ("id", "last_request_at"),
    ApiKey: ("hash", "last_used_at"),
}
"""The key of a table, and its column for the time of the last use."""
_HAS_RUN = select(RunRow.id).where(RunRow.session_id == SessionRow.id).exists()


class Store:
    """Short transactions over one database that several services may share."""

    def __init__(self, url: str, home: Path) -> None:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._engine = connect(url)
        self._sessions = sessionmaker(self._engine, expire_on_commit=False)
        self._home = home
        self._used: defaultdict[Any, dict[str, datetime]] = defaultdict(dict)

    def migrate(self, version: str = "head") -> None:
        """Upgrade the tables; several services may start at once. Raises UserError."""
        try:
            migrations.migrate(self._engine, self._home / "migrations.lock", version)
        except OperationalError as error:
            raise UserError(
                f"The service's database {self._engine.url!r} cannot be used: {error.orig}. Start "
                "it, or correct database_url or the permissions of the home folder. "
                "`mint doctor` says more."
            ) from error

    def versions(self) -> tuple[str | None, list[str]]:
        """Return the version of the tables, and all versions that this code knows, newest first."""
        return migrations.versions(self._engine)

    def close(self) -> None:
        self._engine.dispose()

    def transaction(self) -> AbstractContextManager[Session]:
        return self._sessions.begin()

    def _all(self, query: Select[Found]) -> list[Found]:
        with self.transaction() as session:
            return list(session.scalars(query))

    def _change(self, *statements: Update | Delete) -> int:
        """Change rows in one transaction, and return their number."""
        with self._engine.begin() as connection:
            return sum(connection.execute(statement).rowcount for statement in statements)

    # ---- any table ------------------------------------------------------------------------

    def add(self, row: Table) -> None:
        with self.transaction() as session:
            session.add(row)

    def add_once(self, row: Row, key: str) -> Row:
        """Insert, or return the row that an earlier, identical request inserted."""
        with self._sessions() as session:
            if (existing := session.get(type(row), key)) is not None:
                return existing
            try:
                session.add(row)
                session.commit()
                return row
            except IntegrityError:
                session.rollback()
                return session.get_one(type(row), key)

    def get(self, table: type[Row], key: str, user: str) -> Row | None:
        """Return a row by its key, if it belongs to ``user``."""
        with self.transaction() as session:
            row: Any = session.get(table, key)
            return row if row is not None and row.user == user else None

    def page(
        self, table: type[Listed], user: str, limit: int, offset: int, *conditions: Condition
    ) -> tuple[list[Listed], int]:
        """Return a page of a user's rows, newest first, and the total number."""
        where = [table.user == user, *conditions]
        count = select(func.count()).select_from(table).where(*where)
        rows = select(table).where(*where).order_by(table.created_at.desc(), table.id)
        with self.transaction() as session:
            total = session.scalar(count) or 0
            return list(session.scalars(rows.limit(limit).offset(offset))), total

    def note_use(self, table: type[SessionRow | RunRow | ApiKey], key: str) -> None:
        """Note in memory that a session, run or key is used now, so that no request waits."""
        self._used[table][key] = now()

    async def save_uses(self) -> None:
        """Write what :meth:`note_use` noted."""
        used, self._used = self._used, defaultdict(dict)
        for table, seen in used.items():
            await asyncio.to_thread(self.touch, table, seen)

    def touch(self, table: type[Table], seen: Mapping[str, datetime]) -> None:
        """Write when sessions were last seen, or runs or keys last used, in one transaction."""
        name, column = _TOUCHED[table]
        with self.transaction() as session:
            for key, when in seen.items():
                changed = update(table).where(getattr(table, name) == key)
                session.execute(changed.values({column: when}))

    # ---- sessions, runs and samplers ----------------------------------------------------------

    def finish_session(self, session_id: str, reason: str, detail: str | None) -> None:
        """Record how a session ended; only the first call counts."""
        first = update(SessionRow).where(SessionRow.id == session_id, SessionRow.finish.is_(None))
        self._change(first.values(finish=reason, finish_detail=detail))

    def set_project(self, session_id: str, project_id: str) -> None:
        changed = update(SessionRow).where(SessionRow.id == session_id)
        self._change(changed.values(project_id=project_id))

    def forgotten_sessions(self, before: datetime) -> list[SessionRow]:
        """Return sessions last seen before a time that have samplers to delete, or no runs."""
        has_sampler = select(SamplerRow.id).where(SamplerRow.session_id == SessionRow.id).exists()
        is_forgotten = (SessionRow.last_seen < before, or_(has_sampler, ~_HAS_RUN))
        return self._all(select(SessionRow).where(*is_forgotten))

    def delete_session(self, session_id: str) -> None:
        """Delete the samplers of a session, and the session itself unless it has runs."""
        samplers = delete(SamplerRow).where(SamplerRow.session_id == session_id)
        self._change(samplers, delete(SessionRow).where(SessionRow.id == session_id, ~_HAS_RUN))

    def sessions_of_key(self, key: str) -> int:
        """Return how many sessions without runs a key has created."""
        [count] = self._all(select(func.count()).where(SessionRow.key == key, ~_HAS_RUN))
        return count

    def runs_of_key(self, key: str) -> list[str]:
        """Return the ids of all runs that a key created."""
        return self._all(select(RunRow.id).where(RunRow.key == key))

    def last_request(self) -> datetime | None:
        """Return when any run was last used."""
        [found] = self._all(select(func.max(RunRow.last_request_at)))
        return found

    def delete_run(self, run_id: str) -> None:
        self._change(delete(RunRow).where(RunRow.id == run_id))

    def samplers_of_run(self, run: RunRow) -> list[SamplerRow]:
        """Return the ephemeral samplers of a run."""
        is_of_run = (SamplerRow.session_id == run.session_id, SamplerRow.run_id == run.id)
        return self._all(select(SamplerRow).where(*is_of_run))

    def add_client(self, sampler_id: str) -> int:
        """Return a number for a new client of a sampler, which no other client of it has."""
        one_more = update(SamplerRow).where(SamplerRow.id == sampler_id)
        counted = one_more.values(clients=SamplerRow.clients + 1).returning(SamplerRow.clients)
        with self.transaction() as session:
            return session.scalars(counted).one()

    def note_digest(self, sampler_id: str, digest: str) -> None:
        """Record the digest of a sampler's weights, once."""
        unknown = (SamplerRow.id == sampler_id, SamplerRow.digest.is_(None))
        self._change(update(SamplerRow).where(*unknown).values(digest=digest))

    # ---- keys -------------------------------------------------------------------------------

    def all_keys(self) -> list[ApiKey]:
        """Return every key that was ever created, the oldest first."""
        return self._all(select(ApiKey).order_by(ApiKey.created_at))

    def active_keys(self) -> list[ApiKey]:
        """Return the keys that are neither revoked nor expired."""
        in_time = or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > now())
        return self._all(select(ApiKey).where(ApiKey.revoked_at.is_(None), in_time))

    def revoke_key(self, name: str) -> bool:
        """Revoke a key; return False if there is none of this name, or it is revoked."""
        in_force = (ApiKey.name == name, ApiKey.revoked_at.is_(None))
        return self._change(update(ApiKey).where(*in_force).values(revoked_at=now())) > 0

    def set_quota(self, name: str, quota: dict[str, Any]) -> None:
        """Replace the limits of a key."""
        self._change(update(ApiKey).where(ApiKey.name == name).values(quota=quota))

    def storage_of_key(self, key: str, *conditions: Condition) -> tuple[int, int]:
        """Return how many checkpoints the runs of a key have, and their bytes."""
        held = (
            select(func.count(), func.coalesce(func.sum(CheckpointRow.size_bytes), 0))
            .join(RunRow, CheckpointRow.run_id == RunRow.id)
            .where(RunRow.key == key, *conditions)
        )
        with self.transaction() as session:
            count, size = session.execute(held).one()
            return int(count), int(size)

    # ---- checkpoints --------------------------------------------------------------------------

    def checkpoint(self, run_id: str, kind: str, name: str) -> CheckpointRow | None:
        found = select(CheckpointRow).where(is_at(run_id, kind, name))
        return next(iter(self._all(found)), None)

    def put_checkpoint(self, row: CheckpointRow) -> None:
        """Insert a checkpoint, replacing the one of the same name."""
        with self.transaction() as session:
            session.execute(delete(CheckpointRow).where(is_at(row.run_id, row.kind, row.name)))
            session.add(row)

    def change_checkpoint(self, row: CheckpointRow, **values: Any) -> None:
        """Change a row. Raises NotFound if it was deleted or replaced since it was read."""
        if not self._change(update(CheckpointRow).where(_is_version(row)).values(**values)):
            raise NotFound(f"{row.uri} was deleted or replaced meanwhile. Try again.")

    def delete_checkpoint(self, row: CheckpointRow) -> bool:
        """Delete a row; return False if it was deleted or replaced since it was read."""
        return self._change(delete(CheckpointRow).where(_is_version(row))) > 0

    def expired_checkpoints(self) -> list[CheckpointRow]:
        return self._all(select(CheckpointRow).where(CheckpointRow.expires_at <= now()))


def _is_version(row: CheckpointRow) -> Condition:
    """Return the condition that a row is this one: SQLite gives ids of deleted rows to new ones."""
    return and_(CheckpointRow.id == row.id, CheckpointRow.created_at == row.created_at)


def is_at(run_id: str, kind: str, name: str) -> Condition:
    """Return the condition that a checkpoint has this path."""
    return and_(
        CheckpointRow.run_id == run_id, CheckpointRow.kind == kind, CheckpointRow.name == name
    )
