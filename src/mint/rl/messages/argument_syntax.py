"""Parse the notations of calls and arguments: JSON, Python, and objects without quotes."""

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

NOT_A_CALL = (ValueError, SyntaxError, RecursionError, MemoryError)
"""What the functions of this module raise for text that is not in their notation."""
_QUOTE = re.compile(r'<escape>|<\|"\|>')
_KEY = re.compile(r"([{,]\s*)([A-Za-z_][\w.-]*)\s*:")
_CONSTANTS = {"true": True, "false": False, "null": None}


def json_values(text: str, whole: bool = True) -> list[Any]:
    """Return the JSON values of a text, with at most semicolons between; lists are unpacked.

    Unless the ``whole`` text is to be JSON, what follows the first value is ignored.

    >>> json_values('{"a": 1}; {"b": 2}'), json_values('[{"a": 1}, {"b": 2}]')
    ([{'a': 1}, {'b': 2}], [{'a': 1}, {'b': 2}])
    """
    found: list[Any] = []
    at, text = 0, text.strip()
    if not text:
        raise ValueError("there is nothing")
    while at < len(text):
        value, at = json.JSONDecoder().raw_decode(text, at)
        found += value if isinstance(value, list) else [value]
        at += len(text[at:]) - len(text[at:].lstrip("; \n"))
        if not whole:
            break
    return found


def list_or_object(text: str, scalars: bool = False) -> Any:
    """Return the list or object that a text is in JSON, else the text itself.

    >>> list_or_object("[1]"), list_or_object("1"), list_or_object("1", scalars=True)
    ([1], '1', 1)
    """
    try:
        value = json.loads(text)
    except NOT_A_CALL:
        return text
    return value if scalars or isinstance(value, list | dict) else text


def unquoted_object(text: str) -> Any:
    """Return the object that is written with bare keys, and with marks as quotes.

    >>> unquoted_object('{city:<escape>New "York"<escape>,days:2,near:[true]}')
    {'city': 'New "York"', 'days': 2, 'near': [True]}
    """
    pieces = _QUOTE.split(text)
    quoted = [json.dumps(p) if i % 2 else _KEY.sub(r'\1"\2":', p) for i, p in enumerate(pieces)]
    return json.loads("".join(quoted))


def python_calls(text: str) -> Iterator[tuple[str, dict[str, Any], str | None]]:
    """Yield name, arguments and error of calls in Python's notation: one per line, or a list.

    >>> list(python_calls('[weather(city="Rome", days=2), now()]'))
    [('weather', {'city': 'Rome', 'days': 2}, None), ('now', {}, None)]
    """
    for statement in ast.parse(text.strip()).body:
        value = statement.value if isinstance(statement, ast.Expr) else None
        for node in value.elts if isinstance(value, ast.List | ast.Tuple) else [value]:
            yield _python_call(node)


def _python_call(node: ast.AST | None) -> tuple[str, dict[str, Any], str | None]:
    match node:
        case ast.Call(func=ast.Name("print"), args=[ast.Call() as printed], keywords=[]):
            return _python_call(printed)
        case ast.Call(func=ast.Name() | ast.Attribute() as function):
            name = ast.unparse(function)
        case _:
            raise ValueError("only calls of functions are read")
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        return name, {}, "each argument needs its name, as in f(a=1)"
    try:
        values = ((str(k.arg), _JsonConstants().visit(k.value)) for k in node.keywords)
        return name, {key: ast.literal_eval(value) for key, value in values}, None
    except NOT_A_CALL:
        return name, {}, "the arguments must be written out: strings, numbers, lists, objects"


class _JsonConstants(ast.NodeTransformer):
    """Replaces the names ``true``, ``false`` and ``null`` by their values."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_CONSTANTS[node.id]) if node.id in _CONSTANTS else node
