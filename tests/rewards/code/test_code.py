"""Programs run against tests in the sandbox."""

from __future__ import annotations

from typing import Any

import pytest

from mint.rewards import (
    AssertTest,
    CallTest,
    CodeReward,
    Limits,
    RewardFailed,
    Sample,
    StdioTest,
    extract_code,
)
from mint.rewards.code.tests import read_test

pytestmark = pytest.mark.sandbox

STACK = """
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item); return self
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
def numbers(n):
    for i in range(n): yield i
def divide(a, b): return a / b
def plain(): return [1, 2.5, 'x', None, True, (1,), {1, 2}, {'k': b'v'}, 2**100, 1j]
LIMIT = 7
"""


def passed(code: str, *tests: Any, limits: Limits | None = None, setup: str = "") -> list[bool]:
    reward = CodeReward(limits=limits, setup=setup)
    return [result.passed for result in reward.run(code, [read_test(test) for test in tests])]


def test_partial_credit_is_the_share_of_tests_passed() -> None:
    tests = ["assert f(1) == 1", "assert f(2) == 4", "assert f(3) == 9", "assert f(0) == 0"]
    response = "```python\ndef f(x): return x\n```"
    score = CodeReward(tests=tests)(response)
    assert score is not None
    assert score.total == 0.5
    assert score.components == {"tests": 4, "passed": 2, "share": 0.5}
    assert float(CodeReward(tests=tests, partial_credit=False)(response) or 0) == 0.0


def test_stdin_and_stdout() -> None:
    code = "n = int(input())\nfor i in range(n): print(i, end=' ')\nprint()"
    assert passed(
        code, StdioTest("3", "0 1 2\n"), StdioTest("2", "0 1"), StdioTest("2", "1 0")
    ) == [*(True, True, False)]


def test_a_program_that_prints_the_answer_and_then_fails_has_not_passed() -> None:
    assert passed("print(5)\n1/0", StdioTest("", "5")) == [False]


def test_function_calls_compare_plain_values() -> None:
    code = "def f(x, scale=1): return (x * scale, [x])"
    assert passed(
        code,
        CallTest("f", [2], (2, [2])),
        CallTest("f", [2], [2, [2]]),
        CallTest("f", [2], expected=[6, [2]], kwargs={"scale": 3}),
        CallTest("f", [0.1 + 0.2], [0.3, [0.3]]),
        CallTest("f", [2], [2, [3]]),
        CallTest("g", [2], 2),
    ) == [True, True, True, True, False, False]


def test_asserts_may_use_classes_generators_exceptions_and_helpers() -> None:
    assert (
        passed(
            STACK,
            "s = Stack().push(1).push(2)\nassert s.pop() == 2\nassert [*s] == [1] and len(s) == 1",
            "assert list(numbers(3)) == [0, 1, 2] and sum(numbers(5)) == 10",
            "try:\n    divide(1, 0)\n    assert False\nexcept ZeroDivisionError:\n    pass",
            "assert math.isclose(divide(1, 3), 1 / 3)",
            "assert plain() == [1, 2.5, 'x', None, True, (1,), {1, 2}, {'k': b'v'}, 2**100, 1j]",
            "assert LIMIT == 7",
            "assert sorted(numbers(3), key=lambda n: -n) == [2, 1, 0]",
            setup="import math",
        )
        == [True] * 7
    )


def test_each_test_has_its_own_time() -> None:
    code = "def f(x):\n    while x == 1: pass\n    return x"
    limits = Limits(wall_seconds=1.0)
    assert passed(
        code, "assert f(0) == 0", "assert f(1) == 1", "assert f(2) == 2", limits=limits
    ) == [True, False, True]


def test_a_program_that_does_not_load_passes_nothing() -> None:
    for code in ("def f(:", "1/0", "import numpy", "", "while True: pass"):
        assert passed(code, "assert f(0) == 0", limits=Limits(wall_seconds=1.0)) == [False]


def test_many_run_in_parallel_each_with_its_own_tests() -> None:
    samples = [
        Sample(f"```\nprint({n})\n```", "", {"tests": [{"stdin": "", "stdout": str(n % 5)}]})
        for n in range(10)
    ]
    totals = [float(score or 0) for score in CodeReward().score(samples)]
    assert totals == [1.0] * 5 + [0.0] * 5


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("```python\na\n```", "a\n"),
        ("```\na\n```", "a\n"),
        ("```python\na\n```\nor better:\n```python\nb\n```\ndone", "b\n"),
        ("```python\na\n```\n```bash\nls\n```", "a\n"),
        ("```python\na\n```\nIt prints:\n```\n5\n```", "a\n"),
        ("````python\na\n````", "a\n"),
        ("```python\nunfinished", "unfinished"),
        ("plain = 1", "plain = 1"),
        (None, ""),
    ],
)
def test_the_last_python_block_is_the_program(response: str | None, code: str) -> None:
    assert extract_code(response) == code


def test_tests_that_cannot_be_run_are_errors_and_not_zeros() -> None:
    program = "def f(x): return x"
    for tests, hint in (
        ([], "no tests"),
        (["assert f(lambda x: x)"], "cannot be passed"),
    ):
        with pytest.raises(RewardFailed, match=hint):
            CodeReward(tests=tests)(program)
    with pytest.raises(RewardFailed, match="could not be started"):
        CodeReward(tests=["assert f(1) == 1"], setup="import no_such_module")(program)
    with pytest.raises(ValueError, match="is not Python"):
        AssertTest("assert f(")
    with pytest.raises(ValueError, match="A test needs"):
        read_test({"input": 1})


def test_limits_check_themselves() -> None:
    with pytest.raises(ValueError, match=r"Limits.memory_mb must be positive"):
        Limits(memory_mb=0)
