"""Threads that nobody waits for: a program can end while they are stuck.

``asyncio.to_thread`` and ``ThreadPoolExecutor`` join theirs when the interpreter exits, so that a
reward that hangs would keep a run from ending after Ctrl-C.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
Work = Callable[[], None]


def in_a_thread(function: Callable[[], Result]) -> Future[Result]:
    """The result of a call that waits, in a thread of its own."""
    future: Future[Result] = Future()
    threading.Thread(target=_fulfil, args=(future, function), daemon=True).start()
    return future


async def to_thread(function: Callable[[], Result]) -> Result:
    """The same for a coroutine, whose loop continues meanwhile.

    >>> asyncio.run(to_thread(lambda: 2 + 2))
    4
    """
    return await asyncio.wrap_future(in_a_thread(function))


class Threads(Executor):
    """A fixed number of threads.

    >>> Threads(2).submit(max, 3, 5).result()
    5
    """

    def __init__(self, count: int) -> None:
        self._waiting: SimpleQueue[Work | None] = SimpleQueue()
        self._count = count
        for _ in range(count):
            threading.Thread(target=self._work, daemon=True).start()

    def submit(
        self,
        fn: Callable[Arguments, Result],
        /,
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Future[Result]:
        """Call a function in the next thread that is free."""
        future: Future[Result] = Future()
        self._waiting.put(lambda: _fulfil(future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Let the threads end when they have done what was asked of them; never waits."""
        for _ in range(self._count):
            self._waiting.put(None)

    def _work(self) -> None:
        while (work := self._waiting.get()) is not None:
            work()


def _fulfil(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except StopIteration as error:  # which no coroutine that waits for it may raise
        future.set_exception(RuntimeError(f"StopIteration: {error}"))
    except BaseException as error:
        future.set_exception(error)
