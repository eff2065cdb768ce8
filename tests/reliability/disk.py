"""A disk that fails: the Nth change of a file under a folder is an error, or is never made.

Also a disk that forgets: after a power failure a file has what it had when it was last synced, and
a folder the names that it had when it was last synced. The folder itself is taken to be there.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

CHANGES = ("write", "fsync", "fdatasync", "replace", "rename", "ftruncate", "truncate", "mkdir")


class Killed(BaseException):
    """The process is dead: nothing that it does from now on has an effect."""


@dataclass
class Disk:
    """Counts the changes under ``root``. The one numbered ``at`` fails with ``failure``.

    ``failure`` is an errno's name or ``kill``. With ``lasts``, all later ones fail too.
    """

    root: Path
    at: int = 0
    failure: str = "EIO"
    lasts: bool = False
    changes: int = 0
    synced: dict[int, bytes] = field(default_factory=dict)
    names: dict[int, dict[str, tuple[int, bool]]] = field(default_factory=dict)

    @property
    def has_failed(self) -> bool:
        return 0 < self.at <= self.changes

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Let the calls of this process fail from here on."""
        patches = [mock.patch.object(os, name, self._wrapped(name)) for name in CHANGES]
        patches += [mock.patch.object(where, "open", self._open) for where in (io, builtins)]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in patches:
                patch.stop()

    def _is_due(self) -> bool:
        self.changes += 1
        is_dead = self.failure == "kill" and self.changes > self.at > 0
        return self.changes == self.at or is_dead or (self.lasts and self.has_failed)

    def _fail(self) -> None:
        if self.failure == "kill":
            raise Killed
        number = getattr(errno, self.failure)
        raise OSError(number, os.strerror(number))

    def _wrapped(self, name: str) -> Callable[..., Any]:
        original = getattr(os, name)

        def call(target: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_under(target):
                return original(target, *args, **kwargs)
            if self._is_due():
                if name == "write" and self.changes == self.at:
                    original(target, bytes(args[0])[: len(args[0]) // 2])
                self._fail()
            if name in ("fsync", "fdatasync"):
                return self._remember(target)
            return original(target, *args, **kwargs)

        return call

    def _open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        is_change = any(letter in mode for letter in "wax+") and self._is_under(file)
        if is_change and self._is_due():
            if self.changes == self.at:
                original_open(file, mode, *args, **kwargs).close()  # made, but nothing is in it
            self._fail()
        return original_open(file, mode, *args, **kwargs)

    def _is_under(self, target: Any) -> bool:
        try:
            path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else target
        except OSError:
            return False
        return str(path).startswith(str(self.root))

    # ---- power failures -------------------------------------------------------------------------

    def _remember(self, descriptor: int) -> None:
        """Note what is there now. The real disk, which takes its time, is not asked."""
        status = os.fstat(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if stat.S_ISDIR(status.st_mode):
            self.names[status.st_ino] = {
                entry.name: (entry.inode(), entry.is_dir()) for entry in os.scandir(path)
            }
        else:
            self.synced[status.st_ino] = path.read_bytes()

    def cut_power(self, target: Path, deletes: bool = False) -> None:
        """Write into ``target`` what is left under the root after a power failure.

        A disk that ``deletes`` keeps unsynced deletions, and still loses unsynced renames.
        """
        shutil.rmtree(target, ignore_errors=True)
        self._restore(self.root.stat().st_ino, target, self.root if deletes else None)

    def _restore(self, inode: int, target: Path, now: Path | None) -> None:
        target.mkdir()
        for name, (number, is_folder) in self.names.get(inode, {}).items():
            there = now / name if now is not None else None
            if there is not None and not there.exists():
                continue
            if is_folder:
                self._restore(number, target / name, there)
            else:
                (target / name).write_bytes(self.synced.get(number, b""))


original_open = builtins.open
