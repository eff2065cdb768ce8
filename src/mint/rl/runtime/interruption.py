"""Ctrl-C in a run: noticed at once, and obeyed where nothing is left half done."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Literal, NoReturn

Told = Callable[[], bool]
"""Tells work of a press. False: it cannot be told, or does not listen."""


def _nobody() -> bool:
    return False


class Interruption:
    """The handling of Ctrl-C, from the beginning of a run to its end.

    Work that is going on in a loop is told of a press, and ends as it should. Other code is not
    disturbed by the first press, which is noted; the second one raises ``KeyboardInterrupt``, and
    so does the first while a run begins and has nothing to lose. A run that leaves is not disturbed
    any more, because leaving takes no time.
    """

    def __init__(self) -> None:
        self.presses = 0
        self._answer: Literal["raise", "note", "ignore"] = "raise"
        self._tell: Told = _nobody
        self._listens = False

    def listen(self) -> None:
        """Take Ctrl-C over, in the main thread and unless somebody else has."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_signal)
            self._listens = True

    def close(self) -> None:
        """Give Ctrl-C back."""
        if self._listens and signal.getsignal(signal.SIGINT) == self._on_signal:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._listens = False

    def _on_signal(self, number: int, frame: object) -> None:
        """Runs between any two instructions of the main thread: no printing, no waiting."""
        self.presses += 1
        if self._answer == "ignore" or self._tell():
            return
        if self._answer == "raise" or self.presses > 1:
            self._raise()

    def press(self) -> None:
        """Ask the run to end, as the first Ctrl-C does. From any thread."""
        self.presses += 1
        with contextlib.suppress(RuntimeError):  # the loop that would be told has just ended
            self._tell()

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` if Ctrl-C was pressed."""
        if self.presses:
            self._raise()

    def _raise(self) -> NoReturn:
        self._answer = "ignore"
        raise KeyboardInterrupt

    def note(self) -> None:
        """Record a press from now on, and continue."""
        self._answer = "note"

    def ignore(self) -> None:
        """Only count presses from now on."""
        self._answer = "ignore"

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """While leaving: let a press end what is done in here."""
        self._answer = "raise"
        try:
            yield
        finally:
            self._answer = "ignore"

    @contextlib.contextmanager
    def telling(self, tell: Told) -> Iterator[None]:
        """Have some work told of presses, and of those that came just before."""
        self._tell = tell
        try:
            if self.presses:
                tell()
            yield
        finally:
            self._tell = _nobody
