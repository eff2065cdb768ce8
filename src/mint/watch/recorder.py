"""A run directory: plain files that say everything about a run, written as training goes.

    config.yaml      what was asked for
    metrics.jsonl    one row for every step
    rollouts.jsonl   one row for every rollout: prompt, answer, reward, trace
    events.jsonl     what happened: findings, evaluations, checkpoints, interruptions
    state.json       where a run stands, to continue it

A row is on the disk when the call that wrote it returns. ``state.json`` also keeps how long the
other files were when it was written: a continued run cuts them there, so that its files have no gap
and no repeat.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import yaml

CONFIG, STATE = "config.yaml", "state.json"
METRICS, ROLLOUTS, EVENTS = "metrics.jsonl", "rollouts.jsonl", "events.jsonl"
_TABLES = (METRICS, ROLLOUTS, EVENTS)


class RunDirectoryBusy(RuntimeError):
    """Another process is writing to this run directory."""


class RunDirectory:
    """The files of one run, open for writing by one process.

    >>> import tempfile
    >>> with RunDirectory(tempfile.mkdtemp()) as run:
    ...     run.metrics({"step": 1, "reward": 0.5})
    ...     read_rows(run.path / METRICS)
    [{'step': 1, 'reward': 0.5}]
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = self._locked()
        self._files: dict[str, IO[bytes]] = {}

    def _locked(self) -> IO[bytes]:
        lock = open(self.path / ".lock", "wb")  # noqa: SIM115 - held until close()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise RunDirectoryBusy(
                f"Another process is writing to {self.path}. Wait for its end, or use another "
                "run directory."
            ) from None
        return lock

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End writing, and let others in."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._lock.close()

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Keep what was asked for."""
        text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        self._replace(CONFIG, text.encode())

    def config(self) -> dict[str, Any]:
        """What was asked for when the run began; empty when it did not."""
        file = self.path / CONFIG
        found = yaml.safe_load(file.read_text()) if file.exists() else {}
        return dict(found or {})

    def metrics(self, row: Mapping[str, Any]) -> None:
        """Add a step's numbers."""
        self._append(METRICS, [row])

    def rollouts(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rollouts."""
        self._append(ROLLOUTS, rows)

    def event(self, kind: str, **details: Any) -> None:
        """Add something that happened."""
        self._append(EVENTS, [{"time": round(time.time(), 3), "event": kind, **details}])

    def state(self) -> dict[str, Any] | None:
        """Where the run stands, or None when it has not got anywhere yet."""
        file = self.path / STATE
        return dict(json.loads(file.read_text())) if file.exists() else None

    def save_state(self, state: Mapping[str, Any]) -> None:
        """Keep where the run stands, together with the length of every table now, which is on disk
        before the state that names it."""
        sizes = {}
        for name in _TABLES:
            file = self._open(name)
            os.fsync(file.fileno())
            sizes[name] = file.seek(0, os.SEEK_END)
        content = json.dumps({**state, "sizes": sizes}, ensure_ascii=False)
        self._replace(STATE, content.encode())

    def rewind(self) -> None:
        """Cut the tables to where they were when the state was kept, or to nothing without one."""
        sizes = (self.state() or {}).get("sizes", {})
        for name in _TABLES:
            if (self.path / name).exists():
                file = self._open(name)
                file.truncate(min(sizes.get(name, 0), file.seek(0, os.SEEK_END)))

    def _append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        file = self._open(name)
        lines = [json.dumps(_plain(row), ensure_ascii=False, default=repr) + "\n" for row in rows]
        file.write("".join(lines).encode(errors="backslashreplace"))
        file.flush()

    def _open(self, name: str) -> IO[bytes]:
        if name not in self._files:
            self._files[name] = open(self.path / name, "ab")  # noqa: SIM115
        return self._files[name]

    def _replace(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all."""
        new = self.path / f".{name}.new"
        with open(new, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.path / name)


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a table that a run may still be writing: an unfinished last line is left out."""
    if not file.exists():
        return []
    complete, _, _ = file.read_text(errors="replace").rpartition("\n")
    return [json.loads(line) for line in complete.split("\n") if line]


def _plain(value: Any) -> Any:
    """JSON has no NaN: such numbers become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
