"""The runs of a comparison: what each side wrote down, and the figures read from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

SIDES = ("trl", "mint")
NAMES = {"trl": "TRL", "mint": "mint"}
WINDOW = 3
"""Steps over which a reward is averaged: one step's is noisy."""


@dataclass(frozen=True)
class Run:
    """One side with one seed: when its process was launched and ended, and the rows it wrote."""

    side: str
    seed: int
    launched: float
    ended: float
    rows: list[dict[str, Any]]
    error: str | None = None

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["kind"] == kind]

    @property
    def steps(self) -> list[dict[str, Any]]:
        return self.of_kind("step")

    @property
    def startup(self) -> float:
        """Seconds from the launch of the process until the model was ready."""
        return float(self.of_kind("ready")[0]["at"] - self.launched)

    @property
    def process(self) -> float:
        """Seconds from launch to end: start-up, evaluations and steps."""
        return self.ended - self.launched

    @property
    def times(self) -> list[float]:
        """For every step, the seconds from the begin of the first one to its end."""
        return [row["at"] - self.steps[0]["began"] for row in self.steps]

    @property
    def training(self) -> float:
        """Seconds of all steps."""
        return self.times[-1]

    def mean(self, key: str) -> float:
        """The mean of a figure over the steps."""
        return fmean(row[key] for row in self.steps)

    def reward_at(self, seconds: float) -> float | None:
        """The reward of the last steps that were done by then; none before the first."""
        steps = zip(self.steps, self.times, strict=True)
        done = [row["reward"] for row, at in steps if at <= seconds][-WINDOW:]
        return fmean(done) if done else None

    def evaluation(self, when: str) -> dict[str, Any]:
        """The scores on the held-out problems, ``before`` or ``after`` training."""
        [row] = [row for row in self.of_kind("eval") if row["when"] == when]
        return row

    @property
    def version(self) -> str:
        return str(self.of_kind("ready")[0][self.side])


@dataclass(frozen=True)
class Comparison:
    """All runs of both sides, in the order in which they were made."""

    settings: dict[str, int]
    machine: dict[str, str]
    runs: list[Run] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Comparison:
        content = json.loads(path.read_text())
        return cls(**{**content, "runs": [Run(**run) for run in content["runs"]]})

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    def done(self, side: str) -> dict[int, Run]:
        """The runs of a side that came to their end, by seed."""
        return {r.seed: r for r in self.runs if r.side == side and r.error is None}

    def pairs(self) -> list[tuple[Run, Run]]:
        """TRL's and mint's run of every seed that both finished."""
        ours, theirs = self.done("mint"), self.done("trl")
        return [(theirs[seed], ours[seed]) for seed in sorted(ours.keys() & theirs.keys())]

    def complaints(self) -> list[str]:
        """What makes the figures doubtful: runs that failed, and prompts that differ."""
        failed = [
            f"{NAMES[r.side]}, seed {r.seed}, failed: {r.error}" for r in self.runs if r.error
        ]
        differing = [
            f"seed {ours.seed}: the two sides did not have the same prompts"
            for theirs, ours in self.pairs()
            if _prompts(theirs.steps) != _prompts(ours.steps)
        ]
        return failed + differing


def _prompts(steps: Sequence[dict[str, Any]]) -> list[str]:
    return [row["prompts"] for row in steps]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows that a side wrote; none when it did not come so far."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]
