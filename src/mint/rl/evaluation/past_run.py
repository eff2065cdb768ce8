"""A run that was made, as its run directory tells it. Nothing is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from mint.config_error import ConfigError
from mint.rl.evaluation.scores import Evaluation
from mint.rl.settings.config import RLConfig
from mint.watch.directory.reader import RunReader
from mint.watch.directory.recorder import CONFIG


@dataclass(frozen=True)
class Point:
    """A run after some step: where its weights are, unless they are gone, and how good it was."""

    step: int
    path: str | None
    evaluation: Evaluation | None = None
    gone: bool = False

    @property
    def weights(self) -> str:
        """The location of the weights, in words."""
        return "gone" if self.gone else self.path or "the base model"

    def unevaluated(self) -> Point:
        """The same, to be evaluated afresh."""
        return replace(self, evaluation=None)


class PastRun:
    """The settings and checkpoints of a run directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reader = RunReader(folder)
        if not (folder / CONFIG).is_file():
            raise ConfigError(f"{folder} is not a run directory: it has no {CONFIG}.")
        self.cfg = RLConfig(**_known(yaml.safe_load((folder / CONFIG).read_text())))

    def points(self) -> list[Point]:
        """Every step that has a checkpoint or an evaluation, from the start to the last."""
        found = {0: self.cfg.start_from}
        found |= {
            kept["step"]: kept["path"] for kept in self._reader.state().get("checkpoints", [])
        }
        rows = {row["step"]: Evaluation.read(row) for row in self._reader.metrics()}
        evaluations = {step: known for step, known in rows.items() if known is not None}
        return [
            Point(step, found.get(step), evaluations.get(step), gone=step not in found)
            for step in sorted({*found, *evaluations})
        ]


def _known(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != "task"}
