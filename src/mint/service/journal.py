"""The append-only log of a run's operations since its last snapshot.

A record is a checksum, a length, a JSON header and a body. A record that was torn by a crash is
recognised by its checksum and cut off. One lock per run folder keeps two services apart.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import struct
import threading
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

_FRAME = struct.Struct(">IQI")  # checksum of the rest, length of the rest, length of the header


class RunIsElsewhere(Exception):
    """Another service holds the lock of this run."""


@dataclass(frozen=True)
class Entry:
    """An operation in the journal: its number, kind and content type. The body stays on disk."""

    seq_id: int
    kind: str
    content_type: str
    offset: int
    size: int


@dataclass(frozen=True)
class Outcome:
    """How a group of operations ended. A failed group has an ``error``."""

    kind: str
    seq_ids: list[int]
    error: str | None = None
    category: str | None = None
    result: dict[str, Any] | None = None


@dataclass
class Journal:
    """One run's journal, open and locked.

    ``snapshot`` names the folder that the journal continues from (None: a fresh adapter), and
    ``first`` the first number after it.
    """

    folder: Path
    entries: dict[int, Entry] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    snapshot: str | None = None
    first: int = 1

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._lock_file = _locked(self.folder / "lock")
        self._path = self.folder / "journal"
        self._file = _open(self._path)
        self._unwritten: list[bytes] = []
        self._size = self._read()

    @property
    def size(self) -> int:
        return self._size

    @property
    def next(self) -> int:
        """The first number that has not run yet."""
        done = [n + 1 for outcome in self.outcomes for n in outcome.seq_ids]
        return max([self.first, *done])

    @property
    def snapshot_folder(self) -> Path | None:
        return self.folder / self.snapshot if self.snapshot else None

    # ---- writing --------------------------------------------------------------------------------

    def append_operation(self, seq_id: int, kind: str, content_type: str, body: bytes) -> None:
        """Write an operation and wait until it is on disk. Raises OSError, leaving no trace."""
        header = {"op": kind, "seq": seq_id, "type": content_type}
        with self._lock:
            self._append(header, body, durable=True)

    def append_outcome(self, outcome: Outcome) -> None:
        """Note how operations ended. On a full disk the note waits for the next write."""
        header: dict[str, Any] = {"done": outcome.seq_ids, "of": outcome.kind}
        for key in ("error", "category", "result"):
            if getattr(outcome, key) is not None:
                header[key] = getattr(outcome, key)
        with self._lock:
            try:
                self._append(header, b"", durable=False)
            except OSError:
                self._unwritten.append(_frame(header, b""))
                self._note(header, 0, 0)

    def _append(self, header: dict[str, Any], body: bytes, durable: bool) -> None:
        frame = _frame(header, body)
        start = self._size + sum(map(len, self._unwritten))
        try:
            _write(self._file, b"".join([*self._unwritten, frame]))
            if durable:
                os.fdatasync(self._file)
        except OSError:
            os.truncate(self._path, self._size)
            raise
        self._unwritten.clear()
        self._size = start + len(frame)
        self._note(header, self._size - len(body), len(body))

    # ---- reading --------------------------------------------------------------------------------

    def body(self, seq_id: int) -> bytes:
        """The body of an operation, read from disk."""
        with self._lock:
            entry = self.entries[seq_id]
            return os.pread(self._file, entry.size, entry.offset)

    def _read(self) -> int:
        """Index every whole record; cut the file after the last one."""
        at = 0
        with open(self._path, "rb") as file:
            while (record := _read_record(file)) is not None:
                header, header_size, body_size = record
                self._note(header, at + _FRAME.size + header_size, body_size)
                at += _FRAME.size + header_size + body_size
        os.truncate(self._path, at)
        return at

    def _note(self, header: dict[str, Any], offset: int, size: int) -> None:
        if "op" in header:
            entry = Entry(header["seq"], header["op"], header["type"], offset, size)
            self.entries[entry.seq_id] = entry
        elif "done" in header:
            self.outcomes.append(
                Outcome(
                    header["of"],
                    header["done"],
                    header.get("error"),
                    header.get("category"),
                    header.get("result"),
                )
            )
        else:
            self.snapshot, self.first = header["snapshot"], header["first"]

    # ---- snapshots ------------------------------------------------------------------------------

    def new_snapshot_folder(self, first: int) -> Path:
        """An empty folder for the state before operation ``first``."""
        folder = self.folder / f"snapshot-{first:09d}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def cut(self, snapshot: Path, first: int) -> None:
        """Continue from ``snapshot``: forget the operations before ``first``, atomically."""
        with self._lock:
            done = {n for outcome in self.outcomes for n in outcome.seq_ids}
            kept = [e for n, e in self.entries.items() if n >= first or (n < 0 and n not in done)]
            draft = self.folder / "journal.new"
            with open(draft, "wb") as file:
                file.write(_frame({"snapshot": snapshot.name, "first": first}, b""))
                for entry in kept:
                    header = {"op": entry.kind, "seq": entry.seq_id, "type": entry.content_type}
                    body = os.pread(self._file, entry.size, entry.offset)
                    file.write(_frame(header, body))
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self._path)
            os.close(self._file)
            self._file = _open(self._path)
            self._unwritten.clear()
            self.entries.clear()
            self.outcomes.clear()
            self._size = self._read()
        for old in [*self.folder.glob("snapshot-*"), *self.folder.glob("reference-*")]:
            if old.is_symlink():
                old.unlink()
            elif old != snapshot:
                shutil.rmtree(old, ignore_errors=True)

    def close(self) -> None:
        """Close the files and give the lock back."""
        with self._lock:
            os.close(self._file)
            self._file = -1
            self._lock_file.close()


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _frame(header: dict[str, Any], body: bytes) -> bytes:
    encoded = json.dumps(header).encode()
    checksum = zlib.crc32(body, zlib.crc32(encoded))
    return _FRAME.pack(checksum, len(encoded) + len(body), len(encoded)) + encoded + body


def _read_record(file: BinaryIO) -> tuple[dict[str, Any], int, int] | None:
    frame = file.read(_FRAME.size)
    if len(frame) < _FRAME.size:
        return None
    checksum, length, header_length = _FRAME.unpack(frame)
    left = os.fstat(file.fileno()).st_size - file.tell()
    if length > left or header_length > length:
        return None
    content = file.read(length)
    if zlib.crc32(content) != checksum:
        return None
    header: dict[str, Any] = json.loads(content[:header_length])
    return header, header_length, length - header_length


def _locked(path: Path) -> BinaryIO:
    file = open(path, "ab")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise RunIsElsewhere from error
    return file
