"""Tests for model code: inputs and expected outputs."""

import ast
import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from mint.rewards.code.inside.wire import Unsupported, encode


@dataclass(frozen=True)
class StdioTest:
    """The program reads ``stdin`` and must print ``stdout``; trailing white space is ignored."""

    stdin: str
    stdout: str

    def accepts(self, printed: bytes) -> bool:
        """Return whether the program printed what it must."""
        return _lines(printed.decode(errors="replace")) == _lines(self.stdout)


@dataclass(frozen=True)
class CallTest:
    """``function(*args, **kwargs)`` must return ``expected``: plain values on both sides.

    Lists and tuples count as equal; floats may differ by ``tolerance``, relative or absolute.
    """

    function: str
    args: Sequence[Any] = ()
    expected: Any = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-9

    def __post_init__(self) -> None:
        encode([list(self.args), dict(self.kwargs), self.expected], _not_plain)

    def message(self) -> dict[str, Any]:
        """Return the test as it is sent to the checker."""
        return {**vars(self), "args": list(self.args), "kwargs": dict(self.kwargs)}


@dataclass(frozen=True)
class AssertTest:
    """Python statements that must not raise, such as ``assert add(2, 3) == 5``.

    They run in a sandbox of their own, where the program's functions are stand-ins.
    """

    code: str

    def __post_init__(self) -> None:
        try:
            ast.parse(self.code)
        except SyntaxError as error:
            raise ValueError(f"This test is not Python: {self.code!r} ({error.msg}).") from None


CodeTest = StdioTest | CallTest | AssertTest


def read_test(data: CodeTest | str | Mapping[str, Any]) -> CodeTest:
    """Read a test from a dataset: statements, or a mapping with the fields of one of the kinds.

    >>> read_test("assert add(2, 3) == 5")
    AssertTest(code='assert add(2, 3) == 5')
    >>> read_test({"stdin": "2 3", "stdout": "5"})
    StdioTest(stdin='2 3', stdout='5')
    """
    if isinstance(data, str):
        return AssertTest(data)
    if isinstance(data, StdioTest | CallTest | AssertTest):
        return data
    for kind, required in ((StdioTest, "stdout"), (CallTest, "function"), (AssertTest, "code")):
        if required in data:
            return kind(**data)
    raise ValueError(
        f"A test needs 'stdout' (with 'stdin'), 'function' (with 'args' and 'expected') or 'code'; "
        f"this one has {', '.join(map(str, data)) or 'nothing'}."
    )


@lru_cache(maxsize=256)
def assert_module(tests: tuple[AssertTest, ...], setup: str = "") -> tuple[str, list[str]]:
    """Return one module with a function per test, and the names that the program must define.

    >>> assert_module((AssertTest("assert add(2, 3) == 5"),))[1]
    ['add']
    """
    module = ast.parse(setup)
    functions = [
        ast.FunctionDef(
            name=f"test_{index}",
            args=ast.arguments([], [], None, [], [], None, []),
            body=ast.parse(test.code).body or [ast.Pass()],
            decorator_list=[],
        )
        for index, test in enumerate(tests)
    ]
    names = sorted(set().union(*(_names_needed(f, module) for f in functions)) if functions else [])
    module.body += functions
    return ast.unparse(ast.fix_missing_locations(module)), names


def _names_needed(test: ast.FunctionDef, setup: ast.Module) -> set[str]:
    """Return the names that are used, but neither built in nor bound by the test or the setup.

    The tests decide what the program may define: it cannot replace ``sorted`` or ``abs`` in them.
    """
    used, bound = set[str](), set[str]()
    for node in [*ast.walk(test), *ast.walk(setup)]:
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return used - bound - set(dir(builtins))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _not_plain(value: Any) -> int:
    raise Unsupported(
        f"A CallTest can only hold plain values, not {type(value).__name__}. "
        "Write the test as an AssertTest."
    )
