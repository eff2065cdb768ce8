"""Read JSON Lines files that grow; only what was added is read."""

import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

_LONGEST_LINE = 4 * 1024 * 1024
_MOST_ROWS = 100_000


def open_regular(path: Path) -> IO[bytes] | None:
    """Open a regular file; None for a link, a device, a folder, or an absent file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    return None


class Tail:
    """The rows of a JSONL file, kept up to date.

    A file that became shorter or that was replaced is read from its beginning, and ``generation``
    counts that. Lines that are not JSON objects are left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self.generation = 0
        self._offset = 0
        self._identity: tuple[int, int] | None = None
        self._head = b""

    def refresh(self) -> list[dict[str, Any]]:
        """Read what was added since the last time and return all rows."""
        file = open_regular(self.path)
        if file is None:
            self._restart(None)
            return self.rows
        with file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            head = file.read(min(256, self._offset))
            if identity != self._identity or status.st_size < self._offset or head != self._head:
                self._restart(identity)
            file.seek(self._offset)
            self._read(file)
            file.seek(0)
            self._head = file.read(min(256, self._offset))
        return self.rows

    def _restart(self, identity: tuple[int, int] | None) -> None:
        if self._offset:
            self.generation += 1
        self.rows, self._offset, self._head = [], 0, b""
        self._identity = identity

    def _read(self, file: IO[bytes]) -> None:
        while line := file.readline(_LONGEST_LINE):
            is_complete = line.endswith(b"\n")
            if not is_complete and len(line) < _LONGEST_LINE:
                return  # unfinished: read again the next time
            self._offset += len(line)
            if is_complete and len(self.rows) < _MOST_ROWS:
                with suppress(ValueError, RecursionError):
                    row = json.loads(line, parse_constant=lambda _: None)
                    if isinstance(row, dict):
                        self.rows.append(row)
