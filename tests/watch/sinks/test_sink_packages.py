"""The real packages of the sinks, in an environment of their own: make test-sinks."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".venvs/sinks/bin/python"

pytestmark = [
    pytest.mark.skipif(not PYTHON.exists(), reason="their environment: make test-sinks"),
    pytest.mark.slow,
]


def record(folder: Path, how: str, *sinks: str) -> dict[str, Any]:
    """Record a run of two steps with some sinks, and return what is found afterwards."""
    command = [PYTHON, ROOT / "tests/watch/sinks/sink_packages.py", folder, how, *sinks]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment = {**kept, "PYTHONPATH": str(ROOT / "src"), "HOME": str(folder)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(ended.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("sink", "share"),
    [("wandb", "holdout/pass@1"), ("trackio", "holdout/pass@1"), ("mlflow", "holdout/pass_at_1")],
)
def test_a_sink_has_the_metrics_of_every_step_under_their_names(
    tmp_path: Path, sink: str, share: str
) -> None:
    found = record(tmp_path, "whole", sink)
    assert found["found"][sink] == {"reward/mean": [[1, 0.25], [2, 0.5]], share: [[1, 0.5]]}
    assert found["events"] == []


def test_servers_that_are_not_there_stop_no_run(tmp_path: Path) -> None:
    found = record(tmp_path, "broken", "wandb", "mlflow")
    assert found["steps"] == 2
    failed = {event["name"]: event["event"] for event in found["events"]}
    assert failed == {"wandb": "sink_failed", "mlflow": "sink_failed"}
