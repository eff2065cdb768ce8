"""Search sessions by id, name, project, metadata and state."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field
from sqlalchemy import and_, false, func, or_, select

from mint.service.errors import UserError
from mint.service.store.database import CheckpointRow, Condition, RunRow, SessionRow, Store, now
from mint.service.wire.requests import Many, Request, Texts

NO_PROJECT = "default"
_NOT_IN_A_KEY = re.compile(r'["\\\x00-\x1f]')
"""Characters that would end a JSON path in the database."""
_END = datetime(9999, 1, 1, tzinfo=UTC)


class Owner(Request):
    type: Literal["own", "accessible", "user"] = "own"
    owner_urns: Many[str] = Field(default_factory=list, max_length=10)


class Status(Request):
    type: Literal["active", "cancelled", "failed", "client_finished"]
    reasons: Many[str] | None = Field(default=None, max_length=20)


class Cursor(Request):
    last_created_at: Annotated[AwareDatetime, Field(ge=datetime.fromtimestamp(0, UTC), lt=_END)]
    last_session_id: str


class SessionSearch(Request):
    """The filters of a search. A session must have the id or the name, and match all the others."""

    session_id: str | None = None
    project_ids: Many[str] | None = Field(default=None, max_length=200)
    user_metadata: Texts = Field(default_factory=dict, max_length=50)
    display_name: str | None = Field(default=None, min_length=1, max_length=500)
    owner: Owner = Owner()
    statuses: Many[Status] | None = Field(default=None, min_length=1, max_length=20)
    limit: int = Field(default=50, ge=1, le=200)
    cursor: Cursor | None = None


def search(store: Store, user: str, wanted: SessionSearch, idle_s: float) -> dict[str, Any]:
    """Return one page of the user's sessions, newest first, as the client reads it."""
    alive_since = now() - timedelta(seconds=idle_s)
    where = _conditions(user, wanted, alive_since)
    rows, _ = store.page(SessionRow, user, wanted.limit + 1, 0, *where)
    shown = rows[: wanted.limit]
    used = _storage(store, [row.id for row in shown])
    cursor = None
    if len(rows) > wanted.limit:
        last = shown[-1]
        cursor = {"last_created_at": last.created_at.isoformat(), "last_session_id": last.id}
    return {
        "sessions": [_describe(row, used.get(row.id, (0, 0)), alive_since) for row in shown],
        "next_cursor": cursor,
    }


def _storage(store: Store, session_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return how many checkpoints each session has, and their bytes."""
    used = (
        select(RunRow.session_id, func.count(CheckpointRow.id), func.sum(CheckpointRow.size_bytes))
        .join(CheckpointRow, CheckpointRow.run_id == RunRow.id)
        .where(RunRow.session_id.in_(session_ids))
        .group_by(RunRow.session_id)
    )
    with store.transaction() as session:
        return {key: (count, int(size)) for key, count, size in session.execute(used)}


def _conditions(user: str, wanted: SessionSearch, alive_since: datetime) -> list[Condition]:
    where: list[Condition] = []
    if wanted.owner.type == "user" and user not in wanted.owner.owner_urns:
        where.append(false())
    names: list[Condition] = []
    if wanted.session_id is not None:
        names.append(SessionRow.id == wanted.session_id)
    if wanted.display_name is not None:
        words = wanted.display_name.split()
        contains = (SessionRow.display_name.icontains(word, autoescape=True) for word in words)
        names.append(and_(*contains))
    if names:
        where.append(or_(*names))
    if wanted.project_ids is not None:
        where.append(func.coalesce(SessionRow.project_id, NO_PROJECT).in_(wanted.project_ids))
    for key, value in wanted.user_metadata.items():
        if _NOT_IN_A_KEY.search(key):
            raise UserError(
                f"user_metadata: {key!r:.100} contains a character that is not allowed in keys."
            )
        where.append(SessionRow.user_metadata[key].as_string() == value)
    if wanted.statuses is not None:
        where.append(or_(*(_status(status, alive_since) for status in wanted.statuses)))
    if wanted.cursor is not None:
        at, last = wanted.cursor.last_created_at.astimezone(UTC), wanted.cursor.last_session_id
        earlier = and_(SessionRow.created_at == at, SessionRow.id > last)
        where.append(or_(SessionRow.created_at < at, earlier))
    return where


def _status(status: Status, alive_since: datetime) -> Condition:
    if status.type == "active":
        return and_(SessionRow.finish.is_(None), SessionRow.last_seen > alive_since)
    if status.type == "client_finished":
        if status.reasons is not None:
            return SessionRow.finish.in_(status.reasons)
        return SessionRow.finish.is_not(None)
    return false()


def _describe(row: SessionRow, used: tuple[int, int], alive_since: datetime) -> dict[str, Any]:
    status: dict[str, Any] | None = None
    if row.finish is not None:
        status = {"type": "client_finished", "reason": {"type": row.finish}}
        status["detail"] = row.finish_detail
    elif row.last_seen > alive_since:
        status = {"type": "active"}
    count, size = used
    return {
        "session_id": row.id,
        "created_at": row.created_at.isoformat(),
        "owner": row.user,
        "project_id": row.project_id or NO_PROJECT,
        "status": status,
        "checkpoints_count": count,
        "display_name": row.display_name,
        "user_metadata": row.user_metadata or None,
        "checkpoint_storage_bytes": size,
    }
