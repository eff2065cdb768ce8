"""Metrics in Trackio: ``TRACKIO_PROJECT`` names the project; ``trackio show`` opens it."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Trackio:
    """One Trackio run for a run directory."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        import trackio

        self._trackio = trackio
        trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "mint"),
            name=path.resolve().name,
            config=config,
            resume="allow",
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the numbers of a step."""
        self._trackio.log(dict(metrics), step=step)

    def rollouts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rollouts stay in the run directory."""

    def close(self) -> None:
        """End the Trackio run."""
        self._trackio.finish()


def open_sink(path: Path, config: dict[str, Any]) -> Trackio:
    """Open the sink."""
    return Trackio(path, config)
