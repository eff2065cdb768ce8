"""Check whether instructions were followed, with rules and without a model, from 0 to 1."""

import json
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Literal

from mint.rewards.answers.extraction import last_block
from mint.rewards.shaping.penalties import Trace, count_repeated, tool_calls

_BULLET = re.compile(r"^\s{0,8}(?:[-*•]|\d{1,3}[.)])\s+\S", re.MULTILINE)


def check_length(
    response: str | None,
    min_words: int = 0,
    max_words: int | None = None,
    min_characters: int = 0,
    max_characters: int | None = None,
    max_sentences: int | None = None,
) -> float:
    """1.0 when every given bound holds, else 0.0.

    >>> check_length("three words here", max_words=3), check_length("one", min_words=2)
    (1.0, 0.0)
    """
    text = response or ""
    counts = [
        (len(text.split()), min_words, max_words),
        (len(text), min_characters, max_characters),
        (len(re.findall(r"[.!?。！？](?=\s|$)", text)), 0, max_sentences),
    ]
    return float(all(low <= n and (high is None or n <= high) for n, low, high in counts))


def check_keywords(
    response: str | None, required: Sequence[str] = (), forbidden: Sequence[str] = ()
) -> float:
    """The share of the required words that occur; 0.0 when a forbidden one does.

    >>> check_keywords("a red car", required=["red", "blue"])
    0.5
    >>> check_keywords("a red car", forbidden=["red"])
    0.0
    """
    text = (response or "").casefold()
    if any(_occurs(word, text) for word in forbidden):
        return 0.0
    found = [_occurs(word, text) for word in required]
    return sum(found) / len(found) if found else 1.0


def check_json(response: str | None, schema: Mapping[str, Any] | None = None) -> float:
    r"""1.0 for JSON that follows the schema, 0.5 for JSON that does not, 0.0 for no JSON.

    Either the whole response is JSON, or its last fenced block.

    >>> schema = {"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}}
    >>> check_json('{"x": 1}', schema), check_json('{"x": "1"}', schema), check_json("x: 1", schema)
    (1.0, 0.5, 0.0)
    """
    text = response or ""
    for source in (text, last_block(text, ["json"]) or ""):
        try:
            value = json.loads(source, parse_constant=_refuse_constant)
            break
        except (ValueError, RecursionError):
            continue
    else:
        return 0.0
    if schema is None:
        return 1.0
    jsonschema: Any = import_module("jsonschema")
    try:
        jsonschema.validate(value, dict(schema))
    except (jsonschema.ValidationError, RecursionError, OverflowError):
        return 0.5
    return 1.0


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def check_case(
    response: str | None, case: Literal["upper", "lower", "sentence"] = "lower"
) -> float:
    """1.0 when all letters have the case; with "sentence", each sentence begins with a capital.

    >>> check_case("all small"), check_case("Not small"), check_case("LOUD", "upper")
    (1.0, 0.0, 1.0)
    """
    text = response or ""
    if not any(character.isalpha() for character in text):
        return 0.0
    if case == "upper":
        return float(text == text.upper())
    if case == "lower":
        return float(text == text.lower())
    if case == "sentence":
        starts = re.findall(r"(?:^|[.!?]\s+)([^\W\d_])", text.strip())
        return float(all(start.isupper() for start in starts))
    raise ValueError(f"case must be upper, lower or sentence, not {case!r}.")


def check_structure(
    response: str | None,
    paragraphs: int | None = None,
    bullets: int | None = None,
    lines: int | None = None,
    starts_with: str | None = None,
    ends_with: str | None = None,
    no_commas: bool = False,
) -> float:
    r"""The share of the given formatting rules that hold.

    >>> check_structure("- a\n- b", bullets=2), check_structure("- a\n- b", bullets=2, lines=3)
    (1.0, 0.5)
    """
    text = (response or "").strip()
    counted = [
        (paragraphs, sum(bool(block.strip()) for block in text.split("\n\n"))),
        (bullets, len(_BULLET.findall(text))),
        (lines, sum(bool(line.strip()) for line in text.splitlines())),
    ]
    rules = [count == wanted for wanted, count in counted if wanted is not None]
    if starts_with is not None:
        rules.append(text.startswith(starts_with))
    if ends_with is not None:
        rules.append(text.endswith(ends_with))
    if no_commas:
        rules.append("," not in text and "，" not in text)
    return sum(rules) / len(rules) if rules else 1.0


def check_tool_use(response: str | None, trace: Trace = None, max_calls: int = 8) -> float:
    """1.0 without tool spam: at most ``max_calls`` calls and none repeated exactly.

    >>> call = {"name": "search", "arguments": {"q": "x"}}
    >>> check_tool_use("", {"tool_calls": [call]}), check_tool_use("", {"tool_calls": [call, call]})
    (1.0, 0.0)
    """
    calls = tool_calls(trace)
    return float(len(calls) <= max_calls and not count_repeated(calls))


_CHECKS = {
    "length": check_length,
    "keywords": check_keywords,
    "json": check_json,
    "case": check_case,
    "structure": check_structure,
    "tool_use": check_tool_use,
}


def check_instructions(response: str | None, instructions: Sequence[Mapping[str, Any]]) -> float:
    """The mean over several instructions, each ``{"check": name, ...its arguments}``.

    >>> check_instructions("short and red", [
    ...     {"check": "length", "max_words": 5}, {"check": "keywords", "required": ["blue"]},
    ... ])
    0.5
    """
    if not instructions:
        return 1.0
    total = 0.0
    for instruction in instructions:
        arguments = dict(instruction)
        name = arguments.pop("check", None)
        if name not in _CHECKS:
            raise ValueError(f"Unknown check {name!r}; known are {', '.join(_CHECKS)}.")
        total += _CHECKS[name](response, **arguments)  # type: ignore[operator]
    return total / len(instructions)


def _occurs(word: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word.casefold())}(?!\w)", text) is not None
