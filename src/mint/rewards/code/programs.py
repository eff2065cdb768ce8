"""Generate hundreds of small programming problems with tests from templates."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mint.rewards.code.tests import CallTest
from mint.rewards.tasks import Task

FUNCTION = "solve"
"""The function that every problem asks for."""

_NUMBERS = (0, 1, 4, 7, 12, 25, 60, -3)
_LISTS: tuple[list[int], ...] = (
    [3, 1, 2],
    [10, 4, 25, 8],
    [5],
    [],
    [7, 7, 2, 30, 12],
    [1, 2, 3, 4, 5, 6],
)
_TEXTS = ("banana", "Hello world", "a", "tea and rice", "mississippi", "onion soup")


@dataclass(frozen=True)
class _Problem:
    """A template with two parameters, its solution, and the inputs of its tests."""

    argument: str
    sentence: str
    meaning: Callable[[Any, Any, Any], Any]
    inputs: Sequence[Any]
    letters: bool = False

    def task(self, reward: Any, draw: random.Random) -> Task:
        a, b = (
            draw.sample("aeionst", 2) if self.letters else (draw.randint(2, 9), draw.randint(2, 60))
        )
        wanted = self.sentence.format(a=a, b=b)
        prompt = f"Write a Python function {FUNCTION}({self.argument}) that returns {wanted}."
        tests = [CallTest(FUNCTION, (given,), self.meaning(given, a, b)) for given in self.inputs]
        return Task(prompt, reward, {"tests": tests, "task": "programs"})


_of_number = partial(_Problem, "x", inputs=_NUMBERS)
_of_list = partial(_Problem, "items", inputs=_LISTS)
_of_text = partial(_Problem, "text", inputs=_TEXTS)
_of_letters = partial(_of_text, letters=True)
_PROBLEMS = (
    _of_number("x times {a}, plus {b}", lambda x, a, b: x * a + b),
    _of_number("{b} minus x", lambda x, a, b: b - x),
    _of_number("the square of x, plus {b}", lambda x, a, b: x * x + b),
    _of_number("the remainder of x divided by {a}", lambda x, a, b: x % a),
    _of_number("the larger of x and {b}", lambda x, a, b: max(x, b)),
    _of_number("True if x is greater than {b}, else False", lambda x, a, b: x > b),
    _of_number("True if x is divisible by {a}, else False", lambda x, a, b: x % a == 0),
    _of_list("a list of each number in items times {b}", lambda x, a, b: [i * b for i in x]),
    _of_list("the sum of items, plus {b}", lambda x, a, b: sum(x) + b),
    _of_list("the length of items times {b}", lambda x, a, b: len(x) * b),
    _of_list("the numbers in items greater than {a}", lambda x, a, b: [i for i in x if i > a]),
    _of_list("how many numbers in items are below {b}", lambda x, a, b: sum(i < b for i in x)),
    _of_text("text repeated {a} times", lambda x, a, b: x * a),
    _of_text("the first {a} characters of text", lambda x, a, b: x[:a]),
    _of_text("the last {a} characters of text", lambda x, a, b: x[-a:]),
    _of_letters("how often {a!r} occurs in text", lambda x, a, b: x.count(a)),
    _of_letters("text with {b!r} for every {a!r}", lambda x, a, b: x.replace(a, b)),
)


def program_tasks(count: int, seed: int = 0) -> list[Task]:
    """Return small programs to write, each with tests that run in the sandbox.

    >>> program_tasks(1, seed=5)[0].prompt
    'Write a Python function solve(items) that returns the sum of items, plus 52.'
    """
    from mint.rewards.code.reward import CodeReward

    reward, draw = CodeReward(), random.Random(seed)
    return [draw.choice(_PROBLEMS).task(reward, draw) for _ in range(count)]
