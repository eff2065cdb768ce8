"""A sweep: several jobs in sequence, with their run directories and results."""

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mint.config_error import ConfigError
from mint.jobs.compose import Composed
from mint.jobs.job import fingerprint, make_folder
from mint.rl.recording.directory import numbered
from mint.rl.settings.config import short_hash
from mint.watch.directory.files import METRICS, read_json, read_rows

RESULTS = "sweep.json"
COLUMNS = ("OVERRIDES", "FIRST REWARD", "LAST REWARD", "PASS@1", "SECONDS", "RUN DIRECTORY")


def table_row(result: Mapping[str, Any]) -> list[str]:
    """Return the row of a job in the table of its sweep."""
    failed = f" failed: {result['error'].splitlines()[0]}" if result["error"] else ""
    forms = {"first_reward": ".3f", "last_reward": ".3f", "holdout_pass_1": ".1%", "seconds": ".0f"}
    figures = ["-" if result[n] is None else format(result[n], form) for n, form in forms.items()]
    return [result["overrides"], *figures, f"{result['run_dir']}{failed}"]


class Sweep:
    """The folder of a sweep: run directories and the table. The same command resumes it."""

    def __init__(self, jobs: Sequence[Composed]) -> None:
        named = {each.job["logging"]["run_dir"] for each in jobs}
        if len(named) > 1:
            raise ConfigError(
                "logging.run_dir is the folder of the whole sweep: set a single value."
            )
        (folder,) = named
        self.folder = Path(folder) if folder else _unfinished(jobs)
        make_folder(self.folder)
        self.results: list[dict[str, Any]] = []
        for each in jobs:
            each.job["logging"]["run_dir"] = str(self.folder / _name(each))

    def add(self, composed: Composed, since: float, error: str | None = None) -> None:
        """Add the result of a job, from its run directory."""
        folder = composed.job["logging"]["run_dir"]
        rows = read_rows(Path(folder) / METRICS)
        rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
        passed = [row["holdout/pass@1"] for row in rows if "holdout/pass@1" in row]
        seconds = rows[-1].get("time/total") if rows else None
        self.results.append(
            {
                "overrides": " ".join(composed.swept),
                "run_dir": folder,
                "seconds": round(time.monotonic() - since if seconds is None else seconds, 1),
                "first_reward": rewards[0] if rewards else None,
                "last_reward": rewards[-1] if rewards else None,
                "holdout_pass_1": passed[-1] if passed else None,
                "error": error,
            }
        )

    @property
    def failed(self) -> bool:
        return any(result["error"] for result in self.results)

    def write(self, complete: bool) -> Path:
        """Write the results to a file, and return its path."""
        path = self.folder / RESULTS
        found = {"finished": complete and not self.failed, "jobs": self.results}
        path.write_text(json.dumps(found, indent=2) + "\n")
        return path


def _name(composed: Composed) -> str:
    """Return the name of a job's folder: its swept settings, without unusual characters."""
    pairs = [each.partition("=") for each in composed.swept]
    name = ",".join(f"{key.rpartition('.')[2]}={value}" for key, _, value in pairs) or "job"
    clean = re.sub(r"[^\w.,=+-]+", "-", name)[:80]
    return clean if clean == name else f"{clean}-{short_hash(name)}"


def _unfinished(jobs: Sequence[Composed]) -> Path:
    prints = ",".join(fingerprint(each.job) for each in jobs)
    paths = numbered(f"sweep-{short_hash(prints)}")
    return next(p for p in paths if not (read_json(p / RESULTS) or {}).get("finished"))
