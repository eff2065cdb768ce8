"""Tool calls in the text of a reply: the forms that open models are trained to write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_LISTED = re.compile(r"\[TOOL_CALLS\]\s*([\[{].*)", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*?)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_PYTHON_TAG = "<|python_tag|>"
_BEGUN = re.compile(r'\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"(?:arguments|parameters)"')
_NAMED = [  # a name, then its arguments: newer Mistral, DeepSeek (two versions), gpt-oss
    re.compile(
        r"\[TOOL_CALLS\]\s*([\w.-]+)(?:\[CALL_ID\]\w+)?\[ARGS\](.*?)(?=\[TOOL_CALLS\]|\Z)",
        re.DOTALL,
    ),
    re.compile(
        r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?([\w.-]+)(?:<｜tool▁sep｜>|\s*```json)"
        r"(.*?)(?:```\s*)?(?:<｜tool▁call▁end｜>|\Z)",
        re.DOTALL,
    ),
    re.compile(
        r"to=functions\.([\w.-]+)(?:\s|\w|<\|channel\|>|<\|constrain\|>)*<\|message\|>"
        r"(.*?)(?:<\|call\|>|\Z)",
        re.DOTALL,
    ),
]


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool. One that could not be read says why, and may have no name."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    id: str | None = None  # that the model itself gave the call


def parse_tool_calls(text: str) -> list[ToolCall]:
    """The tool calls of a reply, in order. What the model only thinks about is no call.

    Understands ``<tool_call>{…}</tool_call>`` (Qwen, Hermes, SmolLM) and
    ``<tool_call><function=…>…</tool_call>`` (newer Qwen, Nemotron), ``[TOOL_CALLS] […]`` (Mistral),
    a reply that is nothing but JSON objects with a name and arguments (Llama), and the marks of
    DeepSeek and gpt-oss.

    >>> calls = parse_tool_calls('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    >>> calls[0].name, calls[0].arguments
    ('add', {'a': 1})
    >>> parse_tool_calls("The answer is 4.")
    []
    """
    said = _THOUGHT.sub("", text).rpartition("</think>")[2]
    if tagged := _TAGGED.findall(said):
        return [_read(piece) for piece in tagged]
    if listed := _LISTED.search(said):
        return list(_read_list(listed[1]))
    for form in _NAMED:
        if named := form.findall(said):
            return [_call({"name": name, "arguments": given}) for name, given in named]
    return _bare(said.strip())


def _bare(text: str) -> list[ToolCall]:
    """The calls of a reply that is nothing else. JSON that is an answer, not a call, is left."""
    marked = text.startswith(_PYTHON_TAG)
    objects = text.removeprefix(_PYTHON_TAG).strip()
    if not objects.startswith("{"):
        return []
    try:
        found = list(_values(objects))
    except (ValueError, RecursionError) as error:
        begun = marked or _BEGUN.match(objects)
        return [ToolCall("", error=f"the call is not JSON: {error}")] if begun else []
    if marked or all({"arguments", "parameters"} & value.keys() for value in found):
        return [_call(value) for value in found]
    return []


def _values(text: str) -> Iterator[dict[str, Any]]:
    """JSON objects one after the other, with nothing but semicolons between them."""
    at = 0
    while at < len(text):
        value, at = json.JSONDecoder().raw_decode(text, at)
        if not isinstance(value, dict):
            raise ValueError("it is not an object")
        yield value
        at += len(text[at:]) - len(text[at:].lstrip("; \n"))


def _read_list(text: str) -> Iterator[ToolCall]:
    try:
        calls, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError) as error:
        yield ToolCall("", error=f"the list of calls is not JSON: {error}")
        return
    for call in calls if isinstance(calls, list) else [calls]:
        yield _call(call)


def _read(piece: str) -> ToolCall:
    if function := _FUNCTION.fullmatch(piece):
        return _call({"name": function[1], "arguments": _parameters(function[2])})
    try:
        return _call(json.loads(piece.strip()))
    except (ValueError, RecursionError) as error:
        return ToolCall("", error=f"the call is not JSON: {error}")


def _parameters(text: str) -> dict[str, Any]:
    """Values are texts; only lists and objects are JSON. A tool's types do the rest."""
    return {name: _list_or_object(value) for name, value in _PARAMETER.findall(text)}


def _list_or_object(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, list | dict) else text


def _call(value: Any) -> ToolCall:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return ToolCall("", error="a call needs a name")
    name, own = value["name"], value.get("id")
    arguments = value.get("arguments", value.get("parameters"))
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            return ToolCall(name, error=f"the arguments are not JSON: {error}")
    if not isinstance(arguments, dict):
        return ToolCall(name, error="the arguments are not an object")
    return ToolCall(name, arguments, id=own if isinstance(own, str) else None)
