"""Find the run directories under some folders. Links that lead out of them are not followed."""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from mint.watch.directory.files import (
    METRICS,
    ROLLOUTS,
    ROLLOUTS_1,
    SUMMARY,
    RolloutFile,
    rollout_files,
)

SIGNS = (SUMMARY, METRICS)
"""A folder with one of these files is a run directory."""
DEMO = Path(__file__).parent / "recorded"
"""The recorded run of ``mint watch --demo``, written by ``scripts/record_demo.py``."""
_DEPTH = 4
_MOST_RUNS = 2_000
_MOST_FOLDERS = 20_000


class UnknownRun(LookupError):
    """There is no such run in the served folders."""


@dataclass(frozen=True)
class RunPlace:
    """A run directory, and its id in URLs."""

    id: str
    path: Path

    def rollout_files(self) -> list[RolloutFile]:
        """List the files of rollouts in the order of their steps; in format 1, the only file."""
        files = [] if (self.path / ROLLOUTS).is_symlink() else rollout_files(self.path)
        found = [file for file in files if _is_file(file.path)]
        old = RolloutFile(0, 2**40, self.path / ROLLOUTS_1)
        return [old] if not found and _is_file(old.path) else found


class RunIndex:
    """Finds runs in the folders that a user named, and those that ``more`` returns.

    >>> RunIndex([Path("/nowhere")]).runs()
    []
    """

    def __init__(
        self, roots: Sequence[Path], more: Callable[[], Iterable[Path]] = lambda: ()
    ) -> None:
        self.roots = [Path(os.path.realpath(root)) for root in roots]
        self._more = more
        self._known: dict[str, RunPlace] = {}

    def runs(self) -> list[RunPlace]:
        """Look for run directories now."""
        under = chain.from_iterable(_run_directories(root) for root in self.roots)
        named = (Path(os.path.realpath(path)) for path in self._more())
        paths = islice(chain(under, filter(_is_run, named)), _MOST_RUNS)
        places = [RunPlace(_identifier(path), path) for path in paths]
        self._known = {place.id: place for place in places}
        return list(self._known.values())

    def get(self, run_id: str) -> RunPlace:
        """Find a run by its identifier."""
        place = self._known.get(run_id)
        if place is None or not _is_run(place.path):
            self.runs()
            place = self._known.get(run_id)
        if place is None:
            raise UnknownRun(f"There is no run {run_id!r} here. GET api/runs lists all runs.")
        return place


def _run_directories(root: Path) -> Iterator[Path]:
    """Walk a folder without following links; the folders inside a run are not entered."""
    for name, inside, _ in islice(os.walk(root), _MOST_FOLDERS):
        folder = Path(name)
        if is_run := _is_run(folder):
            yield folder
        is_deepest = len(folder.relative_to(root).parts) == _DEPTH
        visible = sorted(each for each in inside if not each.startswith("."))
        inside[:] = [] if is_run or is_deepest else visible


def _is_run(folder: Path) -> bool:
    return any(_is_file(folder / sign) for sign in SIGNS)


def _is_file(path: Path) -> bool:
    """Return whether a path is a regular file: no link, device or folder."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _identifier(path: Path) -> str:
    """Return an id for URLs: readable, and different for different folders."""
    readable = re.sub(r"[^\w.-]+", "-", path.name, flags=re.ASCII)[:48].strip("-.") or "run"
    return f"{readable}-{hashlib.sha256(os.fsencode(path)).hexdigest()[:6]}"
