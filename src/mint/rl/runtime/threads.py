"""Daemon threads: a program can exit while they are blocked.

``asyncio.to_thread`` joins its threads when the interpreter exits, so that a reward that hangs
would keep a run from ending after Ctrl-C.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


def in_a_thread(function: Callable[[], Result]) -> Future[Result]:
    """Call a blocking function in a separate thread."""
    future: Future[Result] = Future()

    def work() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(function())
        except StopIteration as error:  # a coroutine must not raise it
            future.set_exception(RuntimeError(f"StopIteration: {error}"))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


async def to_thread(function: Callable[[], Result]) -> Result:
    """Call a blocking function in a separate thread, while the event loop continues.

    >>> asyncio.run(to_thread(lambda: 2 + 2))
    4
    """
    return await asyncio.wrap_future(in_a_thread(function))


async def call(function: Callable[[], Any]) -> Any:
    """Return the result of a function that is async, or sync and possibly blocking."""
    if inspect.iscoroutinefunction(function):
        return await function()
    found = await to_thread(function)
    return await found if inspect.isawaitable(found) else found
