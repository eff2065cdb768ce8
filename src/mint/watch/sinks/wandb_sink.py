"""Metrics in Weights & Biases: ``WANDB_PROJECT`` and the package's own variables apply."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class WeightsAndBiases:
    """One W&B run for a run directory; a resumed run continues in it."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "mint"),
            name=path.resolve().name,
            id=hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16],
            resume="allow",
            dir=str(path),
            config=config,
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the numbers of a step."""
        self._run.log(dict(metrics), step=step)

    def rollouts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rollouts stay in the run directory."""

    def close(self) -> None:
        """End the W&B run."""
        self._run.finish()


def open_sink(path: Path, config: dict[str, Any]) -> WeightsAndBiases:
    """Open the sink."""
    return WeightsAndBiases(path, config)
