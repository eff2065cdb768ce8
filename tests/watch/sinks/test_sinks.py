"""Sinks: the same names elsewhere, and none that can stop a run."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import mint.watch
from mint.watch.directory.reader import open_run
from mint.watch.directory.recorder import RunDirectory
from mint.watch.sinks import open_sink
from mint.watch.sinks.opentelemetry import Spans
from mint.watch.sinks.sink import SinkThread


def test_tensorboard_gets_the_same_names_and_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with mint.watch.record(tmp_path / "run", sinks=["tensorboard"]) as record:
        record.step({"reward/mean": 0.25, "holdout/pass@1": 0.5})
        record.step({"reward/mean": 0.5, "note": "text", "loss": float("nan")})
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    keys = found.Tags()
    names = set(keys["scalars"]) | set(keys["tensors"])
    assert {"reward/mean", "holdout/pass@1"} <= names
    assert "note" not in names
    events = (
        found.Scalars("reward/mean")
        if "reward/mean" in keys["scalars"]
        else found.Tensors("reward/mean")
    )
    assert [event.step for event in events] == [1, 2]


def test_a_sink_without_its_package_says_what_to_install_and_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with (
        pytest.warns(UserWarning, match="pip install wandb"),
        mint.watch.record(tmp_path / "run", sinks=["wandb"]) as record,
    ):
        record.step({"reward": 1.0})
    run = open_run(tmp_path / "run")
    (event,) = run.events()
    assert (event["event"], event["name"]) == ("sink_failed", "wandb")
    assert run.metrics()[0]["reward"] == 1.0


class Broken:
    """A sink whose disk is full from the second step on."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def log(self, step: int, metrics: dict[str, float]) -> None:
        if self.steps:
            raise OSError("No space left on device")
        self.steps.append(step)

    def rollouts(self, rows: Any) -> None: ...

    def close(self) -> None: ...


def test_a_sink_that_fails_is_switched_off_with_one_warning_and_one_event(tmp_path: Path) -> None:
    sink = Broken()
    with RunDirectory(tmp_path) as run:
        run._sinks.attach("broken", sink)
        run.metrics({"step": 1})
        with pytest.warns(UserWarning, match="No space left"):
            run.metrics({"step": 2})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run.metrics({"step": 3})
            run.metrics({"step": 4})
    assert sink.steps == [1]
    assert [event["event"] for event in open_run(tmp_path).events()] == ["sink_failed"]
    assert len(open_run(tmp_path).metrics()) == 4


def test_agent_traces_become_spans_of_the_programs_own_provider(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace = [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": {}}]},
        {"role": "tool", "content": "4", "name": "add"},
    ]
    spans = Spans(tmp_path, {})
    spans._tracer = provider.get_tracer("test")
    row = {"step": 3, "reward": 1.0, "components": {"right": 1.0}, "trace": trace, "error": "E: x"}
    spans.rollouts([{"step": 3, "trace": []}, row])
    *children, rollout = exporter.get_finished_spans()
    assert [span.name for span in children] == ["chat user", "chat assistant", "execute_tool add"]
    assert rollout.attributes["mint.step"] == 3
    assert rollout.attributes["mint.component.right"] == 1.0
    assert not rollout.status.is_ok
    assert all(span.parent.span_id == rollout.context.span_id for span in children)


def test_no_spans_are_written_without_a_tracer_provider() -> None:
    code = "from mint.watch.sinks.opentelemetry import is_configured; print(is_configured())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"


class Silent:
    """A sink whose server never answers."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.answer = threading.Event()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.called.set()
        self.answer.wait()

    def rollouts(self, rows: Any) -> None: ...

    def close(self) -> None: ...


def test_a_sink_that_never_answers_holds_up_neither_steps_nor_the_end(tmp_path: Path) -> None:
    sink = Silent()
    run = RunDirectory(tmp_path)
    run._sinks.attach("silent", SinkThread(lambda: sink, last_s=0.1))
    run.metrics({"step": 1})
    sink.called.wait()
    run.metrics({"step": 2})
    with pytest.warns(UserWarning, match="did not end within 0.1 s"):
        run.close()
    sink.answer.set()
    assert len(open_run(tmp_path).metrics()) == 2
    assert [event["event"] for event in open_run(tmp_path).events()] == ["sink_failed"]


def test_a_sink_that_falls_too_far_behind_is_switched_off() -> None:
    sink = Silent()
    worker = SinkThread(lambda: sink, last_s=0.1)
    worker.log(0, {})
    sink.called.wait()
    for step in range(1_000):
        worker.log(step, {})
    with pytest.raises(TimeoutError, match="1000 calls behind"):
        worker.log(1_000, {})
    sink.answer.set()


def test_an_unknown_sink_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a sink"):
        open_sink("tensorbord", tmp_path, {})
