"""Tools for agents: any function, a calculator, Python in the sandbox, search in documents."""

import ast
import asyncio
import inspect
import math
import operator
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic import TypeAdapter, ValidationError, validate_call

from mint.rewards import Limits, Sandbox
from mint.rl.messages.tool_calls import ToolCall
from mint.rl.rollouts.failures import note
from mint.rl.runtime import threads

_LONGEST = 4000
_CUT = " ... (cut)"


class ToolError(Exception):
    """An error message for the model about a call that failed."""


@dataclass(frozen=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., Any]

    @property
    def schema(self) -> dict[str, Any]:
        """The description that a chat template shows to the model."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}

    async def run(self, call: ToolCall) -> str:
        """Return the result of a call, or what was wrong with it, as text for the model."""
        if call.error:
            return f"error: {call.error}"
        texts = {name: text for name, text in call.texts.items() if self._takes_text(name)}
        function = partial(self.function, **{**call.arguments, **texts})
        try:
            return _shortened(str(await threads.call(function)))
        except ToolError as error:
            reason = str(error)
        except ValidationError as error:  # invalid arguments
            found = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            reason = "; ".join(found)
        except (Exception, SystemExit) as error:
            note(error)
            reason = f"{type(error).__name__}: {error}"
        return _shortened(f"error: {reason}")

    def _takes_text(self, name: str) -> bool:
        """Return whether an argument is a string and cannot be a list or an object."""
        described = self.parameters.get("properties", {}).get(name, {})
        kinds = {each.get("type") for each in (described, *described.get("anyOf", ()))}
        return "string" in kinds and not kinds & {"array", "object"}


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - len(_CUT)] + _CUT


def tool(function: Callable[..., Any]) -> Tool:
    """Turn a function into a tool, described by its name, docstring and type annotations.

    Arguments of other types are converted where possible, such as "3" to 3, and refused otherwise.

    >>> def add(a: int, b: int) -> int:
    ...     "Add two numbers."
    ...     return a + b
    >>> tool(add).parameters["properties"]
    {'a': {'type': 'integer'}, 'b': {'type': 'integer'}}
    >>> asyncio.run(tool(add).run(ToolCall("add", {"a": "1", "b": "x"})))
    'error: b: Input should be a valid integer, unable to parse string as an integer'
    """
    parameters = TypeAdapter(function).json_schema()  # type: ignore[arg-type]
    parameters.pop("additionalProperties", None)
    for described in parameters["properties"].values():
        del described["title"]
    summary = (inspect.getdoc(function) or "").partition("\n\n")[0]
    return Tool(function.__name__, summary, parameters, validate_call(function))


Tools = Mapping[str, Any] | Iterable[Any]
"""Tools as a list or as a dict by name: each a :class:`Tool`, a function, or a schema."""


def tools_by_name(tools: Tools) -> dict[str, Tool]:
    """Return tools by their names. In a dict, the key is the name.

    >>> list(tools_by_name([calculator])), list(tools_by_name({"sum": calculator}))
    (['calculate'], ['sum'])
    """
    if isinstance(tools, Mapping):
        return {name: replace(_as_tool(each), name=name) for name, each in tools.items()}
    found: dict[str, Tool] = {}
    for each in map(_as_tool, _listed(tools)):
        if each.name in found:
            raise ValueError(f"Two tools are called {each.name!r}. Name them: {{'a': …, 'b': …}}.")
        found[each.name] = each
    return found


def _listed(tools: Any) -> Iterable[Any]:
    if isinstance(tools, Tool) or not isinstance(tools, Iterable):
        name = getattr(tools, "name", None) or getattr(tools, "__name__", repr(tools))
        raise TypeError(f"Tools are a list or a dict, as in [{name}].")
    return tools


def _as_tool(each: Any) -> Tool:
    if isinstance(each, Tool):
        return each
    if callable(each):
        return tool(each)
    raise TypeError(
        f"{each!r} is not a tool. Pass a function, or the result of mint.rl.tool(function)."
    )


def schemas(tools: Tools) -> list[dict[str, Any]]:
    """Return the JSON schemas of tools, as chat templates expect them; schemas are kept.

    >>> [schema["function"]["name"] for schema in schemas([calculator])]
    ['calculate']
    """
    given = list(_listed(tools))
    if given and all(isinstance(each, dict) for each in given):
        return given
    return [each.schema for each in tools_by_name(tools).values()]


async def run_tools(tools: Tools, calls: Sequence[ToolCall]) -> list[str]:
    """Carry out calls concurrently, and return their results."""
    known = tools_by_name(tools)

    async def one(call: ToolCall) -> str:
        if call.error:
            return f"error: {call.error}"
        if call.name not in known:
            there = f"; there are {', '.join(known)}" if known else ""
            return f"error: there is no tool {call.name!r}{there}"
        return await known[call.name].run(call)

    return list(await asyncio.gather(*(one(call) for call in calls)))


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def calculate(expression: str) -> str:
    """Evaluate an arithmetic expression of numbers, + - * / // % ** and brackets.

    >>> calculate("(2 + 3) * 4"), calculate("1 / 4")
    ('20', '0.25')
    """
    if len(expression) > 500:
        raise ToolError("the expression is too long")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
    except (SyntaxError, RecursionError, MemoryError):
        raise ToolError(f"{expression!r} is not an arithmetic expression") from None
    except (ArithmeticError, ValueError) as error:
        raise ToolError(str(error)) from None


def _value(node: ast.AST) -> float:
    match node:
        case ast.Constant(value=int() | float() as value) if type(value) is not bool:
            return value
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return float(_OPERATORS[type(op)](_value(operand)))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return float(math.pow(_value(left), _value(right)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            found = _OPERATORS[type(op)](_value(left), _value(right))
            if abs(found) > 1e30:
                raise OverflowError("the result is too large")
            return float(found)
        case _:
            raise ToolError("only numbers, + - * / // % ** and brackets are supported")


calculator = tool(calculate)


def python_tool(limits: Limits | None = None) -> Tool:
    """Python in the sandbox: what the program prints is the result."""
    sandbox = Sandbox(limits)
    places = threading.Semaphore(os.cpu_count() or 1)  # more would reach their time limits

    def python(code: str) -> str:
        """Run a Python program and see what it prints."""
        with places:
            ran = sandbox.run(code)
        if ran.ended_well:
            return str(ran.stdout.decode(errors="replace"))
        raise ToolError(ran.stopped or ran.stderr.decode(errors="replace")[-500:])

    return tool(python)


def search_tool(texts: Mapping[str, str], shown: int = 3) -> Tool:
    """Return a tool that searches texts on this machine by their words (BM25).

    >>> search = search_tool({"cats": "Cats purr and sleep.", "dogs": "Dogs bark at cats."})
    >>> search.function(query="who does bark").splitlines()[0]
    'dogs: Dogs bark at cats.'
    """
    counts = {name: Counter(_words(text)) for name, text in texts.items()}
    holders = Counter(word for words in counts.values() for word in words)
    mean = max(1.0, sum(words.total() for words in counts.values()) / max(1, len(texts)))

    def score(name: str, terms: set[str]) -> float:
        words, found = counts[name], 0.0
        length = words.total() / mean
        for term in terms & words.keys():
            rarity = math.log(1 + (len(texts) - holders[term] + 0.5) / (holders[term] + 0.5))
            found += rarity * words[term] * 2.5 / (words[term] + 1.5 * (0.25 + 0.75 * length))
        return found

    def search(query: str) -> str:
        """Find the documents that fit a query best."""
        terms = set(_words(query))
        scores = {name: score(name, terms) for name in texts}
        ranked = sorted(texts, key=lambda name: (-scores[name], name))
        best = [name for name in ranked[:shown] if scores[name] > 0]
        return "\n".join(f"{name}: {texts[name]}" for name in best) or "nothing found"

    return tool(search)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
