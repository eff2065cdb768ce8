"""Failures in a task's own code: its rewards, tools and rollouts, each with file and line."""

import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Self

_LIBRARIES = (
    str(Path(__file__).parents[2]),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)
_LONGEST = 8000


@dataclass(frozen=True)
class CodeFailure:
    """An exception in a task's code: what it says, where it was raised, and its traceback."""

    error: str
    place: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Describe an exception. The place is the last line of the task's own code."""
        said = f"{type(error).__name__}: {error}"
        whole = traceback.TracebackException.from_exception(error)
        own = [frame for frame in _frames(whole) if not _is_library(frame)]
        if not own:
            return cls(said, "", "")
        from_the_task_on = list(dropwhile(_is_library, whole.stack)) or whole.stack
        whole.stack = traceback.StackSummary.from_list(from_the_task_on)
        text = "".join(whole.format())
        return cls(said, f"{own[-1].filename}:{own[-1].lineno}", text[-_LONGEST:])


def _frames(error: traceback.TracebackException | None) -> list[traceback.FrameSummary]:
    """Return where an exception was raised, and before that what it was raised from."""
    return [] if error is None else [*_frames(error.__cause__), *error.stack]


def _is_library(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_LIBRARIES)


_NOTED: ContextVar[list[CodeFailure] | None] = ContextVar("noted", default=None)


@contextmanager
def noting(failures: list[CodeFailure]) -> Iterator[None]:
    """Collect the exceptions passed to :func:`note` in a list while a rollout runs."""
    token = _NOTED.set(failures)
    try:
        yield
    finally:
        _NOTED.reset(token)


def note(error: BaseException) -> None:
    """Keep an exception that does not end its rollout, such as that of a tool."""
    noted = _NOTED.get()
    if noted is not None:
        noted.append(CodeFailure.of(error))


class FailureLog:
    """Shows each failure once, and passes it on to be kept."""

    def __init__(self, keep: Callable[[CodeFailure, int, str], None] | None = None) -> None:
        self._keep = keep
        self._shown: set[tuple[str, str]] = set()

    def see(self, failure: CodeFailure, step: int, sampled_for: str) -> None:
        """Print a failure that was not seen before: the same exception at the same line is one."""
        key = (failure.error.partition(":")[0], failure.place)
        if key in self._shown:
            return
        self._shown.add(key)
        at = f" at {failure.place}" if failure.place else ""
        lines = [f"failed in {sampled_for}{at}, shown once: {failure.error}"]
        lines += failure.traceback.rstrip().split("\n") if failure.traceback else []
        print("\n".join(f"  {line}" for line in lines), flush=True)
        if self._keep is not None:
            self._keep(failure, step, sampled_for)
