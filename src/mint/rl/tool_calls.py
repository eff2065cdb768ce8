"""Tool calls in the text of a reply: the forms that open models are trained to write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_LISTED = re.compile(r"\[TOOL_CALLS\]\s*(\[.*)", re.DOTALL)
_PYTHON_TAG = "<|python_tag|>"


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool. One that could not be read has an error in place of a name."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


def parse_tool_calls(text: str) -> list[ToolCall]:
    """The tool calls of a reply, in order.

    Understands ``<tool_call>{…}</tool_call>`` (Qwen, Hermes, SmolLM), ``[TOOL_CALLS] […]``
    (Mistral) and a reply that is one JSON object with a name (Llama).

    >>> parse_tool_calls('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    [ToolCall(name='add', arguments={'a': 1}, error=None)]
    >>> parse_tool_calls("The answer is 4.")
    []
    """
    tagged = _TAGGED.findall(text)
    if tagged:
        return [_read(piece) for piece in tagged]
    if listed := _LISTED.search(text):
        return list(_read_list(listed[1]))
    stripped = text.strip().removeprefix(_PYTHON_TAG).strip()
    if stripped.startswith("{") and stripped.endswith("}") and '"name"' in stripped:
        return [_read(stripped)]
    return []


def _read_list(text: str) -> Iterator[ToolCall]:
    try:
        calls, _ = json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError as error:
        yield ToolCall("", error=f"the list of calls is not JSON: {error}")
        return
    for call in calls:
        yield _call(call)


def _read(piece: str) -> ToolCall:
    try:
        return _call(json.loads(piece.strip()))
    except json.JSONDecodeError as error:
        return ToolCall("", error=f"the call is not JSON: {error}")


def _call(value: Any) -> ToolCall:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return ToolCall("", error="a call needs a name")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            return ToolCall(value["name"], error="the arguments are not JSON")
    if not isinstance(arguments, dict):
        return ToolCall(value["name"], error="the arguments are not an object")
    return ToolCall(value["name"], arguments)
