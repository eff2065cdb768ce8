"""Futures: results that clients poll for, and may retrieve again for a while."""

import asyncio
import itertools
import json
import logging
import mmap
import shutil
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self
from weakref import WeakValueDictionary

from mint.service.errors import Category, explain
from mint.service.wire.codec import PROTOBUF

from .background import in_background
from .results import MAX_RESULTS, Queue, Share, map_body, write_body
from .turns import LoopTurns

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WaitReason:
    """Why a result is not ready yet. ``active`` means that it is being computed."""

    reason: str
    state: Literal["active", "paused_capacity"] = "paused_capacity"


Reason = Callable[[], WaitReason | None]


@dataclass(frozen=True)
class Response:
    """The body of a finished future. ``digest`` is of the adapter that a sample was drawn from.

    A body that was moved to disk is ``mapped`` while it is sent, so that many who ask for it do not
    hold a copy each.
    """

    body: bytes
    content_type: str = "application/json"
    is_failure: bool = False
    digest: str | None = None
    mapped: mmap.mmap | None = None

    @classmethod
    def json(cls, value: dict[str, Any]) -> Self:
        return cls(json.dumps(value).encode())

    @classmethod
    def protobuf(cls, body: bytes, digest: str | None = None) -> Self:
        return cls(body, PROTOBUF, digest=digest)

    @classmethod
    def failure(cls, text: str, category: Category) -> Self:
        body = json.dumps({"error": text, "category": category}).encode()
        return cls(body, is_failure=True)


@dataclass
class Future:
    """A result and its owner. ``reason`` returns what it waits for; ``file`` may have its body."""

    request_id: str
    user: str
    reason: Reason = lambda: None
    answer: Response | None = None
    size: int = 0
    file: Path | None = None
    forget_at: float = field(default=float("inf"))
    number: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, seconds: float) -> Response | None:
        """Return the answer, or None if it is not ready after ``seconds``. Raises ResultExpired."""
        if not self.done.is_set():  # wait_for with a timeout of 0 would miss it
            try:
                await asyncio.wait_for(self.done.wait(), seconds)
            except TimeoutError:
                return None
        if self.file is None:
            return self.answer
        return await asyncio.to_thread(self.read, as_map=True)

    def read(self, as_map: bool = False) -> Response | None:
        """Return the answer, read or mapped from disk if it is there. Raises ResultExpired."""
        answer, file = self.answer, self.file  # in this order, as the body may move meanwhile
        if answer is None or file is None:
            return answer
        try:
            if as_map:
                return replace(answer, mapped=map_body(file))
            return replace(answer, body=file.read_bytes())
        except FileNotFoundError:
            raise ResultExpired from None


class ResultExpired(Exception):
    """A result was dropped while it was being read."""


class Futures:
    """All futures of this service by request id."""

    def __init__(self, kept_s: float, memory_bytes: int, disk_bytes: int, folder: Path) -> None:
        self.turns = LoopTurns()
        self._kept_s = kept_s
        self._futures: dict[str, Future] = {}
        self._of_owner: dict[str, dict[str, Future]] = {}
        self._numbers = itertools.count(time.time_ns() // 1000)
        self._next_finished: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        self.in_memory, self.on_disk = Queue(memory_bytes), Queue(disk_bytes)
        self._count = Share(MAX_RESULTS)
        self._folder = folder / uuid.uuid4().hex  # deleted with this process
        self._moving: asyncio.Task[None] | None = None
        self._is_closed = False

    def open(self, request_id: str, user: str, reason: Reason = lambda: None) -> Future:
        """Return the future of this id; create it if it is new."""
        future = self._futures.get(request_id)
        if future is None:
            future = self._futures[request_id] = Future(request_id, user, reason)
            self._of_owner.setdefault(find_owner(request_id), {})[request_id] = future
        elif future.answer is None:
            future.reason = reason
        return future

    def compute(
        self,
        request_id: str,
        user: str,
        what: str,
        work: Coroutine[Any, Any, Response],
        reason: Reason = lambda: None,
    ) -> asyncio.Task[None]:
        """Open a future, and finish it with the result of some work or with its failure."""

        async def answer() -> None:
            try:
                found = await work
            except Exception as error:
                found = Response.failure(*explain(error, f"{what} ({request_id})"))
            self.finish(request_id, found)

        self.open(request_id, user, reason)
        return in_background(answer())

    def find(self, request_id: str, user: str) -> Future | None:
        future = self._futures.get(request_id)
        return future if future is not None and future.user == user else None

    def is_open(self, request_id: str) -> bool:
        """Return whether this answer is still pending."""
        future = self._futures.get(request_id)
        return future is not None and future.answer is None

    def finish(self, request_id: str, answer: Response) -> None:
        future = self._futures.get(request_id)
        if future is None or future.answer is not None:
            return
        future.number = next(self._numbers)
        future.answer, future.size = answer, len(answer.body)
        future.forget_at = time.monotonic() + self._kept_s
        future.done.set()
        self.in_memory.add(future.user, request_id, future.size)
        self._count.add(future.user, 1)
        if (event := self._next_finished.pop(find_owner(request_id), None)) is not None:
            event.set()
        while (user := self._count.user_over_limit()) is not None:
            self._expire(user)
        is_moving = self._moving is not None and not self._moving.done()
        if self.in_memory.bytes.user_over_limit() is not None and not is_moving:
            self._moving = asyncio.create_task(self._move_to_disk())

    async def _move_to_disk(self) -> None:
        """Move bodies to disk until memory is within its bound; drop those beyond the disk's."""
        while (user := self.in_memory.bytes.user_over_limit()) is not None:
            request_id = self.in_memory.first(user)
            assert request_id is not None, "a user beyond the bound has results"
            future = self._futures[request_id]
            assert future.answer is not None, "it is finished"
            self.in_memory.remove(user, request_id)
            self.on_disk.add(user, request_id, future.size)
            try:
                file = await asyncio.to_thread(write_body, self._folder, future.answer.body)
            except OSError as error:
                log.warning("the result of %s was dropped: %s", request_id, error)
                self._delete(future)
                continue
            if self._futures.get(request_id) is future:
                future.file, future.answer = file, replace(future.answer, body=b"")
            else:
                file.unlink(missing_ok=True)
            while (user := self.on_disk.bytes.user_over_limit()) is not None:
                self._expire(user)

    def _expire(self, user: str) -> None:
        request_id = self.on_disk.first(user) or self.in_memory.first(user)
        assert request_id is not None, "a user beyond the bound has results"
        log.warning("the result of %s is no longer kept: there were too many", request_id)
        self._delete(self._futures[request_id])

    def _delete(self, future: Future) -> None:
        if self._futures.get(future.request_id) is not future:
            return
        owner = find_owner(future.request_id)
        del self._futures[future.request_id], self._of_owner[owner][future.request_id]
        if not self._of_owner[owner]:
            del self._of_owner[owner]
        self.in_memory.remove(future.user, future.request_id)
        self.on_disk.remove(future.user, future.request_id)
        self._count.add(future.user, -1)
        if future.file is not None:
            future.file.unlink(missing_ok=True)

    async def finished_since(
        self, owner: str, number: int, is_wanted: Callable[[Future], bool], seconds: float
    ) -> list[Future]:
        """Return a sampler's results finished after ``number``, in order; wait for the first."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    mine = self._of_owner.get(owner, {}).values()
                    found = [each for each in mine if each.number > number and is_wanted(each)]
                    if found or self._is_closed:
                        return sorted(found, key=lambda future: future.number)
                    await self._next_finished.setdefault(owner, asyncio.Event()).wait()
        except TimeoutError:
            return []

    def forget(self, request_id: str, user: str) -> None:
        """Drop a finished result that its client has confirmed."""
        future = self.find(request_id, user)
        if future is not None and future.answer is not None:
            self._delete(future)

    def retrieved(self, future: Future) -> None:
        """Keep a retrieved answer for a while longer, as its HTTP response may have been lost."""
        soon = time.monotonic() + self._kept_s / 10
        future.forget_at = min(future.forget_at, soon)
        for queue in (self.in_memory, self.on_disk):
            queue.move_to_front(future.user, future.request_id)

    def forget_old(self) -> None:
        """Drop results that were kept for their time."""
        now = time.monotonic()
        for future in [future for future in self._futures.values() if future.forget_at < now]:
            self._delete(future)

    def close(self) -> None:
        """Release every waiting poll: the service is stopping."""
        self._is_closed = True
        for future in self._futures.values():
            future.done.set()
        for event in list(self._next_finished.values()):
            event.set()
        if self._moving is not None:
            self._moving.cancel()
        shutil.rmtree(self._folder, ignore_errors=True)


def find_owner(request_id: str) -> str:
    """Return the run or sampler that a request id belongs to."""
    return request_id.rpartition(":")[0]
