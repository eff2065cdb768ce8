"""Experiment trackers: TensorBoard, Weights & Biases, Trackio and MLflow.

Each package is imported when its sink is opened. Its own environment variables apply, such as
``WANDB_PROJECT``, ``TRACKIO_PROJECT``, ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME``.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mint.watch.sinks.sink import Sink

_LONGEST = 500


class TensorBoard(Sink):
    """Event files in the run directory, under ``tensorboard/``: ``tensorboard --logdir runs``."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(str(path / "tensorboard"))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases(Sink):
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
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class Trackio(WeightsAndBiases):
    """One Trackio run for a run directory, with the interface of W&B's. See ``trackio show``."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        import trackio

        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "mint"),
            name=path.resolve().name,
            config=config,
            resume="allow",
        )


class MLflow(Sink):
    """One MLflow run for a run directory, in the experiment ``mint`` unless another is set."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        import mlflow

        self._mlflow = mlflow
        if "MLFLOW_EXPERIMENT_NAME" not in os.environ:
            mlflow.set_experiment("mint")
        mlflow.start_run(run_name=path.resolve().name)
        mlflow.log_params({name: str(value)[:_LONGEST] for name, value in config.items()})

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        named = {allowed_name(name): value for name, value in metrics.items()}
        self._mlflow.log_metrics(named, step=step)

    def close(self) -> None:
        self._mlflow.end_run()


def allowed_name(name: str) -> str:
    """Return a metric's name as MLflow accepts it, without ``@``.

    >>> allowed_name("holdout/pass@1")
    'holdout/pass_at_1'
    """
    return re.sub(r"[^\w\-. /]", "_", name.replace("@", "_at_"))
