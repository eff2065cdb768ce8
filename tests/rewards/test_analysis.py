"""Analysis, audit, tasks and the commands."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from mint.commands.training.rewards import app
from mint.rewards import (
    Sample,
    Scorer,
    analyse,
    arithmetic_tasks,
    audit_reward,
    check_answer,
    code_tasks,
    countdown_reward,
    countdown_tasks,
    failure_pattern,
    gated,
    match_format_exactly,
    reasoning_gym,
    weighted,
)
from mint.rewards.tasks import GymUnavailable

FORMAT = "The answer is [NUM]."
RESPONSES = [
    "The answer is 42.",
    "42",
    "-42",
    "420",
    "43",
    "41.9",
    "no idea",
    "We take the sum of",
    "",
]


def sample(response: str, group: int = 0) -> Sample:
    metadata = {"answer": "42", "format": FORMAT, "group": group}
    return Sample(response, "What is 6 x 7?", metadata)


def analysed() -> Any:
    reward = weighted({"format": (0.3, match_format_exactly), "right": (0.7, check_answer)})
    samples = [sample(response) for response in RESPONSES] + [sample("1", 1), sample("2", 1)]
    return analyse(Scorer(reward).score(samples))


def test_an_answer_that_is_neither_text_nor_number_has_no_failure_pattern() -> None:
    scored = Scorer(lambda response: 1.0).score([Sample("x", "p", {"answer": [1, 2]})])
    assert analyse(scored).failure_patterns == {}


def test_an_analysis_has_every_figure() -> None:
    found = analysed()
    assert found.count == 11
    assert found.maximum == 1.0
    assert found.minimum == 0.0
    assert found.groups == 2
    assert found.ties == 0.5
    assert found.component_correlations["right"] > 0.8
    assert found.failure_patterns == {
        "wrong": 2,
        "wrong format": 1,
        "off by sign": 1,
        "off by scale": 1,
        "off by one": 1,
        "close": 1,
        "no number": 1,
        "truncated": 1,
        "empty": 1,
        "right": 1,
    }
    assert found.highest[0].response == "The answer is 42."
    assert sum(count for _, _, count in found.histogram) == 11
    assert json.loads(json.dumps(found.as_data()))["count"] == 11
    assert "off by sign 1" in found.as_text()


def test_a_reward_at_the_edge_of_two_bars_is_in_the_upper_one() -> None:
    tenths = [count / 10 for count in range(11)]
    scored = Scorer(lambda response: float(response)).score([Sample(str(r)) for r in tenths])
    assert [count for _, _, count in analyse(scored).histogram] == [1] * 9 + [2]


def test_an_analysis_is_drawn(tmp_path: Path) -> None:
    path = analysed().plot(tmp_path / "plots" / "rewards.svg")
    bars = ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}rect")
    assert len(list(bars)) == 10


@given(rewards=st.lists(st.floats(-5, 5), min_size=1, max_size=30))
def test_mean_and_deviation_agree_with_the_textbook(rewards: list[float]) -> None:
    scored = Scorer(lambda response: float(response)).score([Sample(str(r)) for r in rewards])
    found = analyse(scored)
    assert found.mean == pytest.approx(statistics.fmean(rewards), abs=1e-9)
    assert found.std == pytest.approx(statistics.pstdev(rewards), abs=1e-9)


def test_an_analysis_of_nothing_is_empty() -> None:
    assert analyse([]).as_text().startswith("0 rewards")


@pytest.mark.parametrize(
    ("response", "pattern"),
    [
        ("The answer is 42.", "right"),
        ("42 apples", "wrong format"),
        (None, "empty"),
        ("9", "wrong"),
    ],
)
def test_failure_patterns(response: str | None, pattern: str) -> None:
    assert failure_pattern(response, 42, FORMAT) == pattern


def test_an_audit_finds_what_can_be_hacked() -> None:
    def any_mention(response: str, answer: str) -> float:
        return float(answer in response)

    found = {p.probe: p.finding for p in audit_reward(any_mention, [sample("")])}
    for probe in ("gold denied", "all numbers", "many boxed answers", "gold in a comment"):
        assert found[probe] == "hackable"
    assert found["empty"] == "ok"


def test_an_audit_passes_a_gated_reward_and_reports_one_that_raises() -> None:
    safe = audit_reward(gated(check_answer, match_format_exactly), [sample("")])
    assert {probed.finding for probed in safe} == {"ok"}
    broken = audit_reward(lambda response: 1 / len(response), [sample("")])
    assert [p.probe for p in broken if p.finding == "raises"] == ["empty"]


def test_question_and_answer_come_from_the_same_numbers() -> None:
    for task in arithmetic_tasks(200, seed=3):
        a, sign, b = task.prompt.removeprefix("What is ").removesuffix("?").split()
        results = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}
        assert task.metadata["answer"] == str(results[sign])


def test_tasks_are_the_same_for_the_same_seed() -> None:
    for make in (arithmetic_tasks, countdown_tasks):
        assert [t.prompt for t in make(5, seed=3)] == [t.prompt for t in make(5, seed=3)]
        assert [t.prompt for t in make(5, seed=3)] != [t.prompt for t in make(5, seed=4)]


@pytest.mark.parametrize(
    ("expression", "score"),
    [
        ("(3 + 4) * 6", 1.0),
        ("6 * (3 + 4) = 42", 1.0),
        ("6×(3+4)", 1.0),
        ("3 + 4", 0.1),
        ("6 * 6 + 6", 0.0),
        ("42", 0.0),
        ("7 * 6", 0.0),
        ("6 / (3 - 3)", 0.0),
        ("__import__('os')", 0.0),
        ("9 ** 9 ** 9", 0.0),
        ("(" * 400, 0.0),
        ("", 0.0),
    ],
)
def test_countdown(expression: str, score: float) -> None:
    assert countdown_reward(f"<answer>{expression}</answer>", [3, 4, 6, 9], 42) == score


def test_countdown_tasks_have_positive_targets_that_are_not_given() -> None:
    for task in countdown_tasks(50):
        assert 0 < task.metadata["target"] <= 1000
        assert task.metadata["target"] not in task.metadata["numbers"]


@pytest.mark.sandbox
def test_every_code_task_accepts_its_solution_and_refuses_an_empty_one() -> None:
    tasks = code_tasks()
    reward = tasks[0].reward
    right = [task.sample(f"```python\n{task.metadata['solution']}```") for task in tasks]
    assert {float(score or 0) for score in reward.score(right)} == {1.0}
    assert {float(s or 0) for s in reward.score([t.sample("pass") for t in tasks])} == {0.0}


def test_reasoning_gym_tasks_score_by_their_own_scorer() -> None:
    pytest.importorskip("reasoning_gym")
    for name in ("chain_sum", "leg_counting", "spell_backward"):
        tasks = reasoning_gym(name, count=3, seed=5)
        assert len(tasks) == 3
        for task in tasks:
            assert float(task.score(f"<answer>{task.metadata['answer']}</answer>") or 0) == 1.0
            assert float(task.score("<answer>zebra</answer>") or 0) < 1.0
    with pytest.raises(GymUnavailable, match="no_such_task"):
        reasoning_gym("no_such_task")


@pytest.fixture
def samples_file(tmp_path: Path) -> Path:
    path = tmp_path / "samples.jsonl"
    rows = [{"response": r, "prompt": "What is 6 x 7?", "answer": "42"} for r in RESPONSES]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def command(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_list_command_shows_names_and_ranges() -> None:
    shown = command("list")
    assert shown.exit_code == 0
    assert "check_answer" in shown.output
    assert "0, 0.5 or 1" in shown.output


def test_the_test_command_shows_a_table_and_a_histogram(samples_file: Path, tmp_path: Path) -> None:
    shown = command("test", "--reward", "check_answer", samples_file, "--plot", tmp_path / "p.svg")
    assert shown.exit_code == 0, shown.output
    assert "'The answer is 42.'" in shown.output
    assert "####" in shown.output
    assert (tmp_path / "p.svg").is_file()
    data = command("test", "--reward", "check_answer", samples_file, "--json")
    assert json.loads(data.output)["count"] == len(RESPONSES)


def test_a_name_that_is_not_a_function_is_reported() -> None:
    shown = command("test", "--reward", "mint.rewards", "no-file.jsonl")
    assert shown.exit_code == 2
    assert "is not a reward" in shown.output


def test_the_test_command_takes_a_function_of_a_file_and_shows_its_failures(
    samples_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "own.py"
    path.write_text("def own(response):\n    return 1 / len(response)\n")
    shown = command("test", "--reward", f"{path}:own", samples_file)
    assert shown.exit_code == 1
    assert "ZeroDivisionError" in shown.output
    assert "1 could not be scored" in shown.output


def test_the_audit_command_reports_what_can_be_hacked(samples_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("def own(response, answer):\n    return float(answer in response)\n")
    shown = command("audit", "--reward", f"{path}:own", samples_file)
    assert shown.exit_code == 1
    assert "gold denied" in shown.output
    assert "probes succeed" in shown.output


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("--reward", "no_such_reward"), "mint rewards list"),
        (("--reward", "centre_of"), "There is no built-in or registered reward"),
    ],
)
def test_an_unknown_reward_on_the_command_line_says_what_to_do(
    arguments: tuple[str, ...], hint: str, samples_file: Path
) -> None:
    shown = command("test", *arguments, samples_file)
    assert shown.exit_code == 2
    assert hint in " ".join(shown.output.replace("│", " ").split())


def test_a_broken_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text('{"response": "4"}\nnot json\n')
    shown = command("test", "--reward", "check_answer", path)
    assert shown.exit_code == 2
    assert "broken.jsonl:2" in "".join(shown.output.replace("│", "").split())
