"""Tools: whatever the model calls, and whatever a tool does, the model gets a result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Literal

import pytest

from mint.rl import calculator, parse_tool_calls, run_tools, search_tool, tool
from mint.rl.agents.tools import schemas
from mint.rl.messages.tool_calls import ToolCall


async def fetch(key: str) -> str:
    """Look a key up.

    Only the first paragraph is for the model.
    """
    return {"a": "1"}[key]


def first(name: str) -> str:
    return next(item for item in ("a", "b") if item == name)


def leave() -> None:
    raise SystemExit(3)


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


def unspeakable() -> Unspeakable:
    return Unspeakable()


def endless() -> str:
    return "x" * 1_000_000


def numbers() -> list[int]:
    return [1, 2]


def later() -> Any:
    return fetch("a")


def total(values: list[int], sign: Literal["+", "-"] = "+", scale: float | None = None) -> float:
    return sum(values) * (scale or 1.0) * (1 if sign == "+" else -1)


FUNCTIONS: list[Callable[..., Any]] = [
    *(fetch, first, leave, unspeakable, endless, numbers, later, total)
]
TOOLS = {t.name: t for t in (calculator, search_tool({"x": "mint tea"}), *map(tool, FUNCTIONS))}


def answer(name: str, **arguments: Any) -> str:
    return asyncio.run(run_tools(TOOLS, [ToolCall(name, arguments)]))[0]


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (ToolCall("calculate", {"expression": "2 ** 10"}), "1024"),
        (ToolCall("search", {"query": "tea"}), "x: mint tea"),
        (ToolCall("fetch", {"key": "a"}), "1"),
        (ToolCall("later"), "1"),
        (ToolCall("numbers"), "[1, 2]"),
        (ToolCall("total", {"values": ["1", 2]}), "3.0"),
    ],
)
def test_a_call_is_answered_with_the_result_as_text(call: ToolCall, result: str) -> None:
    assert asyncio.run(run_tools(TOOLS, [call])) == [result]


def write(name: str, content: str, places: list[int], note: str | None = None) -> str:
    """Say what was passed."""
    return repr((name, content, places, note))


UNTYPED = {
    "Qwen3-Coder": ("<function=write>", "<parameter={}>\n{}\n</parameter>", "</function>"),
    "GLM-4.5": (
        "<tool_call>write\n",
        "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>",
        "</tool_call>",
    ),
    "MiniMax-M2": (
        '<minimax:tool_call><invoke name="write">',
        '<parameter name="{}">{}</parameter>',
        "</invoke></minimax:tool_call>",
    ),
}
"""Forms in which nothing tells a string from JSON: before the arguments, each, and after them."""


@pytest.mark.parametrize("form", UNTYPED)
def test_a_string_that_could_be_json_reaches_its_tool_as_it_was_written(form: str) -> None:
    begin, each, end = UNTYPED[form]
    given = {"name": "a.json", "content": '{"a":  [1]}', "places": "[1, 2]", "note": "[]"}
    said = begin + "\n".join(each.format(*pair) for pair in given.items()) + end
    (call,) = parse_tool_calls(said)
    assert call.arguments["places"] == [1, 2]
    wanted = repr(("a.json", '{"a":  [1]}', [1, 2], "[]"))
    assert asyncio.run(run_tools([write], [call])) == [wanted]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (ToolCall("calculate", {"expression": "__import__('os')"}), "only numbers"),
        (ToolCall("calculate", {"expression": "9 ** 9 ** 9"}), "math range error"),
        (ToolCall("calculate", {"expression": "1e999"}), "infinity"),
        (ToolCall("calculate", {"expression": "(-8) ** 0.5"}), "math domain error"),
        (ToolCall("calculate", {"expression": 5}), "expression: Input should be a valid string"),
        (ToolCall("calculate", {"wrong": "1"}), "expression: Missing required argument"),
        (ToolCall("total", {"values": [1], "sign": "*"}), "sign: Input should be '+' or '-'"),
        (ToolCall("fetch", {"key": "b"}), "KeyError: 'b'"),
        (ToolCall("first", {"name": "c"}), "StopIteration"),
        (ToolCall("leave"), "SystemExit: 3"),
        (ToolCall("unspeakable"), "no words"),
        (ToolCall("nothing"), "there is no tool 'nothing'; there are calculate, search"),
        (ToolCall("", error="the call is not JSON"), "the call is not JSON"),
        (ToolCall("fetch", error="the arguments are not JSON"), "the arguments are not JSON"),
    ],
)
def test_a_call_that_cannot_be_carried_out_is_answered_with_the_reason(
    call: ToolCall, reason: str
) -> None:
    (result,) = asyncio.run(run_tools(TOOLS, [call]))
    assert result.startswith("error: ")
    assert reason in result


def test_a_call_is_answered_where_there_are_no_tools() -> None:
    calls = [ToolCall("", error="the call is not JSON"), ToolCall("a")]
    results = asyncio.run(run_tools({}, calls))
    assert results == ["error: the call is not JSON", "error: there is no tool 'a'"]


@pytest.mark.parametrize(
    "tools",
    [
        TOOLS,
        list(TOOLS.values()),
        tuple(TOOLS.values()),
        FUNCTIONS,
        {"numbers": numbers, "total": total},
    ],
    ids=["dict", "list", "tuple", "functions", "functions by name"],
)
def test_tools_are_a_dict_or_a_list_of_tools_or_functions(tools: Any) -> None:
    calls = [ToolCall("numbers"), ToolCall("total", {"values": [1, 2]})]
    assert asyncio.run(run_tools(tools, calls)) == ["[1, 2]", "3.0"]
    named = [schema["function"]["name"] for schema in schemas(tools)]
    assert {"numbers", "total"} <= set(named)


def test_a_tool_has_the_name_of_its_key() -> None:
    tools = {"sum": calculator}
    assert schemas(tools)[0]["function"]["name"] == "sum"
    assert asyncio.run(run_tools(tools, [ToolCall("sum", {"expression": "1+1"})])) == ["2"]


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        (calculator, r"Tools are a list or a dict, as in \[calculate\]"),
        (numbers, r"Tools are a list or a dict, as in \[numbers\]"),
        (["calculate"], "'calculate' is not a tool. Pass a function"),
        ({"a": 1}, "1 is not a tool"),
    ],
)
def test_a_value_that_is_not_a_tool_is_a_clear_error(tools: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        asyncio.run(run_tools(tools, [ToolCall("a")]))


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="Two tools are called 'calculate'"):
        asyncio.run(run_tools([calculator, calculator], []))


def test_a_result_that_is_too_long_says_that_it_was_cut() -> None:
    result = answer("endless")
    assert len(result) == 4000
    assert result.endswith("x ... (cut)")


def test_tools_that_hang_do_not_hold_up_the_others() -> None:
    released = threading.Event()
    hang = tool(released.wait)

    async def crowd() -> str:
        hanging = [asyncio.ensure_future(hang.run(ToolCall("wait"))) for _ in range(40)]
        try:
            return await TOOLS["first"].run(ToolCall("first", {"name": "a"}))
        finally:
            for task in hanging:
                task.cancel()

    try:
        assert asyncio.run(crowd()) == "a"
    finally:
        released.set()


def test_a_tool_is_described_by_its_types_and_the_beginning_of_its_docstring() -> None:
    assert TOOLS["fetch"].schema["function"] == {
        "name": "fetch",
        "description": "Look a key up.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string"}},
            "required": ["key"],
        },
    }
    described = TOOLS["total"].parameters["properties"]
    assert described["values"] == {"type": "array", "items": {"type": "integer"}}
    assert described["sign"]["enum"] == ["+", "-"]
