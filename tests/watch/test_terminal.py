"""The live view: everything on one screen, and text that stays text."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from mint.watch.directory.recorder import RunDirectory
from mint.watch.terminal import LiveView

METRICS = {
    "reward/mean": 0.5,
    "reward/success": 0.25,
    "length/mean": 20.0,
    "rollouts": 32.0,
    "component/format": 0.75,
    "time/sample": 3.0,
    "time/train": 1.0,
}


def shown(steps: int) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    view = LiveView("sums", 40, console=console)
    for step in range(1, steps + 1):
        view.rollouts(
            [
                {"prompt": "3 + 5 =", "response": "8 \x1b[31m[bold]red", "reward": 1.0},
                {"prompt": "3 + 5 =", "response": "nine", "reward": 0.0},
                {"prompt": "3 + 5 =", "response": "lost", "reward": None},
            ]
        )
        view.log(step, METRICS | {"reward/success": step / 40})
    console.print(view.render())
    view.close()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_view_has_progress_curves_samples_and_the_verdict() -> None:
    text = shown(30)
    for expected in ("step 30 of 40", " left", "success", "75.0%", "▁", "█", "format 0.75"):
        assert expected in text
    for expected in ("sampling 75%", "training 25%", "tokens/s", "213", "best 1", "worst 0"):
        assert expected in text
    assert "learning: success rose from" in text


def test_the_time_left_is_that_of_steps_and_not_of_the_first_evaluation() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    view = LiveView("sums", 40, console=console)
    view.log(0, {"holdout/pass@1": 0.5})
    with console.capture() as before:
        console.print(view.render())
    view.log(1, METRICS)
    with console.capture() as after:
        console.print(view.render())
    view.close()
    assert "step 0 of 40" in before.get()
    assert " left" not in before.get()
    assert " left" in after.get()


def test_what_a_model_wrote_is_shown_as_text() -> None:
    text = shown(1)
    assert "\x1b[31m" not in text
    assert "[bold]red" in text
    assert "too early to say" in text


def test_lines_that_are_printed_meanwhile_go_above_the_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stdout", screen)
    console = Console(width=80, force_terminal=True)
    view = LiveView("sums", 3, console=console)
    view.log(1, METRICS)
    assert not sys.stdout.isatty()  # nothing else moves the cursor now
    print("a finding")
    view.log(2, METRICS)
    view.close()
    assert sys.stdout is screen
    text = screen.getvalue()
    assert text.index("a finding") < text.index("step 2 of 3")


def test_a_run_directory_draws_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunDirectory(tmp_path) as run:
        run.write_config({"task": "sums", "steps": 2})
        run.show_live()
        run.rollouts([{"step": 1, "prompt": "3 + 5 =", "response": "8", "reward": 1.0}])
        run.metrics({"step": 1, **METRICS})
    assert "step 1 of 2" in capsys.readouterr().out
