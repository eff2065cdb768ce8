"""Decoding of request bodies outside the event loop, within a memory budget.

A JSON parser holds the GIL from the first to the last byte, so a large body would block every
heartbeat for seconds. Large bodies are therefore parsed in another process.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import asynccontextmanager, contextmanager
from multiprocessing import get_context
from typing import TypeVar

from mint.engine.messages import PackedOperation
from mint.service.errors import ApiError, UserError
from mint.service.wire import codec
from mint.service.wire.bodies import Address, open_body, read_address

LARGE = 2 * 1024 * 1024
"""Bodies of this size or more are parsed in another process."""
_JSON_GROWS, _PROTOBUF_GROWS = 12, 4
"""How much memory decoding a body takes, as a multiple of its size."""
_LEAST_BUDGET = 256 * 1024 * 1024
T = TypeVar("T")


def machine_budget() -> int:
    """Return the memory that decoding may take: a quarter of the machine's."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(total // 4, _LEAST_BUDGET)


class Decoder:
    """Decompresses and parses bodies, within a memory budget."""

    def __init__(self, max_body_bytes: int, budget: int | None = None) -> None:
        self._max_body_bytes = max_body_bytes
        self._budget = machine_budget() if budget is None else budget
        self._taken = 0
        self._changed = asyncio.Condition()
        self._opening = asyncio.Semaphore(2)
        self._held = 0
        self._counting = threading.Lock()
        self._pool: ProcessPoolExecutor | None = None

    @contextmanager
    def holding(self) -> Iterator[Callable[[int], None]]:
        """Provide the counter of one opened body, which is counted until the end of the context.

        All opened bodies together have at most the budget; the counter raises ApiError 429 beyond.
        """
        mine, is_over = 0, False

        def grow(size: int) -> None:
            nonlocal mine
            with self._counting:
                if is_over or self._held + size > self._budget:
                    raise ApiError(429, "Too many large requests are being read at once; retry.")
                mine += size
                self._held += size

        try:
            yield grow
        finally:
            with self._counting:
                is_over = True  # a thread may still be decompressing a request that was cancelled
                self._held -= mine

    async def open(
        self, body: bytes, encoding: str | None, is_protobuf: bool, grow: Callable[[int], None]
    ) -> bytes:
        """Decompress a body, counted by ``grow`` of :meth:`holding`.

        Raises BadBody, or ApiError 413 if it is too large, or 429 if there are too many.
        """
        grows = _PROTOBUF_GROWS if is_protobuf else _JSON_GROWS
        limit = min(self._max_body_bytes, self._budget // grows)
        if encoding and encoding.lower() != "identity":
            async with self._opening:
                return await asyncio.to_thread(open_body, body, encoding, limit, grow)
        if len(body) > limit:
            raise ApiError(413, f"The request has more than {limit} bytes. Send fewer datums.")
        return body

    async def address(self, body: bytes, is_protobuf: bool) -> Address | None:
        """Return which operation a body is, without parsing a large one in this process."""
        if is_protobuf or len(body) < LARGE:
            return read_address(body, is_protobuf)
        async with self._reserve(len(body) * _JSON_GROWS):
            return await self._elsewhere(read_address, body, is_protobuf)

    async def forward_backward(
        self, bodies: list[bytes], is_protobuf: list[bool], forward_only: bool
    ) -> list[PackedOperation]:
        """Decode operations for the engine. Raises UserError if they are not valid."""
        decoded = []
        for body, protobuf in zip(bodies, is_protobuf, strict=True):
            async with self._reserve(len(body) * (_PROTOBUF_GROWS if protobuf else _JSON_GROWS)):
                if len(body) < LARGE:
                    decoded.append(await asyncio.to_thread(_pack, body, protobuf, forward_only))
                else:
                    decoded.append(await self._elsewhere(_pack, body, protobuf, forward_only))
        return decoded

    @asynccontextmanager
    async def _reserve(self, size: int) -> AsyncIterator[None]:
        """Wait until ``size`` bytes of the budget are free."""
        size = min(size, self._budget)
        async with self._changed:
            await self._changed.wait_for(lambda: self._taken + size <= self._budget)
            self._taken += size
        try:
            yield
        finally:
            async with self._changed:
                self._taken -= size
                self._changed.notify_all()

    async def _elsewhere(self, work: Callable[..., T], *arguments: object) -> T:
        """Run a function in the decoding process. Raises UserError if that process dies."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        pool = self._pool
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work, *arguments)
        except BrokenProcessPool as error:
            if self._pool is pool:
                self._pool = None
            raise UserError(
                "The request could not be decoded: the decoding process died, probably out of "
                "memory. Send fewer datums at once."
            ) from error

    def close(self) -> None:
        """Stop the decoding process."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _pack(body: bytes, is_protobuf: bool, forward_only: bool) -> PackedOperation:
    return PackedOperation.pack(codec.decode_forward_backward(body, is_protobuf, forward_only))
