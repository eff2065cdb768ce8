"""Read a run directory, during the run or after it. Nothing is cached or written.

    run = open_run("runs/math")
    run.summary()["verdict"], run.metrics()[-1], run.rollouts(12)[0]["response"]

Both formats open: ``rollouts/*.parquet``, and the ``rollouts.jsonl`` of older runs. Damaged
rows and files are left out and named in ``damaged()``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mint.watch.directory.files import (
    CONFIG,
    EVENTS,
    FORMAT,
    METRICS,
    ROLLOUTS,
    ROLLOUTS_1,
    STATE,
    SUMMARY,
    RolloutFile,
    read_json,
    read_lines,
    read_rows,
    read_yaml,
    rollout_files,
)
from mint.watch.verdict.verdict import judge

Row = dict[str, Any]
Found = TypeVar("Found")
_ENDS = {
    "finished": "finished",
    "stopped": "failed",
    "lost": "failed",
    "interrupted": "interrupted",
}
_TRIES = 5
"""How often to look again for files that the run has merged meanwhile."""


class NotARun(ValueError):
    """The folder does not contain a run."""


def is_run(path: str | Path) -> bool:
    """Return whether a folder contains a run."""
    names = (CONFIG, METRICS, SUMMARY, ROLLOUTS_1)
    return any((Path(path) / name).is_file() for name in names)


def open_run(path: str | Path) -> RunReader:
    """Open a run directory for reading. Raises :class:`NotARun` for a folder without a run."""
    folder = Path(path)
    if not is_run(folder):
        raise NotARun(
            f"{folder} is not a run directory: it has neither {CONFIG} nor {METRICS}. Use the run "
            "directory that the run printed, such as runs/math-1a2b3c4d."
        )
    return RunReader(folder)


class RunReader:
    """A run directory. Every call reads its files again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # ---- small files ----

    @property
    def format(self) -> int:
        """The format of the directory: 2, or 1 for one that has only ``rollouts.jsonl``."""
        new = (self.path / SUMMARY).exists() or (self.path / ROLLOUTS).is_dir()
        return FORMAT if new else 1

    def config(self) -> Row:
        """Return the settings of the run."""
        return self._read(CONFIG, read_yaml) or {}

    def metrics(self) -> list[Row]:
        """Return one row for every step, and one for each evaluation between steps."""
        return self._read(METRICS, read_rows) or []

    def events(self) -> list[Row]:
        """Return the events, in order."""
        return self._read(EVENTS, read_rows) or []

    def state(self) -> Row:
        """Return the saved state; empty if there is none."""
        return self._read(STATE, read_json) or {}

    def summary(self) -> Row:
        """Return status, verdict and last metrics, computed where there is no summary.json.

        A run that says it is running and whose process is gone was interrupted.
        """
        if found := self._read(SUMMARY, read_json):
            if found.get("status") == "running" and _is_gone(found):
                found["status"] = "interrupted"
            return found
        rows, events = self.metrics(), self.events()
        unended = "finished" if self.state().get("finished") else "running"
        known = describe_run(self.path, self.config(), rows[-1] if rows else {})
        return {**known, "format": self.format, **summarise(rows, events, unended)}

    def damaged(self) -> list[str]:
        """Return the names of damaged files."""
        tables = (METRICS, EVENTS, ROLLOUTS_1)
        found = [name for name in tables if None in (self._read(name, read_lines) or [])]
        objects = [name for name in (SUMMARY, STATE) if self._inside(name)]
        found += [name for name in objects if self._read(name, read_json) is None]
        found += [CONFIG] if self._inside(CONFIG) and not self.config() else []
        parquet = [file.path.name for file, table in self._tables([]) if table is None]
        return found + [f"{ROLLOUTS}/{name}" for name in parquet]

    # ---- rollouts ----

    def rollout_files(self) -> list[RolloutFile]:
        """List the Parquet files of rollouts, in the order of their steps, for other tools."""
        return [file for file in rollout_files(self.path) if self._is_inside(file.path)]

    def steps(self) -> list[int]:
        """List the steps that have rollouts."""
        old = self._read(ROLLOUTS_1, read_rows) or []
        found = {int(row.get("step") or 0) for row in old}
        for _, table in self._tables(["step"]):
            if table is not None:
                found |= set(table.column("step").to_pylist())
        return sorted(found)

    def rollouts(self, step: int | None = None, columns: Sequence[str] | None = None) -> list[Row]:
        """Return the rollouts of a step, or of all, with all columns or with some."""
        return list(self.iter_rollouts(step, columns))

    def iter_rollouts(
        self, step: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[Row]:
        """Yield the rollouts of a step, or of all, holding those of one file at a time."""
        from mint.watch.directory.schema import current_rows, read_table

        old = self._read(ROLLOUTS_1, read_rows) or []
        for row in current_rows(row for row in old if step in (None, row.get("step"))):
            yield row if columns is None else {name: row[name] for name in columns}
        for _, table in self._tables(columns, step):
            if table is not None:
                yield from read_table(table, columns)

    def _tables(
        self, columns: Sequence[str] | None, step: int | None = None
    ) -> Iterator[tuple[RolloutFile, Any | None]]:
        """Yield the Parquet files with their tables, of a step or of all; None for a damaged one.

        If the run merges files in the meantime, the rest is read from the merged file.
        """
        import pyarrow.compute as pc

        done = -1
        for _ in range(_TRIES):
            for file in self.rollout_files():
                if file.last <= done or (step is not None and not file.first <= step <= file.last):
                    continue
                wanted = pc.field("step") > done if step is None else pc.field("step") == step
                table = _read_table(file.path, columns, wanted)
                if table is None and not file.path.exists():
                    break  # merged: list the files again
                yield file, table
                done = file.last
            else:
                return

    # ---- files ----

    def _read(self, name: str, read: Callable[[Path], Found]) -> Found | None:
        file = self._inside(name)
        return read(file) if file else None

    def _inside(self, name: str) -> Path | None:
        """Return a file of the directory; None if it is absent or a link that leads outside."""
        file = self.path / name
        return file if file.is_file() and self._is_inside(file) else None

    def _is_inside(self, file: Path) -> bool:
        return file.resolve().is_relative_to(self.path.resolve())


def _read_table(path: Path, columns: Sequence[str] | None, wanted: Any) -> Any | None:
    """Read columns of the rows that are wanted; None for a file that is damaged or gone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        there = pq.read_schema(path).names
        names = None if columns is None else [name for name in columns if name in there]
        return pq.read_table(path, columns=names, filters=wanted, use_threads=False)
    except (pa.ArrowException, OSError, ValueError):
        return None


def describe_run(path: Path, config: Row, last: Row) -> Row:
    """Return the part of a summary that follows from the settings and the last metrics."""
    return {
        "format": FORMAT,
        "task": config.get("task"),
        "name": path.resolve().name,
        "step": last.get("step", 0),
        "steps": config.get("steps"),
        "last": last,
    }


def summarise(rows: Sequence[Row], events: Sequence[Row], unended: str) -> Row:
    """Return status, times and verdict of a run; ``unended`` is its status if no event ends it."""
    status = _ENDS.get(str(events[-1].get("event")) if events else "", unended)
    times = [event["time"] for event in events if isinstance(event.get("time"), int | float)]
    judged_as = status if status in _ENDS.values() else "running"
    return {
        "status": status,
        "started": times[0] if times else None,
        "updated": times[-1] if times else None,
        "verdict": judge(rows, events, judged_as).as_dict(),
    }


def _is_gone(summary: Row) -> bool:
    """Return whether the process that wrote a summary ran on this machine and has ended."""
    process = summary.get("pid")
    if summary.get("host") != socket.gethostname() or not isinstance(process, int) or process < 1:
        return False
    try:
        os.kill(process, 0)
    except (OSError, OverflowError) as error:
        return not isinstance(error, PermissionError)  # another user's process
    return False
