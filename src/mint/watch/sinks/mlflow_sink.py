"""Metrics in MLflow: ``MLFLOW_TRACKING_URI`` and ``MLFLOW_EXPERIMENT_NAME`` apply."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_LONGEST = 500


def allowed_name(name: str) -> str:
    """Return a metric's name as MLflow takes it, which has no ``@``.

    >>> allowed_name("holdout/pass@1")
    'holdout/pass_at_1'
    """
    return re.sub(r"[^\w\-. /]", "_", name.replace("@", "_at_"))


class MLflow:
    """One MLflow run for a run directory."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        import mlflow

        self._mlflow = mlflow
        if "MLFLOW_EXPERIMENT_NAME" not in os.environ:
            mlflow.set_experiment("mint")
        mlflow.start_run(run_name=path.resolve().name)
        mlflow.log_params({name: str(value)[:_LONGEST] for name, value in config.items()})

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the numbers of a step."""
        named = {allowed_name(name): value for name, value in metrics.items()}
        self._mlflow.log_metrics(named, step=step)

    def rollouts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rollouts stay in the run directory."""

    def close(self) -> None:
        """End the MLflow run."""
        self._mlflow.end_run()


def open_sink(path: Path, config: dict[str, Any]) -> MLflow:
    """Open the sink."""
    return MLflow(path, config)
