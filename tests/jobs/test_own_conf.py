"""Folders without a conf/, and a conf/ with only the user's own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mint.commands.training.train import main

EXPERIMENT = """# @package _global_
defaults:
  - override /model: smollm2
  - override /task: own
training:
  steps: 7
"""
TASK = """# @package _global_
task:
  adapter: own_task.py:OwnTask
"""
SAMPLING = """# @package _global_
sampling:
  temperature: 0.3
"""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def composed(capsys: pytest.CaptureFixture[str], *overrides: str) -> dict[str, Any]:
    assert main(["--cfg", "job", *overrides]) == 0
    return dict(yaml.safe_load(capsys.readouterr().out))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_an_empty_folder_has_the_settings_and_tasks_of_mint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = composed(capsys, "+experiment=quick_test")
    assert job["training"]["steps"] == 2
    file, _, name = job["task"]["adapter"].rpartition(":")
    assert name == "VerifiableMathAdapter"
    assert Path(file).is_file()


def test_own_files_stand_beside_those_of_mint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "conf/experiment/mine.yaml", EXPERIMENT)
    write(tmp_path / "conf/task/own.yaml", TASK)
    write(tmp_path / "own_task.py", "class OwnTask: pass")
    job = composed(capsys, "+experiment=mine")
    assert job["task"]["adapter"] == "own_task.py:OwnTask"
    assert job["training"]["steps"] == 7
    assert job["model"]["base_model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert composed(capsys, "+experiment=quick_test")["training"]["steps"] == 2


def test_an_own_file_goes_before_one_of_the_same_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "conf/sampling/default.yaml", SAMPLING)
    assert composed(capsys)["sampling"]["temperature"] == 0.3


def test_help_lists_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    write(tmp_path / "conf/experiment/mine.yaml", EXPERIMENT)
    assert main(["--help"]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("  experiment=")]
    assert "mine" in line
    assert "quick_test" in line


def test_a_folder_called_conf_of_something_else_is_not_in_the_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "conf/nginx.txt", "server {}")
    assert composed(capsys, "+experiment=quick_test")["training"]["steps"] == 2
