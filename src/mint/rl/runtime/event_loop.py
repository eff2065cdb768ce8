"""The event loop of a run: one thing at a time, until Ctrl-C or to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from mint.rl.runtime.interruption import Interruption

Result = TypeVar("Result")
_CLOSE_SECONDS = 5.0
"""How long work that was cancelled has to clean up."""


class Loop:
    """Runs coroutines for a program that is not one.

    Ctrl-C is the business of an :class:`Interruption`, not of asyncio: a task is only ever
    cancelled by the loop itself, after it has begun.

    >>> async def double(x): return 2 * x
    >>> with Loop() as loop:
    ...     loop.run(double(4))
    8
    """

    def __init__(self, interruption: Interruption | None = None) -> None:
        self.interruption = interruption or Interruption()
        self._loop = asyncio.new_event_loop()

    def run(
        self, work: Coroutine[Any, Any, Result], on_press: Callable[[], object] | None = None
    ) -> Result:
        """The result of some work, which Ctrl-C cancels.

        With ``on_press``, the first press calls that instead, and the second one cancels.
        """
        task = self._loop.create_task(work)
        with self.interruption.telling(_Presses(self._loop, task, on_press).tell):
            try:
                return self._loop.run_until_complete(task)
            except asyncio.CancelledError:
                self.interruption.check()
                raise
            finally:
                if on_press is None:
                    task.cancel()  # it is still there when something raised in the loop

    def close(self) -> None:
        """Cancel what is left, and end; whatever does not want to end is left behind."""
        self._loop.set_exception_handler(lambda loop, context: None)
        try:
            self._run_a_while(_cancelled(asyncio.all_tasks(self._loop)))
            self._run_a_while(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _run_a_while(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._loop.run_until_complete(asyncio.wait([task], timeout=_CLOSE_SECONDS))

    def __enter__(self) -> Loop:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Presses:
    """Brings presses of Ctrl-C to a task: two at most, each when the one before has arrived."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        task: asyncio.Task[Any],
        on_first: Callable[[], object] | None,
    ) -> None:
        self._loop = loop
        self._task = task
        self._on_first = on_first or task.cancel
        self._sent = self._arrived = 0

    def tell(self) -> bool:
        """False when the loop is held up: the press before has not arrived there."""
        if self._sent > self._arrived or self._sent == 2:
            return False
        self._sent += 1
        self._loop.call_soon_threadsafe(self._arrive)
        return True

    def _arrive(self) -> None:
        self._arrived += 1
        react = self._on_first if self._arrived == 1 else self._task.cancel
        react()


async def _cancelled(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def shielded(request: Any) -> Any:
    """The answer to a request of a training client, which is never cancelled on its way.

    Client and service number these requests and keep their order: one that was begun and never
    came would be waited for by all that follow.
    """
    return await asyncio.shield(asyncio.ensure_future(request))
