"""The file names of a run directory, and how single files are read and written."""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CONFIG, STATE, SUMMARY = "config.yaml", "state.json", "summary.json"
METRICS, EVENTS = "metrics.jsonl", "events.jsonl"
ROLLOUTS = "rollouts"
ROLLOUTS_1 = "rollouts.jsonl"
"""The table of rollouts of format 1."""
FORMAT = 2
BLOCK = 100
"""Steps whose rollouts are merged into one file once a saved state covers them."""

_PARQUET = re.compile(r"(\d{6,12})(?:-(\d{6,12}))?\.parquet")


@dataclass(frozen=True, order=True)
class RolloutFile:
    """A Parquet file with the rollouts of the steps ``first`` to ``last``."""

    first: int
    last: int
    path: Path

    @property
    def merged(self) -> bool:
        """Whether it contains a block of steps."""
        return "-" in self.path.name


def step_file(folder: Path, step: int) -> Path:
    """Return the file of one step's rollouts.

    >>> step_file(Path("run"), 12).as_posix()
    'run/rollouts/000012.parquet'
    """
    return folder / ROLLOUTS / f"{step:06d}.parquet"


def block_file(folder: Path, first: int) -> Path:
    """Return the file of a block of steps.

    >>> block_file(Path("run"), 200).name
    '000200-000299.parquet'
    """
    return folder / ROLLOUTS / f"{first:06d}-{first + BLOCK - 1:06d}.parquet"


def rollout_files(folder: Path) -> list[RolloutFile]:
    """List the files of rollouts in the order of their steps.

    A merged file hides the files of single steps that it was made of: a process that was killed
    between the two may have left them.
    """
    found = []
    for path in (folder / ROLLOUTS).glob("*.parquet"):
        if match := _PARQUET.fullmatch(path.name):
            found.append(RolloutFile(int(match[1]), int(match[2] or match[1]), path))
    merged = [file for file in found if file.merged]
    return sorted(
        file
        for file in found
        if file.merged or not any(block.first <= file.first <= block.last for block in merged)
    )


def read_lines(file: Path) -> list[dict[str, Any] | None]:
    """Read the complete lines of a table; None stands for a damaged one."""
    complete, _, _ = _text(file).rpartition("\n")
    return [_parsed(line) for line in complete.split("\n") if line]


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Read a table that a run may still be writing, without unfinished and damaged lines."""
    return [row for row in read_lines(file) if row is not None]


def read_json(file: Path) -> dict[str, Any] | None:
    """Read a JSON object; None when there is no file, or no complete one."""
    return _parsed(_text(file))


def read_yaml(file: Path) -> dict[str, Any]:
    """Read a mapping in YAML; empty when there is no file, or no complete one."""
    try:
        found = yaml.safe_load(_text(file))
    except yaml.YAMLError:
        return {}
    return dict(found) if isinstance(found, dict) else {}


def lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Encode rows as lines of JSON.

    >>> lines([{"loss": float("nan")}, {"step": 1}])
    b'{"loss": null}\\n{"step": 1}\\n'
    """
    found = [json.dumps(plain(row), ensure_ascii=False, default=repr) + "\n" for row in rows]
    return "".join(found).encode(errors="backslashreplace")


def plain(value: Any) -> Any:
    """Replace numbers that JSON cannot represent (NaN and infinities) by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def replace_file(file: Path, content: bytes, durable: bool = True) -> None:
    """Write a file atomically. With ``durable``, it also survives a power failure."""
    new = file.with_name(f".{file.name}.new")
    with open(new, "wb") as opened:
        opened.write(content)
        opened.flush()
        if durable:
            os.fsync(opened.fileno())
    os.replace(new, file)


def sync_folder(folder: Path) -> None:
    """Make renamed files of a folder survive a power failure."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
