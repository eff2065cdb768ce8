"""``task=jsonl``: own data from the command line, and files that must not be trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mint.commands.training import train as training
from mint.watch.directory.reader import open_run
from tests.service_fixture import MODEL

from .conftest import CONF, ROOT, Command, run_directory

SUMS = [{"question": f"What is {n} + 1?", "answer": str(n + 1), "level": n} for n in range(8)]
PAY = """
def by_level(response, prompt, metadata):
    return metadata["level"] + len(response) % 3
"""


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_own_data_is_trained_on_with_an_own_reward(train: Command, folder: Path) -> None:
    write(folder / "train.jsonl", SUMS)
    (folder / "pay.py").write_text(PAY)
    own = ["task.arguments.file=train.jsonl", "task.arguments.prompt_column=question"]
    ended = train(
        "task=jsonl",
        *own,
        "task.arguments.system_prompt='Be short.'",
        "training.reward_function=pay.py:by_level",
        "sampling.max_tokens=4",
        "evaluation.holdout_fraction=0",
    )
    assert ended.code == 0, ended.err
    rows = open_run(run_directory(ended.out)).rollouts()
    levels = {row["question"]: row["level"] for row in SUMS}
    for row in rows:
        assert row["prompt"].startswith("<|im_start|>system\nBe short.<|im_end|>")
        question = row["prompt"].split("user\n")[1].split("<|im_end|>")[0]
        assert levels[question] <= row["reward"] <= levels[question] + 2


def test_the_recipe_for_gsm8k_takes_the_dataset_as_it_is(train: Command, folder: Path) -> None:
    rows = [
        {"question": f"What is {n} + 1?", "answer": f"{n}+1=<<{n}+1>>.\n#### {n + 1}"}
        for n in range(60)
    ]
    write(folder / "train.jsonl", rows)
    ended = train(
        "+experiment=gsm8k",
        "task.arguments.file=train.jsonl",
        f"model.base_model={MODEL}",
        "training.steps=1",
        "training.batch_size=2",
        "sampling.group_size=2",
        "sampling.max_tokens=4",
        "evaluation.eval_every=0",
    )
    assert ended.code == 0, ended.err
    found = open_run(run_directory(ended.out)).rollouts()
    assert len(found) == 4
    assert all("after ####." in row["prompt"] and "What is" in row["prompt"] for row in found)


WRONG: dict[str, tuple[list[str], str]] = {
    "a missing file": (["task=jsonl", "task.arguments.file=no.jsonl"], "There is no file no.jsonl"),
    "an empty file": (["task=jsonl", "task.arguments.file=empty.jsonl"], "empty.jsonl has no rows"),
    "a column": (
        ["task=jsonl", "task.arguments.file=train.jsonl"],
        "Set task.arguments.prompt_column=question",
    ),
    "an argument": (
        ["task=jsonl", "task.arguments.file=train.jsonl", "task.arguments.promt_column=question"],
        "Did you mean 'prompt_column'?",
    ),
    "a row": (
        ["task=jsonl", "task.arguments.file=bad.jsonl", "task.arguments.prompt_column=question"],
        "bad.jsonl, line 9: the field 'question' is empty",
    ),
    "a reward": (
        [
            *("task=jsonl", "task.arguments.file=train.jsonl"),
            *(
                "task.arguments.prompt_column=question",
                "training.reward_function=match_format_exactly",
            ),
        ],
        "train.jsonl, line 1: The reward has the parameter 'expected_format'",
    ),
    "a job of a sweep": (
        [
            *("-m", "task=jsonl", "task.arguments.file=train.jsonl,empty.jsonl"),
            "task.arguments.prompt_column=question",
        ],
        "empty.jsonl has no rows",
    ),
    "gsm8k with an empty file": (
        ["task=gsm8k", "task.arguments.task=empty.jsonl"],
        "empty.jsonl has no rows",
    ),
    "gsm8k with a text file": (["task=gsm8k", "task.arguments.task=notes.txt"], "ends in '.txt'"),
    "gsm8k with no file": (["task=gsm8k", "task.arguments.task=no.jsonl"], "There is no file"),
    "gsm8k with no name": (["task=gsm8k", "task.arguments.task=gsm8k"], "There is no task 'gsm8k'"),
    "gsm8k with other columns": (
        ["task=gsm8k", "task.arguments.task=other.json"],
        "other.json, row 1: the field 'question' is None",
    ),
    "gym without its prefix": (["task=gym", "task.arguments.task=countdown"], "gym:NAME"),
    "options without gym": (["task=arithmetic", "task.arguments.shots=3"], "Leave them out"),
    "hackable with a file": (
        ["task=hackable", "task.arguments.task=no.jsonl"],
        "There is no file no.jsonl",
    ),
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with data files, and a service that nothing must reach."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINT_BASE_URL", "http://127.0.0.1:9")
    (tmp_path / "conf").symlink_to(CONF)
    (tmp_path / "demos").symlink_to(ROOT / "demos")
    write(tmp_path / "train.jsonl", SUMS)
    write(tmp_path / "bad.jsonl", [*SUMS, {"question": "", "answer": "1"}])
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "notes.txt").write_text("What is 1 + 1?")
    (tmp_path / "other.json").write_text('[{"problem": "a", "answer": "b"}]')


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("name", WRONG)
def test_wrong_data_is_a_message_before_anything_is_loaded(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, told = WRONG[name]
    assert training.main(arguments) == 2
    printed = capsys.readouterr()
    assert told in printed.err
    assert "Model:" not in printed.out
    assert list(Path("runs").rglob("*.*")) == []  # a sweep's folder may be there, a run's may not


def test_a_json_list_is_read_by_gsm8k(train: Command, folder: Path) -> None:
    (folder / "rows.json").write_text(json.dumps(SUMS))
    assert train("task=gsm8k", "task.arguments.task=rows.json", "sampling.max_tokens=4").code == 0
