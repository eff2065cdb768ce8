"""docs/data.md: its files are written, and every command and script on it is run."""

from __future__ import annotations

import inspect
import re
import shlex
import textwrap
from pathlib import Path

import pytest

from mint.commands.training import evaluate
from mint.commands.training import train as training
from mint.rl import DatasetTask

from .conftest import CONF, ROOT

PAGE = (ROOT / "docs" / "data.md").read_text()
BLOCK = r"((?:    .*\n|\n(?=    ))+)"
COMMANDS = re.findall(r"^    mint (train|eval) (.*)$", PAGE, re.M)


@pytest.fixture
def page(folder: Path) -> Path:
    """A folder with the files that the page shows."""
    (folder / "conf").symlink_to(CONF)
    for name, block in re.findall(rf"^`([\w.]+)`:\n\n{BLOCK}", PAGE, re.M):
        own = block.split("\n\n    mint ")[0]
        (folder / name).write_text(textwrap.dedent(own).strip() + "\n")
    return folder


@pytest.mark.usefixtures("page")
@pytest.mark.slow
def test_every_command_on_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["sampling.max_tokens=2", "training.steps=1"]
    mains = {"train": training.main, "eval": evaluate.main}
    codes = {line: mains[name]([*shlex.split(line), *small]) for name, line in COMMANDS}
    assert codes == dict.fromkeys(codes, 0), capsys.readouterr().err
    assert len(codes) == 7


@pytest.mark.usefixtures("page")
def test_the_script_on_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (script,) = re.findall(rf"in a script:\n\n{BLOCK}", PAGE)
    small = 'max_tokens=2, base_model="tiny/llama"'
    exec(textwrap.dedent(script).replace("max_tokens=8", small), {})
    assert "tinker://" in capsys.readouterr().out


@pytest.mark.usefixtures("page")
def test_the_mistake_on_the_page_gives_the_message_on_the_page(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ((typed, told),) = re.findall(r"^    \$ mint train (.*)\n    (mint: .*)$", PAGE, re.M)
    assert training.main(shlex.split(typed)) == 2
    assert capsys.readouterr().err.strip() == told


def test_the_table_has_every_argument_of_the_task() -> None:
    table = PAGE.split("## Arguments")[1].split("## Other")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.M)
    assert sorted(named) == sorted(inspect.signature(DatasetTask).parameters)
