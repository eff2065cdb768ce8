"""Sessions, and when each was last seen."""

import asyncio
import time
import uuid
from collections.abc import Callable

from mint.service.errors import not_found
from mint.service.store.database import SessionRow, Store
from mint.service.wire.requests import CreateSession


class Sessions:
    """Keeps heartbeats in memory and writes them in batches, so that none waits for the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._creating = asyncio.Lock()
        self._seen: dict[str, tuple[str, float]] = {}  # the owner and the time

    async def create(
        self, user: str, key: str, request: CreateSession, check: Callable[[int], None] | None
    ) -> str:
        """Create a session. ``check`` gets the number of its key's sessions without runs first."""
        session_id = str(uuid.uuid4())
        row = SessionRow(id=session_id, user=user, key=key, **request.model_dump())
        if check is None:
            await asyncio.to_thread(self._store.add, row)
        else:
            async with self._creating:  # so that those created together are counted too
                check(await asyncio.to_thread(self._store.sessions_of_key, key))
                await asyncio.to_thread(self._store.add, row)
        self.saw(session_id, user)
        return session_id

    async def require(self, session_id: str, user: str) -> None:
        """Record that a session was seen. Raises ApiError 404 if ``user`` has no such session."""
        if session_id not in self._seen or self._seen[session_id][0] != user:
            row = await asyncio.to_thread(self._store.get, SessionRow, session_id, user)
            if row is None:
                raise not_found("session", session_id, "Create one with create_session.")
        self.saw(session_id, user)

    def saw(self, session_id: str, user: str) -> None:
        self._seen[session_id] = (user, time.monotonic())
        self._store.note_use(SessionRow, session_id)

    async def finish(self, session_id: str, user: str, reason: str, detail: str | None) -> None:
        """Finish a session: the next round of housekeeping releases what it holds."""
        await self.require(session_id, user)
        await asyncio.to_thread(self._store.finish_session, session_id, reason, detail)
        self._seen[session_id] = (user, float("-inf"))

    def idle(self, idle_s: float) -> list[str]:
        """Return the sessions that have been silent for ``idle_s``."""
        cutoff = time.monotonic() - idle_s
        return [session_id for session_id, (_, seen) in self._seen.items() if seen < cutoff]

    def forget(self, session_id: str) -> None:
        """Forget a session until it is seen again."""
        self._seen.pop(session_id, None)
