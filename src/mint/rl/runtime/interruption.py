"""Ctrl-C in a run: noticed at once, and obeyed where nothing is left half done.

``asyncio.Runner`` cancels its task at the first Ctrl-C, wherever that is, and raises in the middle
of anything at the second. It cannot let a step that is being trained on end first, leave the saving
at the end of a run alone, or be told by a notebook, whose Ctrl-C arrives in another thread. That is
all that this module adds.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

Result = TypeVar("Result")


class Interruption:
    """The handling of Ctrl-C, from the beginning of a run to its end.

    ``answer`` says what a press does to the run: ``cancel`` it; ``finish`` the step first, and
    cancel at the second press; or ``ignore`` it while the run is closed, which takes no time. A
    press before the last one was seen means that somebody's code holds up the event loop, and
    raises ``KeyboardInterrupt`` there.
    """

    def __init__(self) -> None:
        self.presses = 0
        self.answer: Literal["cancel", "finish", "ignore"] = "cancel"
        self._seen = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def run(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Return the result of some work in an event loop of its own."""
        with self._listening(), asyncio.Runner() as runner:
            self._loop = loop = runner.get_loop()
            self._task = task = loop.create_task(work())
            if self.presses:  # before there was a loop
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
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._see)

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` if Ctrl-C was pressed."""
        if self.presses:
            raise KeyboardInterrupt

    def _see(self) -> None:
        first, self._seen = self._seen == 0, self.presses
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
        held_up = self.presses > self._seen
        self.press()
        if held_up and self.answer != "ignore":
            raise KeyboardInterrupt

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Take Ctrl-C over, in the main thread and unless somebody else has."""
        main = threading.current_thread() is threading.main_thread()
        free = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if free:
            signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield
        finally:
            if free:
                signal.signal(signal.SIGINT, signal.default_int_handler)
