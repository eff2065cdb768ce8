"""docs/training.md: every command on the page is run, and its table names the files there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from mint.commands.training import evaluate
from mint.commands.training import train as training

from .conftest import CONF, LETTERS, ROOT, Command

PAGE = (ROOT / "docs" / "training.md").read_text()
COMMANDS = re.findall(r"^    ((?:python run_training\.py|mint train|mint eval) .*)$", PAGE, re.M)
REWARD = """
def custom_reward_function(response, prompt, metadata):
    return float(metadata["answer"] in response)
"""


def run(line: str, train: Command) -> int:
    words = shlex.split(line)
    if words[0] == "python":
        return train(*words[2:]).code
    main = training.main if words[1] == "train" else evaluate.main
    return main(words[2:])


@pytest.mark.slow
def test_every_command_on_the_page_runs(
    train: Command, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "conf").symlink_to(CONF)
    (folder / "my_task.py").write_text(LETTERS.replace("Letters", "MyAdapter"))
    (folder / "my_rewards.py").write_text(REWARD)
    rows = [f'{{"question": "What is {n} + 1?", "answer": "#### {n + 1}"}}' for n in range(30)]
    (folder / "questions.jsonl").write_text("\n".join(rows))
    codes = {line: run(line, train) for line in COMMANDS}
    assert codes == dict.fromkeys(COMMANDS, 0), capsys.readouterr().err
    assert len(COMMANDS) > 15


def test_the_mistakes_on_the_page_give_the_messages_on_the_page(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "conf").symlink_to(CONF)
    (folder / "demos").symlink_to(ROOT / "demos")
    for typed, told in re.findall(r"^    \$ mint train (.*)\n    (mint: .*)$", PAGE, re.M):
        assert training.main([typed]) == 2
        assert capsys.readouterr().err.strip() == told


@pytest.mark.parametrize("group", [p.name for p in CONF.iterdir() if p.is_dir()])
def test_the_table_names_the_files_of_every_group(group: str) -> None:
    (row,) = re.findall(rf"^\| `{group}` \|.*\|(.*)\|$", PAGE, re.M)
    named = set(re.findall(r"`(\w+)`", row))
    files = {path.stem for path in (CONF / group).glob("*.yaml")}
    assert named == (files if group != "experiment" else named & files)
