"""Results that clients come back for: long-polled, retrievable again, forgotten after a while."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from .codec import PROTOBUF

MAX_RESULT_BYTES = 512 * 1024 * 1024
Category = Literal["user", "server"]
Reason = Callable[[], str | None]


@dataclass(frozen=True)
class Answer:
    """The body of a finished future, as it goes to the client.

    A sample has the ``digest`` of the weights that made it; the base model has none.
    """

    body: bytes
    content_type: str = "application/json"
    is_failure: bool = False
    digest: str | None = None

    @classmethod
    def json(cls, value: dict[str, Any]) -> Answer:
        return cls(json.dumps(value).encode())

    @classmethod
    def protobuf(cls, body: bytes, digest: str | None = None) -> Answer:
        return cls(body, PROTOBUF, digest=digest)

    @classmethod
    def failure(cls, text: str, category: Category) -> Answer:
        body = json.dumps({"error": text, "category": category}).encode()
        return cls(body, is_failure=True)


@dataclass
class Future:
    """One promised answer and whose it is. ``reason`` says what it waits for."""

    request_id: str
    user: str
    reason: Reason = lambda: None
    answer: Answer | None = None
    forget_at: float = field(default=float("inf"))
    number: int = 0
    _done: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, seconds: float) -> Answer | None:
        """The answer, or None when it is not there after ``seconds``."""
        try:
            await asyncio.wait_for(self._done.wait(), seconds)
        except TimeoutError:
            return None
        return self.answer

    def finish(self, answer: Answer, kept_s: float) -> None:
        if self.answer is None:
            self.answer = answer
            self.forget_at = time.monotonic() + kept_s
            self._done.set()

    def release_waiters(self) -> None:
        self._done.set()


class Futures:
    """All futures of this service by request id."""

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._futures: dict[str, Future] = {}
        self._numbers = itertools.count(time.time_ns() // 1000)
        self._watchers: dict[str, list[asyncio.Event]] = {}
        self._is_closed = False

    def open(self, request_id: str, user: str, reason: Reason = lambda: None) -> Future:
        """The future of this id, made if it is new."""
        future = self._futures.get(request_id)
        if future is None:
            future = self._futures[request_id] = Future(request_id, user, reason)
        return future

    def find(self, request_id: str, user: str) -> Future | None:
        future = self._futures.get(request_id)
        return future if future is not None and future.user == user else None

    def is_open(self, request_id: str) -> bool:
        """Whether somebody may still be waiting for this answer."""
        future = self._futures.get(request_id)
        return future is not None and future.answer is None

    def finish(self, request_id: str, answer: Answer) -> None:
        if (future := self._futures.get(request_id)) is not None:
            if future.answer is None:
                future.number = next(self._numbers)
            future.finish(answer, self._kept_s)
            for watcher in self._watchers.get(owner_of(request_id), ()):
                watcher.set()

    async def finished_since(
        self, owner: str, number: int, is_wanted: Callable[[Future], bool], seconds: float
    ) -> list[Future]:
        """What a sampler finished after ``number``, in order; waits a while for the first."""
        watcher = asyncio.Event()
        self._watchers.setdefault(owner, []).append(watcher)
        try:
            async with asyncio.timeout(seconds):
                while not (found := self._finished(owner, number, is_wanted)):
                    if self._is_closed:
                        break
                    watcher.clear()
                    await watcher.wait()
                return found
        except TimeoutError:
            return []
        finally:
            self._watchers[owner].remove(watcher)
            if not self._watchers[owner]:
                del self._watchers[owner]

    def _finished(
        self, owner: str, number: int, is_wanted: Callable[[Future], bool]
    ) -> list[Future]:
        found = [
            future
            for future in self._futures.values()
            if future.number > number and owner_of(future.request_id) == owner and is_wanted(future)
        ]
        return sorted(found, key=lambda future: future.number)

    def forget(self, request_id: str, user: str) -> None:
        """Drop a finished result: its client has it for good."""
        future = self.find(request_id, user)
        if future is not None and future.answer is not None:
            del self._futures[request_id]

    def retrieved(self, future: Future) -> None:
        """A retrieved answer stays a while longer: its HTTP response may have been lost."""
        soon = time.monotonic() + self._kept_s / 10
        future.forget_at = min(future.forget_at, soon)

    def forget_old(self) -> None:
        """Drop results whose time is over, and retrieved ones early when they take much memory."""
        cutoff = time.monotonic()
        soon = cutoff + self._kept_s / 10
        size = sum(len(f.answer.body) for f in self._futures.values() if f.answer)
        for future in sorted(self._futures.values(), key=lambda f: f.forget_at):
            is_spare = size > MAX_RESULT_BYTES and future.forget_at <= soon
            if future.answer is None or not (future.forget_at < cutoff or is_spare):
                break
            size -= len(future.answer.body)
            del self._futures[future.request_id]

    def close(self) -> None:
        """Let every waiting poll go: the service is ending."""
        self._is_closed = True
        for future in self._futures.values():
            future.release_waiters()
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.set()


def owner_of(request_id: str) -> str:
    """The run or sampler that a request went to."""
    return request_id.rpartition(":")[0]
