"""Waits for free space on the disk of the service, instead of failing."""

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from mint.service.errors import DATABASE_FAILED, explain, is_disk_full
from mint.service.files import free_bytes

log = logging.getLogger(__name__)
T = TypeVar("T")
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 5.0


def why_paused(free: int, reserve: int) -> str:
    """Say that training is paused because the disk is full, and what to do."""
    return (
        f"paused because the disk is full: {_megabytes(free)} are free on the disk of the service"
        f"{f', and training needs {_megabytes(reserve)}' if free < reserve else ''}. It resumes "
        "when there is space: delete files, for example old checkpoints (mint checkpoints prune)"
    )


class DiskSpace:
    """Retries the writes of one run while the disk is full.

    ``reserve`` bytes must be free before a write starts. From the first failure until something
    succeeds, it waits for at most ``limit_s``. Without a limit, as for outcomes, it retries after
    any other failure too.
    """

    def __init__(self, folder: Path, reserve: int, limit_s: float | None) -> None:
        self._folder = folder
        self._reserve = reserve
        self._limit_s = limit_s
        self._full_since: float | None = None
        self._free = 0
        self._why = ""
        self._waiting = 0
        self._ended = asyncio.Event()

    def why_waiting(self) -> str | None:
        """Return what the writes wait for; None while there is space."""
        return self._why if self._waiting else None

    def end(self) -> None:
        """Let all waiting writes fail now."""
        self._ended.set()

    async def use(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run work that writes; while it cannot, wait and retry it."""
        wait_s, is_waiting = _FIRST_WAIT_S, False
        try:
            while True:
                try:
                    await asyncio.to_thread(self._check_reserve)
                    result = await work()
                    self._full_since = None
                    return result
                except (OSError, MemoryError, *DATABASE_FAILED) as error:
                    is_full = is_disk_full(error)
                    if not (is_full or self._limit_s is None) or self._is_over():
                        raise
                    failed = f"paused: {explain(error, 'writing an outcome')[0]} It is tried again."
                    self._why = why_paused(self._free, self._reserve) if is_full else failed
                    if not is_waiting:
                        log.warning("training is waiting for the disk: %s", error)
                        is_waiting = True
                        self._waiting += 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        finally:
            self._waiting -= is_waiting

    def _check_reserve(self) -> None:
        self._free = free_bytes(self._folder)
        if self._free < self._reserve:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _is_over(self) -> bool:
        if self._full_since is None:
            self._full_since = time.monotonic()
        waited_s = time.monotonic() - self._full_since
        return self._ended.is_set() or (self._limit_s is not None and waited_s >= self._limit_s)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
