"""``mint init``: a project that trains as it stands, and never over files that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from mint.commands.shared.output import Mistake
from mint.commands.training import train
from mint.commands.training.init import DEFAULT_MODEL, init
from mint.watch.directory.recorder import METRICS, read_rows
from tests.service_fixture import MODEL

from .conftest import ROOT

FILES = {"README.md", "conf/experiment/mine.yaml", "data.jsonl", "reward.py"}
SMALL = ("training.steps=1", "training.batch_size=2", "sampling.group_size=2")


def written(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_project_trains_with_the_command_that_is_printed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    init(Path("my project"), model=MODEL)
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2:] == ["  cd 'my project'", "  mint train +experiment=mine"]
    assert written(folder / "my project") == FILES

    monkeypatch.chdir(folder / "my project")
    holdout = ("evaluation.eval_every=1", "evaluation.holdout_size=2")
    assert train.main(["+experiment=mine", *SMALL, *holdout]) == 0
    (run,) = Path("runs").iterdir()
    (row,) = [row for row in read_rows(run / METRICS) if row["step"] == 1]
    assert row["reward/failures"] == 0


def test_a_project_of_another_model_names_it(tmp_path: Path) -> None:
    init(tmp_path, model="some/model")
    settings = (tmp_path / "conf/experiment/mine.yaml").read_text()
    assert "base_model: some/model" in settings
    assert DEFAULT_MODEL not in settings


def test_nothing_is_written_over_a_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text("mine")
    with pytest.raises(Mistake, match=r"reward\.py already exists; nothing was written"):
        init(tmp_path)
    assert written(tmp_path) == {"reward.py"}
    assert (tmp_path / "reward.py").read_text() == "mine"


def test_the_quickstart_scripts_are_those_of_the_repository(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init(tmp_path / "scripts", quickstart=True)
    assert written(tmp_path / "scripts") == {"custom_reward.py", "quickstart.py"}
    for script in (tmp_path / "scripts").iterdir():
        assert script.read_text() == (ROOT / "quickstart" / script.name).read_text()
    assert capsys.readouterr().out.splitlines()[-1] == "  python custom_reward.py"
