"""The append-only log of a run's operations since its last snapshot.

Every record has a checksum. An incomplete record at the end of the file, left by a crash, is cut
off and kept in another file. Damage before the end is an error, and the file is not changed: the
records after it were acknowledged. A lock on the run's folder excludes other services.
"""

import fcntl
import logging
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from mint.service.errors import ApiError, Category
from mint.service.files import checksums, sync, sync_folder, verify
from mint.service.futures import Response
from mint.service.runs.journal_records import encode, read_record, records_after
from mint.service.runs.stream import GRADIENT_KINDS

log = logging.getLogger(__name__)
TORN = "journal.torn"
"""The incomplete end that was last cut off the journal."""
_OF_OUTCOME = ("error", "category", "result")
MAX_TAKEN = 10_000
"""How many operations without a number are still recognised, when resent, after a snapshot."""


class RunIsElsewhere(Exception):
    """Another service holds the lock of this run."""


class JournalDamaged(ApiError):
    """A record before the end of a journal is damaged. The message says what to do."""


@dataclass(frozen=True)
class JournalEntry:
    """An operation in the journal: its number, kind and content type. The body stays on disk."""

    seq_id: int
    kind: str
    content_type: str
    start: int
    size: int


@dataclass(frozen=True)
class Outcome:
    """The outcome of a group of operations. A failed group has an ``error``.

    ``large_answers`` and ``tokens`` are not written to the journal.
    """

    kind: str
    seq_ids: list[int]
    error: str | None = None
    category: Category | None = None
    result: dict[str, Any] | None = None
    large_answers: dict[int, Response] = field(default_factory=dict)
    tokens: int = 0

    @property
    def answers(self) -> dict[int, Response]:
        """The answers by number; none if they were too large for the journal."""
        if self.error is not None:
            return dict.fromkeys(
                self.seq_ids, Response.failure(self.error, self.category or "server")
            )
        if self.result is not None:
            return dict.fromkeys(self.seq_ids, Response.json(self.result))
        return self.large_answers


class Journal:
    """One run's journal, open and locked.

    ``snapshot_folder`` is what the journal continues from (None: a fresh adapter), and ``first``
    the first number after it. ``taken`` are the operations without a number that ran before it, and
    ``kept`` the answers from before it. Raises RunIsElsewhere and JournalDamaged.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.entries: dict[int, JournalEntry] = {}
        self.outcomes: list[Outcome] = []
        self.snapshot_folder: Path | None = None
        self.first = 1
        self.taken: list[int] = []
        self.kept: dict[int, JournalEntry] = {}
        self.size = 0
        self._checksums: dict[str, str] = {}
        self._lock = threading.Lock()
        self._lock_file = _locked(folder / "lock")
        self._path = folder / "journal"
        self._file = -1
        self._unwritten = b""
        self._is_name_synced = False
        self._is_torn = False
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self._sync_name()
            self._read()
        except BaseException:
            self.close()
            raise

    @property
    def next(self) -> int:
        """The first number that has not run yet."""
        return max([self.first, *(n + 1 for n in self.done)])

    @property
    def done(self) -> list[int]:
        """The numbers that have run since the snapshot."""
        return [n for outcome in self.outcomes for n in outcome.seq_ids]

    # ---- writing --------------------------------------------------------------------------------

    def append_operation(self, seq_id: int, kind: str, content_type: str, body: bytes) -> None:
        """Write an operation and sync it. Raises OSError, and then nothing was written."""
        header = {"op": kind, "seq": seq_id, "type": content_type}
        with self._lock:
            start = self.size + len(self._unwritten)
            self._write(encode(header, body), body, durable=True)
            self._note(header, start, len(body))

    def append_outcome(self, outcome: Outcome) -> bool:
        """Record how operations ended. If that fails, the record is written with the next one.

        Return whether a kill cannot change it: it is written, or no operation is in the journal to
        be executed again. A power failure may lose the record of other successes, as a replay
        repeats them. But an operation that was reported as failed would take effect after all; and
        a gradient would share the fate of one that arrived later, with which it would be executed
        as one group.
        """
        durable = outcome.error is not None or outcome.kind in GRADIENT_KINDS
        header: dict[str, Any] = {"done": outcome.seq_ids, "of": outcome.kind}
        for key in _OF_OUTCOME:
            if (value := getattr(outcome, key)) is not None:
                header[key] = value
        record = encode(header)
        with self._lock:
            try:
                self._write(record, durable=durable)
            except (OSError, MemoryError):
                self._unwritten += record
            self._note(header, 0, 0)
            is_absent = not self._is_torn and self.entries.keys().isdisjoint(outcome.seq_ids)
            return is_absent or not self._unwritten

    def flush(self) -> None:
        """Write the outcomes that could not be written before. Raises OSError."""
        with self._lock:
            if self._unwritten:
                self._write(durable=True)

    def _write(self, *pieces: bytes, durable: bool = False) -> None:
        """Append bytes, after the outcomes that did not fit on the disk before."""
        if not self._is_name_synced:
            self._sync_name()
        if self._is_torn:
            self._cut_failed_write()
        pieces = (self._unwritten, *pieces)
        try:
            for piece in pieces:
                _write(self._file, piece)
            if durable:
                os.fdatasync(self._file)
        except Exception:
            self._is_torn = True
            try:
                self._cut_failed_write()
            except OSError as error:
                log.error("the next write removes the incomplete end of %s: %s", self._path, error)
            raise
        self._unwritten = b""
        self.size += sum(map(len, pieces))

    def _cut_failed_write(self) -> None:
        """Remove what a failed write left after the last complete record."""
        if os.fstat(self._file).st_size > self.size:
            os.ftruncate(self._file, self.size)
        self._is_torn = False

    def _sync_name(self) -> None:
        """Sync the folders, so that the file's name survives a power failure."""
        for folder in (self.folder, *list(self.folder.parents)[:2]):
            sync(folder)
        self._is_name_synced = True

    # ---- reading --------------------------------------------------------------------------------

    def body(self, seq_id: int) -> bytes:
        """Return the body of an operation, read from disk. Raises JournalDamaged."""
        with self._lock:
            return self._body(self.entries[seq_id])

    def answers(self) -> dict[int, Response]:
        """Return the answers that were kept from before the snapshot, by number."""
        with self._lock:
            return {
                number: Response(self._body(entry), entry.content_type, entry.kind == "failure")
                for number, entry in self.kept.items()
            }

    def _body(self, entry: JournalEntry) -> bytes:
        record = read_record(self._file, entry.start, self.size)
        if record is None:
            raise self._damaged(entry.start, f"operation {entry.seq_id} is in it")
        return os.pread(self._file, record.body_size, record.body_start)

    def _read(self) -> None:
        """Index every complete record; cut the file after the last one."""
        size = os.fstat(self._file).st_size
        while (record := read_record(self._file, self.size, size)) is not None:
            try:
                self._note(record.header, self.size, record.body_size)
            except (KeyError, TypeError):
                how = "an unknown record, perhaps of a newer mint"
                raise self._damaged(self.size, how) from None
            self.size = record.end
        if self.size < size:
            self._cut_torn_end(size)

    def _cut_torn_end(self, size: int) -> None:
        """Cut off an incomplete end. Raises JournalDamaged if acknowledged records follow it.

        Operations are synced before they are acknowledged, but most outcomes are not: a power
        failure may lose one and keep a later one; the operation is then replayed. Any other
        complete record after a broken one means that the broken one was damaged later.
        """
        for record in records_after(self._file, self.size, size):
            done = record.header.get("done")
            if done is None or not all(number in self.entries for number in done):
                raise self._damaged(self.size, "later records are complete")
        torn = os.pread(self._file, size - self.size, self.size)
        (self.folder / TORN).write_bytes(torn)
        log.warning("moved the incomplete last %d bytes of %s to %s", len(torn), self._path, TORN)
        os.truncate(self._path, self.size)

    def _damaged(self, at: int, how: str) -> JournalDamaged:
        return JournalDamaged(
            400,
            f"The journal of this run is damaged at byte {at} ({how}), so the run was not opened: "
            "continuing would lose acknowledged operations. The file is kept unchanged "
            f"as runs/{self.folder.name}/{self._path.name} in the home folder. Restore it from a "
            "backup, or start a new run from the last checkpoint with "
            "create_training_client_from_state_with_optimizer(). Check the disk.",
        )

    def _note(self, header: dict[str, Any], start: int, size: int) -> None:
        if "op" in header:
            entry = JournalEntry(header["seq"], header["op"], header["type"], start, size)
            self.entries[entry.seq_id] = entry
        elif "done" in header:
            optional = {key: header[key] for key in _OF_OUTCOME if key in header}
            self.outcomes.append(Outcome(header["of"], header["done"], **optional))
        elif "answer" in header:
            kind = "failure" if header["failed"] else "answer"
            number = header["answer"]
            self.kept[number] = JournalEntry(number, kind, header["type"], start, size)
        else:
            self.snapshot_folder = self.folder / header["snapshot"]
            self.first = header["first"]
            self.taken = header.get("taken", [])
            self._checksums = header.get("sha256", {})

    # ---- snapshots ------------------------------------------------------------------------------

    def begin_from(self, fill: Callable[[Path], None]) -> None:
        """Start an empty journal from a snapshot that ``fill`` writes, not a fresh adapter."""
        if self.snapshot_folder is None and not self.entries:
            folder = self.new_snapshot_folder(1)
            fill(folder)
            self.cut(folder, 1)

    def new_snapshot_folder(self, first: int) -> Path:
        """Create an empty folder for the state before operation ``first``."""
        folder = self.folder / f"snapshot-{first:09d}-{uuid.uuid4().hex[:8]}"
        folder.mkdir()
        return folder

    def discard_snapshot(self, folder: Path) -> None:
        """Delete an unfinished snapshot; never the one in use."""
        if folder != self.snapshot_folder:
            shutil.rmtree(folder, ignore_errors=True)

    def check_snapshot(self) -> None:
        """Raise FilesDamaged unless the snapshot's files are those that were written."""
        if self.snapshot_folder is not None:
            verify(self.snapshot_folder, self._checksums, "The snapshot of this run")

    def cut(
        self, snapshot: Path, first: int, answers: Mapping[int, Response] | None = None
    ) -> None:
        """Continue from ``snapshot``: drop the operations before ``first``, atomically.

        ``answers`` are kept for clients that may still ask for them. After an OSError the journal
        is either unchanged or already continues from ``snapshot``.
        """
        sync_folder(snapshot)
        with self._lock:
            if self._file < 0:
                raise OSError("the journal is closed, and may be open in another service")
            self._replace(self._records_from(snapshot, first, answers or {}))
        for old in [*self.folder.glob("snapshot-*"), *self.folder.glob("reference-*")]:
            if old.is_symlink():
                old.unlink()
            elif old != snapshot:
                shutil.rmtree(old, ignore_errors=True)

    def _records_from(
        self, snapshot: Path, first: int, answers: Mapping[int, Response]
    ) -> Iterable[tuple[dict[str, Any], bytes]]:
        """Return the records of a journal that continues from a snapshot."""
        gone = set(self.done)
        taken = [*self.taken, *(n for n in self.done if n < 0)][-MAX_TAKEN:]
        sums = checksums(snapshot)
        yield {"snapshot": snapshot.name, "first": first, "taken": taken, "sha256": sums}, b""
        for number, entry in self.entries.items():
            if number >= first or (number < 0 and number not in gone):
                header = {"op": entry.kind, "seq": number, "type": entry.content_type}
                yield header, self._body(entry)
        for number, answer in answers.items():
            header = {"answer": number, "type": answer.content_type, "failed": answer.is_failure}
            yield header, answer.body

    def _replace(self, records: Iterable[tuple[dict[str, Any], bytes]]) -> None:
        """Write a new journal and rename it over the old one.

        Nothing can fail between the rename and the update in memory. Until the rename is synced, a
        power failure may undo it, so no operation is acknowledged and the old snapshot stays.
        """
        draft = self.folder / "journal.new"
        file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        written: list[tuple[dict[str, Any], int, int]] = []
        size = 0
        try:
            for header, body in records:
                head = encode(header, body)
                _write(file, head)
                _write(file, body)
                written.append((header, size, len(body)))
                size += len(head) + len(body)
            os.fsync(file)
            os.replace(draft, self._path)
        except BaseException:
            os.close(file)
            raise
        old, self._file, self.size = self._file, file, size
        self._is_name_synced = self._is_torn = False
        self._unwritten = b""
        self.entries.clear()
        self.outcomes.clear()
        self.kept.clear()
        for header, start, length in written:
            self._note(header, start, length)
        os.close(old)
        self._sync_name()

    def close(self) -> None:
        """Close the files and release the lock."""
        try:
            self.flush()
        except OSError as error:
            log.error("%s lacks outcomes, which will be replayed: %s", self._path, error)
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1
            self._lock_file.close()


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _locked(path: Path) -> BinaryIO:
    file = open(path, "ab")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise RunIsElsewhere from error
    return file
