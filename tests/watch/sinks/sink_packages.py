"""A script for .venvs/sinks: records a run into W&B, Trackio and MLflow, and reads it back.

It prints what it found as JSON. ``broken`` as its second argument leads W&B and MLflow to a server
that is not there.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mint.watch

Found = Iterator[tuple[str, int, float]]


NOBODY = "http://127.0.0.1:1"


def main(folder: Path, broken: bool, sinks: list[str]) -> None:
    os.environ |= {
        "WANDB_MODE": "online" if broken else "offline",
        "WANDB_BASE_URL": NOBODY,
        "WANDB_SILENT": "true",
        "TRACKIO_DIR": str(folder / "trackio"),
        "MLFLOW_TRACKING_URI": NOBODY if broken else f"sqlite:///{folder}/mlflow.db",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    }
    config: dict[str, Any] = {"steps": 2, "task": "sums", "nested": {"rate": 1e-4}}
    with mint.watch.record(folder / "run", config=config, sinks=sinks) as record:
        record.step({"reward/mean": 0.25, "holdout/pass@1": 0.5})
        record.step({"reward/mean": 0.5, "note": "text", "train/loss": float("nan")})
    found = {} if broken else {name: as_series(READERS[name](folder)) for name in sinks}
    run = mint.watch.open_run(folder / "run")
    print(json.dumps({"found": found, "events": run.events(), "steps": len(run.metrics())}))


def as_series(found: Found) -> dict[str, list[tuple[int, float]]]:
    series = defaultdict(list)
    for name, step, value in found:
        series[name].append((step, value))
    return dict(series)


def from_wandb(folder: Path) -> Found:
    from wandb.proto import wandb_internal_pb2

    [file] = (folder / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    for data in log_records(file.read_bytes()):
        items = wandb_internal_pb2.Record.FromString(data).history.item
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
        for name, value in row.items():
            if not name.startswith("_"):
                yield name, row["_step"], value


def log_records(content: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log after a header of 7 bytes: blocks of 32 KiB, in which each part
    has a checksum (4), a length (2) and a kind (1: whole, 2: first, 3: middle, 4: last)."""
    at, whole = 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        length, kind = struct.unpack_from("<HB", content, at + 4)
        if kind == 0:
            return
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


def from_trackio(folder: Path) -> Found:
    from trackio.sqlite_storage import SQLiteStorage

    for row in SQLiteStorage.get_logs("mint", "run"):
        for name, value in row.items():
            if isinstance(value, float) and name not in ("timestamp", "step"):
                yield name, row["step"], value


def from_mlflow(folder: Path) -> Found:
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("mint")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "run"
    assert run.info.status == "FINISHED"
    assert run.data.params["task"] == "sums"
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            yield name, metric.step, metric.value


READERS = {"wandb": from_wandb, "trackio": from_trackio, "mlflow": from_mlflow}

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "broken", sys.argv[3:])
