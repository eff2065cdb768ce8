"""Run directories: written as training goes, cut where a run stands."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mint.watch.recorder import EVENTS, METRICS, ROLLOUTS, RunDirectory, RunDirectoryBusy, read_rows


def test_a_row_is_on_disk_when_its_call_returns(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as run:
        run.metrics({"step": 1, "reward": 0.5})
        run.rollouts([{"step": 1, "response": "hello é \ud800"}, {"step": 1, "response": ""}])
        run.event("checkpoint", step=1)
        assert read_rows(run.path / METRICS) == [{"step": 1, "reward": 0.5}]
        assert len(read_rows(run.path / ROLLOUTS)) == 2
        assert read_rows(run.path / EVENTS)[0]["event"] == "checkpoint"


@pytest.mark.parametrize("odd", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\r"])
def test_a_character_that_may_end_a_line_elsewhere_does_not_end_a_row(
    tmp_path: Path, odd: str
) -> None:
    with RunDirectory(tmp_path) as run:
        run.rollouts([{"response": f"one{odd}two"}])
        assert read_rows(run.path / ROLLOUTS) == [{"response": f"one{odd}two"}]


def test_numbers_that_json_does_not_know_become_null(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.metrics({"loss": float("nan"), "more": {"x": [float("inf")]}})
        assert read_rows(run.path / METRICS) == [{"loss": None, "more": {"x": [None]}}]


def test_a_continued_run_has_no_gap_and_no_repeat(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        for step in (1, 2, 3):
            run.metrics({"step": step})
            run.rollouts([{"step": step}])
            if step == 2:
                run.save_state({"step": step})
    with open(tmp_path / METRICS, "ab") as file:
        file.write(b'{"step": 4, "half a li')
    with RunDirectory(tmp_path) as run:
        run.rewind()
        run.metrics({"step": 3})
        assert [row["step"] for row in read_rows(run.path / METRICS)] == [1, 2, 3]
        assert [row["step"] for row in read_rows(run.path / ROLLOUTS)] == [1, 2]


def test_a_table_that_lost_its_end_is_not_filled_up(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.metrics({"step": 1})
        run.metrics({"step": 2})
        run.save_state({"step": 2})
    os.truncate(tmp_path / METRICS, len('{"step": 1}\n'))
    with RunDirectory(tmp_path) as run:
        run.rewind()
        run.metrics({"step": 3})
    assert [row["step"] for row in read_rows(tmp_path / METRICS)] == [1, 3]


def test_a_run_without_a_state_starts_over(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.metrics({"step": 1})
    with RunDirectory(tmp_path) as run:
        run.rewind()
        assert run.state() is None
        assert read_rows(run.path / METRICS) == []


def test_an_unfinished_last_line_is_not_read(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text('{"step": 1}\n{"st')
    assert read_rows(tmp_path / METRICS) == [{"step": 1}]


def test_two_processes_cannot_write_to_one_directory(tmp_path: Path) -> None:
    with RunDirectory(tmp_path), pytest.raises(RunDirectoryBusy, match="another run directory"):
        RunDirectory(tmp_path)
    RunDirectory(tmp_path).close()


def test_the_config_is_kept_as_yaml(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.write_config({"steps": 5, "betas": [0.9, 0.999], "stop": None})
        assert run.config() == {"steps": 5, "betas": [0.9, 0.999], "stop": None}
    assert "steps: 5" in (tmp_path / "config.yaml").read_text()


def test_a_state_that_could_not_be_written_leaves_the_last_one(tmp_path: Path) -> None:
    with RunDirectory(tmp_path) as run:
        run.save_state({"step": 1})
        with pytest.raises(TypeError):
            run.save_state({"step": object()})
    assert json.loads((tmp_path / "state.json").read_text())["step"] == 1
