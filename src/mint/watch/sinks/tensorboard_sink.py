"""Metrics in TensorBoard: ``tensorboard --logdir runs``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class TensorBoard:
    """Writes event files into the run directory, under ``tensorboard/``."""

    def __init__(self, path: Path) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(str(path / "tensorboard"))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the numbers of a step."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def rollouts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rollouts stay in the run directory."""

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


def open_sink(path: Path, config: dict[str, Any]) -> TensorBoard:
    """Open the sink."""
    return TensorBoard(path)
