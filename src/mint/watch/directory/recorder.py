"""Write a run directory: plain files that describe a run, written during training.

    config.yaml            settings, and the task's name
    metrics.jsonl          one row for every step
    rollouts/              one Parquet file a step: prompts, answers, tokens, rewards, traces
    events.jsonl           findings, evaluations, checkpoints, interruptions
    summary.json           status, last metrics and verdict
    state.json             the saved state of a run, to resume it

A call returns when its data is written, and a process killed at any point leaves a readable
directory. ``write_step`` alone returns at once: the next call waits for it. A file of rollouts gets
its name when it is complete. ``state.json`` also has the lengths of the tables when it was written:
a resumed run truncates them, so that its files have no gaps and no duplicates. Files of rollouts
that the state covers are merged by the hundred.

Format 1 had one table of rollouts, ``rollouts.jsonl``. A run that began in it resumes: its old
rows stay where they are.
"""

import fcntl
import json
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Self

import yaml

from mint.watch.directory.files import (
    BLOCK,
    CONFIG,
    EVENTS,
    METRICS,
    ROLLOUTS,
    ROLLOUTS_1,
    STATE,
    SUMMARY,
    block_file,
    lines,
    plain,
    read_json,
    read_rows,
    read_yaml,
    replace_file,
    rollout_files,
    step_file,
    sync_folder,
)
from mint.watch.directory.reader import describe_run
from mint.watch.sinks import Sinks
from mint.watch.sinks.opentelemetry import is_configured
from mint.watch.verdict.verdict import VerdictHistory, judge

__all__ = ["CONFIG", "EVENTS", "METRICS", "STATE", "RunDirectory", "RunDirectoryBusy", "read_rows"]


class RunDirectoryBusy(RuntimeError):
    """Another process is writing to this run directory."""


class RunDirectory:
    """The files of one run, open for writing by one process.

    >>> import tempfile
    >>> with RunDirectory(tempfile.mkdtemp()) as run:
    ...     run.metrics({"step": 1, "time": 0.0, "reward": 0.5})
    ...     read_rows(run.path / METRICS)
    [{'step': 1, 'time': 0.0, 'reward': 0.5}]
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = self._locked()
        self._files: dict[str, IO[bytes]] = {}
        self._config = read_yaml(self.path / CONFIG)
        self._history = self._read_history()
        self._status = "running"
        earlier = read_json(self.path / SUMMARY) or {}
        self._started = float(earlier.get("started") or round(time.time(), 3))
        self._sinks = Sinks(lambda name, text: self.event("sink_failed", name=name, text=text))
        self._writer = ThreadPoolExecutor(1, "mint-recorder")
        self._pending: Future[None] | None = None
        self._writing = 0  # the thread that writes the pending step

    def _locked(self) -> IO[bytes]:
        lock = open(self.path / ".lock", "wb")  # noqa: SIM115 - held until close()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise RunDirectoryBusy(
                f"Another process is writing to {self.path}. Wait until it ends, or use another "
                "run directory."
            ) from None
        return lock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish writing, and release the lock."""
        try:
            self._settle()
        finally:
            self._writer.shutdown()
            self._sinks.close()
            for file in self._files.values():
                file.close()
            self._files.clear()
            self._lock.close()

    def _settle(self) -> None:
        """Wait for the step that is being written, and raise its error."""
        if self._pending is not None and threading.get_ident() != self._writing:
            pending, self._pending = self._pending, None
            pending.result()

    # ---- data ----

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the settings, and set the status to running."""
        self._settle()
        text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        replace_file(self.path / CONFIG, text.encode())
        self._config = dict(config)
        self.set_status("running")

    def config(self) -> dict[str, Any]:
        """Return the written settings; empty if there are none."""
        return self._config

    def write_step(self, rows: Iterable[Mapping[str, Any]], metrics: Mapping[str, Any]) -> None:
        """Write a step's rollouts and then its metrics, in the background."""
        self._settle()
        stamped = {"time": round(time.time(), 3), **metrics}
        self._pending = self._writer.submit(self._write_step, rows, stamped)

    def _write_step(self, rows: Iterable[Mapping[str, Any]], metrics: Mapping[str, Any]) -> None:
        self._writing = threading.get_ident()
        self.rollouts(rows)
        self.metrics(metrics)

    def metrics(self, row: Mapping[str, Any]) -> None:
        """Add a step's metrics, and update the summary."""
        self._settle()
        stamped = {"step": row.get("step"), "time": round(time.time(), 3), **row}
        stamped = {name: value for name, value in stamped.items() if value is not None}
        self._append(METRICS, stamped)
        self._history.add(plain(stamped))
        self._write_summary()
        self._sinks.log(stamped)

    def rollouts(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the rollouts of a step, or of several."""
        import pyarrow.parquet as pq

        from mint.watch.directory.schema import build_table

        self._settle()
        rows = list(rows)
        steps: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
        for row in rows:
            steps[int(row.get("step") or 0)].append(row)
        (self.path / ROLLOUTS).mkdir(exist_ok=True)
        for step, of_step in steps.items():
            file, table = step_file(self.path, step), build_table(of_step)
            if block_file(self.path, step - step % BLOCK).exists():
                raise ValueError(
                    f"Rollouts of step {step} or a later step are already written. Steps must not "
                    "decrease."
                )
            before = [pq.read_table(file, use_threads=False)] if file.exists() else []
            self._write_tables(file, [*before, table])
        self._sinks.rollouts(rows)

    def add_sinks(self, names: Iterable[str]) -> None:
        """Also send what is written to sinks, and agents' traces to OpenTelemetry if set up."""
        self._settle()
        wanted = [*names, *(["opentelemetry"] if is_configured() else [])]
        self._sinks.add(wanted, self.path, self._config)

    def show_live(self) -> None:
        """Show the run in the terminal after every step."""
        from mint.watch.terminal import LiveView

        self._settle()
        task = str(self._config.get("task") or self.path.resolve().name)
        rows = read_rows(self.path / METRICS)
        self._sinks.attach("terminal", LiveView(task, self._config.get("steps"), rows))

    def event(self, kind: str, **details: Any) -> None:
        """Add an event."""
        self._settle()
        event = {"time": round(time.time(), 3), "event": kind, **details}
        self._append(EVENTS, event)
        self._history.add_event(plain(event))

    # ---- the state ----

    def state(self) -> dict[str, Any] | None:
        """Return the saved state, or None if there is none."""
        self._settle()
        file = self.path / STATE
        return dict(json.loads(file.read_text())) if file.exists() else None

    def save_state(self, state: Mapping[str, Any]) -> None:
        """Save the state with the lengths of the tables, which are on disk before the state."""
        self._settle()
        sizes = {}
        for name in self._tables():
            file = self._open(name)
            os.fsync(file.fileno())
            sizes[name] = file.seek(0, os.SEEK_END)
        last = max((file.last for file in rollout_files(self.path)), default=-1)
        content = json.dumps({**state, "sizes": sizes, "rollouts": last}, ensure_ascii=False)
        replace_file(self.path / STATE, content.encode())
        self.merge(last)

    def rewind(self) -> None:
        """Truncate the tables to their lengths in the saved state, or to nothing without one."""
        state = self.state() or {}
        sizes = state.get("sizes", {})
        for name in self._tables():
            file = self._open(name)
            file.truncate(min(sizes.get(name, 0), file.seek(0, os.SEEK_END)))
        self.cut_rollouts(int(state.get("rollouts", -1)))
        self._history = self._read_history()

    def cut_tables(self) -> None:
        """Remove an unfinished last line of every table."""
        for name in self._tables():
            content = (self.path / name).read_bytes()
            self._open(name).truncate(content.rfind(b"\n") + 1)

    def cut_rollouts(self, last: int) -> None:
        """Remove the rollouts of all steps after ``last``, and unfinished files."""
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        folder = self.path / ROLLOUTS
        for file in rollout_files(self.path):
            if file.first > last:
                file.path.unlink()
            elif file.last > last and file.merged:
                kept = pq.read_table(file.path, filters=[("step", "<=", last)], use_threads=False)
                for step in sorted(set(kept["step"].to_pylist())):
                    single = kept.filter(pc.field("step") == step)
                    self._write_tables(step_file(self.path, step), [single])
                file.path.unlink()
        replaced = {*folder.glob("*.parquet")} - {file.path for file in rollout_files(self.path)}
        for path in (*folder.glob(".*.new"), *replaced):
            path.unlink()

    # ---- the summary ----

    def set_status(self, status: str) -> None:
        """Set the status: running, finished, interrupted or failed."""
        self._settle()
        self._status = status
        self._write_summary()

    def _write_summary(self) -> None:
        """Write status, last metrics and verdict."""
        history = self._history
        summary = {
            **describe_run(self.path, self._config, history.last),
            "status": self._status,
            "started": self._started,
            "updated": round(time.time(), 3),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "verdict": judge(history.rows, history.events, self._status).as_dict(),
        }
        replace_file(self.path / SUMMARY, lines([summary]), durable=False)

    def _read_history(self) -> VerdictHistory:
        return VerdictHistory.of(read_rows(self.path / METRICS), read_rows(self.path / EVENTS))

    # ---- files ----

    def _tables(self) -> list[str]:
        return [name for name in (METRICS, EVENTS, ROLLOUTS_1) if (self.path / name).exists()]

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        file, content = self._open(name), lines([row])
        end = file.seek(0, os.SEEK_END)
        try:
            left = memoryview(content)
            while left:
                left = left[file.write(left) :]
        except OSError:  # a full disk: half a row would damage the next one
            file.close()
            del self._files[name]
            os.truncate(self.path / name, end)
            raise

    def _open(self, name: str) -> IO[bytes]:
        if name not in self._files:
            # Unbuffered, so that nothing of a row that failed is written later.
            self._files[name] = open(self.path / name, "ab", buffering=0)  # noqa: SIM115
        return self._files[name]

    def _write_tables(self, file: Path, tables: Iterable[Any]) -> None:
        """Write a Parquet file atomically, each table as a row group of its own."""
        import pyarrow.parquet as pq

        from mint.watch.directory.schema import REPEATED, SCHEMA, current

        new = file.with_name(f".{file.name}.new")
        with open(new, "wb") as opened:
            with pq.ParquetWriter(
                opened,
                SCHEMA,
                compression="zstd",
                use_dictionary=REPEATED,
                write_statistics=["step", "reward"],
            ) as writer:
                for table in tables:
                    writer.write_table(current(table))
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(new, file)
        sync_folder(file.parent)

    def merge(self, last: int) -> None:
        """Merge the files of every block of steps that ends before ``last``."""
        import pyarrow.parquet as pq

        singles: dict[int, list[Path]] = defaultdict(list)
        for file in rollout_files(self.path):
            first = file.first - file.first % BLOCK
            if not file.merged and first + BLOCK - 1 <= last:
                singles[first].append(file.path)
        for first, paths in singles.items():
            tables = (pq.read_table(path, use_threads=False) for path in paths)
            self._write_tables(block_file(self.path, first), tables)
            for path in paths:
                path.unlink()
