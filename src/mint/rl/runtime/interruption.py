"""Handle Ctrl-C and SIGTERM: end a run at a point where its state is consistent.

``asyncio.Runner`` cancels its task at the first Ctrl-C, wherever it is, and raises at the second.
This module adds what it cannot do: finish a step that is being trained on, not interrupt the saving
at the end of a run, react to the Ctrl-C of a notebook, which arrives in another thread, and exit
although a task or a thread does not end.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

Result = TypeVar("Result")
_CLOSE_SECONDS = 5.0  # how long cancelled work may take to clean up
_HELD_UP_SECONDS = 0.3  # a loop that has not handled a press for this long is blocked
_HANDLERS: dict[int, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}
"""Signals that end a run, and Python's own handlers of them."""


class Interruption:
    """Handles Ctrl-C from the beginning of a run to its end, and SIGTERM like it.

    ``answer`` is what a press does to the run: ``cancel`` it; ``finish`` the step first, and cancel
    at the second press; or ``ignore`` it while the run is being closed, which is quick. If an
    earlier press still waits for the event loop, a user's code blocks the loop, and the next press
    raises ``KeyboardInterrupt`` in that code. (Not immediately: raised inside asyncio, it could
    lose the wake-up of a task, which would then wait forever.)
    """

    def __init__(self) -> None:
        self.presses = 0
        self.code = 128 + signal.SIGINT  # the exit code, as shells expect
        self.answer: Literal["cancel", "finish", "ignore"] = "cancel"
        self._seen = 0
        self._unseen_since: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._process = os.getpid()

    def run(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Return the result of some work in an event loop of its own."""
        self._loop = loop = asyncio.new_event_loop()
        with self._listening(), _closing(loop):
            self._task = task = loop.create_task(work())
            if self.presses:  # pressed before the loop existed
                self._see()
            try:
                return loop.run_until_complete(task)
            except KeyboardInterrupt:
                if task.done():
                    raise
                task.cancel()  # raised in another task, or between two of them
                return loop.run_until_complete(task)

    def press(self) -> None:
        """Ask the run to end, as Ctrl-C does. From any thread."""
        self.presses += 1
        if self._unseen_since is None:
            self._unseen_since = time.monotonic()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._see)

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` if Ctrl-C was pressed."""
        if self.presses:
            self._seen, self._unseen_since = self.presses, None
            raise KeyboardInterrupt

    def _see(self) -> None:
        if self._seen == self.presses:  # ``check`` was earlier, and has raised for this press
            return
        first, self._unseen_since = self._seen == 0, None
        self._seen += 1
        assert self._task is not None
        if self.answer == "cancel" or (self.answer == "finish" and not first):
            self._task.cancel()
        elif self.answer == "finish":
            print(
                "Interrupted: finishing this step. Press Ctrl-C again to stop immediately.",
                flush=True,
            )

    def _on_signal(self, number: int, frame: object) -> None:
        """Runs between any two instructions of the main thread: no printing, no waiting."""
        if os.getpid() != self._process:  # a fork, such as a worker of multiprocessing
            signal.signal(number, _HANDLERS[number])
            signal.raise_signal(number)
            return
        since, self.code = self._unseen_since, 128 + number
        self.press()
        held_up = since is not None and time.monotonic() - since > _HELD_UP_SECONDS
        if held_up and self.answer != "ignore":
            raise KeyboardInterrupt

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Install handlers, in the main thread and unless others are installed."""
        main = threading.current_thread() is threading.main_thread()
        free = [n for n, own in _HANDLERS.items() if main and signal.getsignal(n) == own]
        for number in free:
            signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number in free:
                signal.signal(number, _HANDLERS[number])


@contextmanager
def _closing(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Close a loop: cancel what is left, and leave behind whatever does not end."""
    try:
        yield
    finally:
        loop.set_exception_handler(lambda loop, context: None)
        try:
            if tasks := asyncio.all_tasks(loop):
                for task in tasks:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(tasks, timeout=_CLOSE_SECONDS))
            rest = loop.create_task(loop.shutdown_asyncgens())
            loop.run_until_complete(asyncio.wait([rest], timeout=_CLOSE_SECONDS))
        finally:
            loop.close()
