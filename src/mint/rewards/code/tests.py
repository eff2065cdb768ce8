"""Tests for model code: inputs and expected outputs."""

import ast
import builtins
import symtable
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
        try:
            encode([list(self.args), dict(self.kwargs), self.expected])
        except Unsupported as error:
            said = f"A CallTest cannot hold this value: {error}. Write the test as an AssertTest."
            raise Unsupported(said) from None

    def message(self) -> dict[str, Any]:
        """Return the test as it is sent to the checker."""
        return {**vars(self), "args": list(self.args), "kwargs": dict(self.kwargs)}


@dataclass(frozen=True)
class AssertTest:
    """Python statements that must not raise, such as ``assert add(2, 3) == 5``.

    They run in a sandbox of their own, where the program's functions are proxies.
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
    module.body += [
        ast.FunctionDef(
            name=f"test_{index}",
            args=ast.arguments([], [], None, [], [], None, []),
            body=ast.parse(test.code).body or [ast.Pass()],
            decorator_list=[],
        )
        for index, test in enumerate(tests)
    ]
    source = ast.unparse(ast.fix_missing_locations(module))
    table = symtable.symtable(source, "asserts.py", "exec")
    bound = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    # The tests decide what the program may define: it cannot replace sorted or abs in them.
    return source, sorted(_globals(table) - bound - set(dir(builtins)))


def _globals(scope: symtable.SymbolTable) -> set[str]:
    """Return the global names that are used in a scope and in those inside it."""
    symbols = [each for each in scope.get_symbols() if each.is_global() and each.is_referenced()]
    return {each.get_name() for each in symbols}.union(*map(_globals, scope.get_children()))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
