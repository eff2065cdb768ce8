"""Tasks that need no download: arithmetic, countdown, small programs, and reasoning-gym's."""

import ast
import json
import operator
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from importlib import import_module
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from mint.rewards.answers.checks import check_answer
from mint.rewards.answers.extraction import marked_answer
from mint.rewards.code.reward import CodeReward
from mint.rewards.code.tests import CallTest
from mint.rewards.reward import FunctionReward, Reward, as_reward
from mint.rewards.score import Sample, Score

_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
_TREE: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_LONGEST_EXPRESSION = 500
_CLASSICS = Path(__file__).parent / "code/classics.jsonl"


@dataclass(frozen=True)
class Task:
    """A prompt, its metadata, and the reward."""

    prompt: str
    reward: Reward
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def score(self, response: str) -> Score | None:
        """Return the score of a response to this task."""
        return self.reward(response, self.prompt, self.metadata)

    def sample(self, response: str) -> Sample:
        """Return a response to this task, ready for a scorer."""
        return Sample(response, self.prompt, self.metadata)


def arithmetic_tasks(
    count: int, seed: int = 0, digits: int = 2, operations: str = "+-*"
) -> list[Task]:
    """Return questions such as "What is 12 + 34?" with their answers.

    >>> task = arithmetic_tasks(1, seed=1)[0]
    >>> task.score(f"The answer is {task.metadata['answer']}.").total
    1.0
    """
    unknown = set(operations) - _OPERATIONS.keys()
    if unknown or not operations or digits < 1:
        raise ValueError(f"arithmetic_tasks() knows {''.join(_OPERATIONS)}, not {operations!r}.")
    reward, draw = as_reward(check_answer), random.Random(seed)
    tasks = []
    for _ in range(count):
        a, b = draw.randrange(10**digits), draw.randrange(10**digits)
        sign = draw.choice(operations)
        answer = str(_OPERATIONS[sign](a, b))
        metadata = {"answer": answer, "task": "arithmetic"}
        tasks.append(Task(f"What is {a} {sign} {b}?", reward, metadata))
    return tasks


def countdown_tasks(count: int, seed: int = 0, numbers: int = 4, highest: int = 50) -> list[Task]:
    """Return puzzles: reach a target using each given number at most once. All can be solved.

    >>> task = countdown_tasks(1)[0]
    >>> task.score("<answer>1 + 1</answer>").total
    0.0
    """
    reward, draw = as_reward(countdown_reward), random.Random(seed)
    tasks: list[Task] = []
    while len(tasks) < count:
        given = [draw.randint(1, highest) for _ in range(numbers)]
        target = _reachable(given, draw)
        if target is None:
            continue
        prompt = (
            f"Use the numbers {', '.join(map(str, given))}, each at most once, with + - * / and "
            f"brackets, to make {target}. Answer with the expression in <answer></answer>."
        )
        metadata = {"numbers": given, "target": target, "task": "countdown"}
        tasks.append(Task(prompt, reward, metadata))
    return tasks


def countdown_reward(response: str, numbers: Sequence[int], target: int) -> float:
    """1.0 if an expression uses only the given numbers and makes the target, 0.1 if it misses it.

    >>> countdown_reward("<answer>(3 + 4) * 6</answer>", [3, 4, 6, 9], 42)
    1.0
    >>> countdown_reward("<answer>3 + 4</answer>", [3, 4, 6, 9], 42)
    0.1
    >>> countdown_reward("<answer>42</answer>", [3, 4, 6, 9], 42)
    0.0
    """
    expression = marked_answer(response or "") or ""
    expression = expression.rpartition("=")[0] or expression
    try:
        value, used = _value(expression.strip().replace("×", "*").replace("÷", "/"))
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
        return 0.0
    if used - Counter(numbers):
        return 0.0
    return 1.0 if value == target else 0.1


def _value(expression: str) -> tuple[Fraction, Counter[int]]:
    """Return the exact value of an expression, and the numbers it uses."""
    if len(expression) > _LONGEST_EXPRESSION or not re.fullmatch(r"[-+*/() 0-9]+", expression):
        raise ValueError("not an expression of numbers")
    used: Counter[int] = Counter()

    def walk(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 10**9:
            used[node.value] += 1
            return Fraction(node.value)
        if isinstance(node, ast.BinOp) and type(node.op) in _TREE:
            return _TREE[type(node.op)](walk(node.left), walk(node.right))
        raise ValueError("not an expression of numbers")

    return walk(ast.parse(expression, mode="eval").body), used


def _reachable(given: Sequence[int], draw: random.Random) -> int | None:
    """Return a target made from some of the numbers, or None if it is not positive or was given."""
    chosen = draw.sample(list(given), draw.randint(2, len(given)))
    value = chosen[0]
    for number in chosen[1:]:
        value = _OPERATIONS[draw.choice("+-*")](value, number)
    return value if 0 < value <= 1000 and value not in given else None


def code_tasks(count: int | None = None, seed: int = 0) -> list[Task]:
    """Return small programs to write; the reward runs their tests in the sandbox.

    >>> task = code_tasks(1)[0]
    >>> task.score(f"```python\\n{task.metadata['solution']}```").total
    1.0
    """
    reward, draw = CodeReward(), random.Random(seed)
    programs = [json.loads(line) for line in _CLASSICS.read_text().splitlines()]
    draw.shuffle(programs)
    chosen = islice(cycle(programs), len(programs) if count is None else count)
    return [Task(each["prompt"], reward, {"task": "code", **each["metadata"]}) for each in chosen]


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
        prompt = f"Write a Python function solve({self.argument}) that returns {wanted}."
        tests = [CallTest("solve", (given,), self.meaning(given, a, b)) for given in self.inputs]
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
    reward, draw = CodeReward(), random.Random(seed)
    return [draw.choice(_PROBLEMS).task(reward, draw) for _ in range(count)]


class GymUnavailable(RuntimeError):
    """reasoning-gym is not installed, or has no such task."""


def reasoning_gym(name: str, count: int = 100, seed: int = 0, **options: Any) -> list[Task]:
    """Return ``count`` tasks of one of reasoning-gym's generators, with its own scorer.

    The answer is what the last ``<answer>`` tag or box holds, or else the whole response.

    >>> task = reasoning_gym("chain_sum", count=1, seed=1)[0]
    >>> task.score(f"<answer>{task.metadata['answer']}</answer>").total
    1.0
    """
    try:
        gym: Any = import_module("reasoning_gym")
    except ModuleNotFoundError:
        raise GymUnavailable(
            "reasoning-gym is not installed. Type: pip install reasoning-gym"
        ) from None
    try:
        dataset = gym.create_dataset(name, size=count, seed=seed, **options)
    except ValueError as error:
        raise GymUnavailable(
            f"reasoning-gym cannot create {name!r}: {error}. Its tasks are listed in "
            "reasoning_gym.factory.DATASETS."
        ) from None

    def score(response: str, entry: Any) -> Score:
        content = marked_answer(response)
        answer = (response if content is None else content).strip()
        return Score(float(dataset.score_answer(answer=answer, entry=entry)))

    reward = FunctionReward(score, name=f"reasoning_gym:{name}")
    return [
        Task(
            entry["question"],
            reward,
            {"answer": entry["answer"], "entry": entry, "task": f"reasoning_gym:{name}"},
        )
        for entry in dataset
    ]
