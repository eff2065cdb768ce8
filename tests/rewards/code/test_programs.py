"""Generated programming problems: question and tests say the same, and constants do not pass."""

from __future__ import annotations

import random
import re

import pytest

from mint.rewards import CallTest, program_tasks
from mint.rewards.tasks import _PROBLEMS

SOLUTIONS = {
    "remainder": "x % {0}",
    "square": "x * x + {0}",
    "larger": "max(x, {0})",
    "first": "text[:{0}]",
    "last": "text[-{0}:]",
    "length": "len(items) * {0}",
    "divisible": "x % {0} == 0",
}


@pytest.mark.sandbox
def test_the_same_seed_gives_the_same_problems() -> None:
    assert [t.prompt for t in program_tasks(20, seed=3)] == [
        t.prompt for t in program_tasks(20, seed=3)
    ]
    assert len({t.prompt for t in program_tasks(2000)}) > 500


@pytest.mark.parametrize("problem", _PROBLEMS, ids=lambda problem: problem.sentence)
def test_no_constant_passes_the_tests_of_a_problem(problem: object) -> None:
    for seed in range(50):
        tests: list[CallTest] = problem.task(None, random.Random(seed)).metadata["tests"]  # type: ignore[attr-defined]
        assert len({repr(test.expected) for test in tests}) > 1


@pytest.mark.sandbox
def test_what_the_sentence_says_is_what_the_tests_want() -> None:
    tried = set()
    for task in program_tasks(200, seed=1):
        name = next((name for name in SOLUTIONS if name in task.prompt), None)
        if name is None or name in tried:
            continue
        tried.add(name)
        argument = re.search(r"solve\((\w+)\)", task.prompt)
        number = re.search(r"\d+", task.prompt)
        assert argument is not None
        assert number is not None
        body = SOLUTIONS[name].format(number[0])
        score = task.score(f"```python\ndef solve({argument[1]}):\n    return {body}\n```")
        assert score is not None
        assert score.total == 1.0, task.prompt
    assert tried == set(SOLUTIONS)
