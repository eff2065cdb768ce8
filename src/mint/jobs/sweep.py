"""A sweep: several jobs in sequence, with their run directories and results."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mint.config_error import ConfigError
from mint.jobs.compose import Composed
from mint.jobs.job import fingerprint, make_folder
from mint.rl.recording.directory import numbered
from mint.rl.settings.config import short_hash
from mint.watch.directory.recorder import METRICS, read_rows

RESULTS = "sweep.json"
COLUMNS = ("OVERRIDES", "FIRST REWARD", "LAST REWARD", "PASS@1", "SECONDS", "RUN DIRECTORY")


@dataclass(frozen=True)
class JobResult:
    """The result of a job."""

    overrides: str
    run_dir: str
    seconds: float
    first_reward: float | None = None
    last_reward: float | None = None
    holdout_pass_1: float | None = None
    error: str | None = None

    @classmethod
    def of(cls, composed: Composed, seconds: float, error: str | None = None) -> JobResult:
        """Read from the job's run directory."""
        folder = composed.job["logging"]["run_dir"]
        rows = read_rows(Path(folder) / METRICS)
        rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
        passed = [row["holdout/pass@1"] for row in rows if "holdout/pass@1" in row]
        return cls(
            overrides=" ".join(composed.swept),
            run_dir=folder,
            seconds=round(rows[-1].get("time/total", seconds) if rows else seconds, 1),
            first_reward=rewards[0] if rewards else None,
            last_reward=rewards[-1] if rewards else None,
            holdout_pass_1=passed[-1] if passed else None,
            error=error,
        )

    def row(self) -> list[str]:
        """Return a row for the table."""
        failed = f" failed: {self.error.splitlines()[0]}" if self.error else ""
        passed = "-" if self.holdout_pass_1 is None else f"{self.holdout_pass_1:.1%}"
        rewards = [_figure(self.first_reward), _figure(self.last_reward)]
        return [self.overrides, *rewards, passed, f"{self.seconds:.0f}", f"{self.run_dir}{failed}"]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


class Sweep:
    """The folder of a sweep: a run directory for each job, and the table at its end.

    The same command resumes a sweep that was interrupted, or in which a job failed.
    """

    def __init__(self, jobs: Sequence[Composed]) -> None:
        named = {each.job["logging"]["run_dir"] for each in jobs}
        if len(named) > 1:
            raise ConfigError(
                "logging.run_dir is the folder of the whole sweep: set a single value."
            )
        (folder,) = named
        self.folder = Path(folder) if folder else _unfinished(jobs)
        make_folder(self.folder)
        self.outcomes: list[JobResult] = []
        for each in jobs:
            each.job["logging"]["run_dir"] = str(self.folder / _name(each))

    def add(self, composed: Composed, since: float, error: str | None = None) -> None:
        """Add the result of a job."""
        self.outcomes.append(JobResult.of(composed, time.monotonic() - since, error))

    @property
    def failed(self) -> bool:
        return any(outcome.error for outcome in self.outcomes)

    def write(self, complete: bool) -> Path:
        """Write the results to a file, and return its path."""
        path = self.folder / RESULTS
        rows = [asdict(outcome) for outcome in self.outcomes]
        finished = complete and not self.failed
        path.write_text(json.dumps({"finished": finished, "jobs": rows}, indent=2) + "\n")
        return path


def _name(composed: Composed) -> str:
    """A job's folder: what was swept, in letters that a file system takes."""
    pairs = [each.partition("=") for each in composed.swept]
    name = ",".join(f"{key.rpartition('.')[2]}={value}" for key, _, value in pairs) or "job"
    clean = re.sub(r"[^\w.,=+-]+", "-", name)[:80]
    return clean if clean == name else f"{clean}-{short_hash(name)}"


def _unfinished(jobs: Sequence[Composed]) -> Path:
    prints = ",".join(fingerprint(each.job) for each in jobs)
    return next(path for path in numbered(f"sweep-{short_hash(prints)}") if not _finished(path))


def _finished(folder: Path) -> bool:
    results = folder / RESULTS
    return results.is_file() and bool(json.loads(results.read_text())["finished"])
