"""Background tasks: started and not awaited."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_running: set[asyncio.Task[Any]] = set()


def in_background(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task and keep a reference to it: the event loop alone does not."""
    task = asyncio.create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task
