"""Token usage of keys and runs, counted in memory and added to the store every few seconds.

Counts are stored by hour. A service that is killed loses at most what it counted since the last
write (``SAVE_EVERY_S``); replaying a journal counts nothing twice.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite

from mint.service.store.database import ApiKey, CheckpointRow, RunRow, Store, UsageRow, now

SAVE_EVERY_S = 5.0
TOKENS = ("prompt_tokens", "tokens_sampled", "tokens_trained")
Cell = tuple[str, str, datetime]  # key, run or "", hour
Group = Literal["key", "run"]


class Usage:
    """Counts the tokens of keys and runs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._unsaved: dict[Cell, Counter[str]] = {}
        self._saving = asyncio.Lock()

    def add(self, key: str, run_id: str | None, **tokens: int) -> None:
        """Count tokens, named as in ``TOKENS``."""
        hour = now().replace(minute=0, second=0, microsecond=0)
        self._unsaved.setdefault((key, run_id or "", hour), Counter()).update(tokens)

    async def save(self) -> None:
        """Add the new counts to the store; if that fails, keep them for the next time."""
        async with self._saving:
            unsaved, self._unsaved = self._unsaved, {}
            if not unsaved:
                return
            try:
                await asyncio.to_thread(_add, self._store, unsaved)
            except BaseException:
                for cell, tokens in unsaved.items():
                    self._unsaved.setdefault(cell, Counter()).update(tokens)
                raise

    async def read(
        self, by: Group, since: datetime | None = None, key: str | None = None
    ) -> list[dict[str, Any]]:
        """Return tokens since a time, and checkpoints now, of each key or each run of each key."""
        await self.save()
        return await asyncio.to_thread(_read, self._store, by, since, key)


def _add(store: Store, unsaved: dict[Cell, Counter[str]]) -> None:
    when = now()
    with store.transaction() as session:
        dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
        for (key, run_id, hour), tokens in unsaved.items():
            counts = {name: tokens[name] for name in TOKENS}
            row = dialect.insert(UsageRow).values(
                key=key, run_id=run_id, hour=hour, last_used_at=when, **counts
            )
            sums = {name: getattr(UsageRow, name) + count for name, count in counts.items()}
            session.execute(
                row.on_conflict_do_update(
                    index_elements=["key", "run_id", "hour"], set_={**sums, "last_used_at": when}
                )
            )


def _read(store: Store, by: Group, since: datetime | None, key: str | None) -> list[dict[str, Any]]:
    group = [UsageRow.key, *([UsageRow.run_id] if by == "run" else [])]
    tokens = select(
        *group,
        *(func.sum(getattr(UsageRow, name)) for name in TOKENS),
        func.max(UsageRow.last_used_at),
    ).group_by(*group)
    if since is not None:
        tokens = tokens.where(UsageRow.hour > since - timedelta(hours=1))
    owner = [RunRow.key, *([RunRow.id] if by == "run" else [])]
    held = (
        select(
            *owner,
            func.count(CheckpointRow.id),
            func.coalesce(func.sum(CheckpointRow.size_bytes), 0),
            func.max(RunRow.last_request_at),
        )
        .outerjoin(CheckpointRow, CheckpointRow.run_id == RunRow.id)
        .group_by(*owner)
    )
    keys = select(ApiKey.name, ApiKey.last_used_at)
    if key is not None:
        tokens, held = tokens.where(UsageRow.key == key), held.where(RunRow.key == key)
        keys = keys.where(ApiKey.name == key)
    found: dict[tuple[str, ...], dict[str, Any]] = {}

    def entry(names: Sequence[str], last_used: datetime | None) -> dict[str, Any]:
        named = dict(zip(("key", "run_id"), names, strict=False))
        empty = {**named, **dict.fromkeys((*TOKENS, "checkpoints", "bytes"), 0), "last_used": None}
        its = found.setdefault(tuple(names), empty)
        its["last_used"] = max(filter(None, (its["last_used"], last_used)), default=None)
        return its

    with store.transaction() as session:
        for *names, sampled_from, sampled, trained, last in session.execute(tokens):
            its = entry(names, last)
            its.update(zip(TOKENS, map(int, (sampled_from, sampled, trained)), strict=True))
        for *names, count, size, last in session.execute(held):
            entry(names, last).update(checkpoints=int(count), bytes=int(size))
        for name, last in session.execute(keys) if by == "key" else ():
            entry([name], last)
    oldest = datetime.min.replace(tzinfo=now().tzinfo)
    return sorted(found.values(), key=lambda its: its["last_used"] or oldest, reverse=True)
