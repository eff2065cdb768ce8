"""Idle times of things on disk, measured in service time.

Only time in which a service ran counts: it is measured with the monotonic clock and added up in a
file. A wall clock that jumps, or a machine that was off for a month, therefore deletes nothing.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

_SAVE_EVERY_S = 60.0


class Idleness:
    """Records since when each thing has been unchanged.

    >>> import tempfile
    >>> seconds = [0.0]
    >>> idle = Idleness(Path(tempfile.mkdtemp()) / "idle.json", lambda: seconds[0])
    >>> idle.seconds("run", mark="1"); seconds[0] = 5.0; idle.seconds("run", mark="1")
    0.0
    5.0
    >>> idle.seconds("run", mark="2")
    0.0
    """

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._started = self._saved_at = clock()
        self._before = 0.0  # service time before this process
        self._since: dict[str, tuple[str, float]] = {}
        try:
            found = json.loads(file.read_text())
            self._before = float(found["seconds"])
            self._since = {k: (str(m), float(s)) for k, (m, s) in found["since"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # the first start, or a damaged file: all idle times start at 0

    @property
    def now(self) -> float:
        """Seconds in which services have run on this home folder."""
        return self._before + self._clock() - self._started

    def seconds(self, key: str, mark: str) -> float:
        """Return how long ``key`` has had the same ``mark``."""
        known = self._since.get(key)
        if known is None or known[0] != mark:
            known = self._since[key] = (mark, self.now)
        return self.now - known[1]

    def due(self, kind: str, marks: Mapping[str, str], after_s: float) -> list[str]:
        """Return the things of a kind that have been listed for ``after_s`` with the same mark.

        A thing that is not listed is forgotten: when it is listed again, its time starts at 0.
        """
        listed = {f"{kind} {name}": name for name in marks}
        for key in [key for key in self._since if key.startswith(f"{kind} ") and key not in listed]:
            del self._since[key]
        return [name for key, name in listed.items() if self.seconds(key, marks[name]) >= after_s]

    def save(self, at_once: bool = False) -> None:
        """Write the times, at most once a minute."""
        if not at_once and self._clock() - self._saved_at < _SAVE_EVERY_S:
            return
        self._saved_at = self._clock()
        draft = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        draft.write_text(json.dumps({"seconds": self.now, "since": self._since}))
        os.replace(draft, self._file)
