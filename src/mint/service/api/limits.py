"""Limits on requests while they arrive: size, total size of all, and time."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from mint.service.errors import ApiError

_SLOWEST_BODY = 10_000  # bytes a second


def timed_protocol(limit_s: float) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol, extended to close connections when the headers of a request, or
    the rest of the body of one that was already answered, do not arrive in time."""

    class TimedProtocol(H11Protocol):
        _closing: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.conn.their_state is h11.SEND_BODY:  # answered before all of its body arrived
                self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Close the connection after ``limit_s``, unless a request is being processed."""
            is_answered = self.conn.our_state is h11.DONE
            if self.conn.their_state is not h11.IDLE and not is_answered:
                self._stop()
            elif self._closing is None:
                self._closing = self.loop.call_later(limit_s, self.transport.close)

        def _stop(self) -> None:
            if self._closing is not None:
                self._closing.cancel()
                self._closing = None

    return TimedProtocol


@dataclass
class BodyLimit:
    """Refuses bodies that are too large or arrive too slowly, while they arrive.

    ``limits`` has the maximum size of a body for some paths, and ``limit`` is that of all others.
    Bodies in memory together take at most ``memory`` bytes; a single one may always use its own
    limit. Bodies for the paths ``on_disk`` are not held in memory.
    """

    app: ASGIApp
    limit: int
    limits: Mapping[str, int]
    limit_s: float
    memory: int
    on_disk: Collection[str]
    held: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received, is_complete = 0, False
        path = scope.get("path", "")
        in_memory = path not in self.on_disk
        limit = self.limits.get(path, self.limit)
        started = asyncio.get_running_loop().time()

        async def counted() -> Message:
            nonlocal received, is_complete
            if is_complete:  # the next message is that the client disconnected
                return await receive()
            try:
                async with asyncio.timeout_at(started + self.limit_s + received / _SLOWEST_BODY):
                    message = await receive()
            except TimeoutError:
                raise ApiError(
                    408,
                    f"The body of the request did not arrive: after {self.limit_s:.0f} s it must "
                    f"arrive at {_SLOWEST_BODY // 1000} kB/s or faster. Send it again.",
                ) from None
            is_complete = not message.get("more_body", False)
            size = len(message.get("body", b""))
            received += size
            self.held += size if in_memory else 0
            if received > limit:
                raise ApiError(413, f"The request has more than {limit} bytes. Send less.")
            if in_memory and self.held > max(self.memory, received):
                raise ApiError(429, "Too many large requests are arriving at once; retry.")
            return message

        try:
            await self.app(scope, counted, send)
        finally:
            self.held -= received if in_memory else 0
