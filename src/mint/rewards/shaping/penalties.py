"""Penalties for unwanted behaviour, each from 0.0 down to ``-limit``."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mint.rewards.shaping.aspects import repeated_share

Tokens = Sequence[int] | int | None
"""The tokens of a response, or how many there are; None if they are not known."""
Trace = Mapping[str, Any] | None
"""What an agent did: its ``messages`` and ``tool_calls``."""

_READ = 200_000
UNSAFE_PATTERNS = (
    r"\brm\s+-rf?\s+[/~]",
    r"\b(?:curl|wget)\b[^\n|]{0,200}\|\s{0,5}(?:ba|z)?sh\b",
    r"\bDROP\s+(?:TABLE|DATABASE)\b",
    r"\bos\.system\s?\(|\bsubprocess\.(?:run|Popen|call)\s?\([^)\n]{0,200}shell\s?=\s?True",
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----",
    r"\b(?:password|api[_-]?key|secret)\s?[:=]\s?['\"][^'\"\n]{6,100}['\"]",
)


def measure_length(response: str | None, tokens: Tokens = None) -> int:
    """Return the length in tokens, from a list or a count; else count words and punctuation.

    >>> measure_length("Two words!"), measure_length("Two words!", tokens=[5, 6, 7, 8])
    (3, 4)
    """
    if isinstance(tokens, int):
        return tokens
    if tokens is not None:
        return len(tokens)
    return len(re.findall(r"\w+|[^\w\s]", response or ""))


def length_penalty(
    response: str | None, tokens: Tokens = None, target: int = 256, limit: float = 0.5
) -> float:
    """0.0 up to ``target`` tokens, then linearly to ``-limit`` at twice as many.

    >>> length_penalty("", tokens=256), length_penalty("", tokens=384)
    (0.0, -0.25)
    """
    over = (measure_length(response, tokens) - _positive("target", target)) / target
    return _penalty(over, limit)


def overlong_penalty(
    response: str | None,
    tokens: Tokens = None,
    max_tokens: int = 1024,
    buffer: int = 256,
    limit: float = 1.0,
) -> float:
    """A soft limit: 0.0 until ``buffer`` tokens before ``max_tokens``, ``-limit`` from there on.

    >>> overlong_penalty("", tokens=768), overlong_penalty("", tokens=896)
    (0.0, -0.5)
    """
    start = max_tokens - _positive("buffer", buffer)
    return _penalty((measure_length(response, tokens) - start) / buffer, limit)


def repetition_penalty(
    response: str | None,
    tokens: Tokens = None,
    size: int = 4,
    allowed: float = 0.1,
    limit: float = 0.5,
) -> float:
    """Grows with the share of repeated runs of ``size`` tokens beyond ``allowed``.

    >>> repetition_penalty("a b c d e f g h"), repetition_penalty("no " * 300) < -0.4
    (0.0, True)
    """
    words = (response or "")[:_READ].split()
    items = words if tokens is None or isinstance(tokens, int) else list(tokens)
    share = repeated_share(items, _positive("size", size))
    return _penalty((share - allowed) / (1 - allowed), limit)


def verbosity_penalty(
    response: str | None, max_words: int = 200, per_word: float = 0.002, limit: float = 0.5
) -> float:
    """``per_word`` for every word beyond ``max_words``.

    >>> verbosity_penalty("word " * 250)
    -0.1
    """
    over = max(0, len((response or "").split()) - max_words)
    return _penalty(over * per_word / limit if limit else 0.0, limit)


def unsafe_penalty(
    response: str | None, patterns: Sequence[str] = UNSAFE_PATTERNS, limit: float = 1.0
) -> float:
    """``-limit`` if an unsafe pattern occurs.

    >>> unsafe_penalty("Type rm -rf / to clean up."), unsafe_penalty("Type ls.")
    (-1.0, 0.0)
    """
    text = (response or "")[:_READ]
    return _penalty(float(any(re.search(p, text, re.IGNORECASE) for p in patterns)), limit)


def tool_cost_penalty(
    response: str | None,
    trace: Trace = None,
    cost: float | Mapping[str, float] = 0.02,
    limit: float = 0.5,
) -> float:
    """The cost of the tool calls in ``trace["tool_calls"]``: one cost for all, or one per tool.

    >>> tool_cost_penalty("", {"tool_calls": [{"name": "search"}] * 3}, cost={"search": 0.1})
    -0.3
    """
    calls = tool_calls(trace)
    prices = [cost.get(_tool(call), 0.0) if isinstance(cost, Mapping) else cost for call in calls]
    return _penalty(round(sum(prices), 12) / limit if limit else 0.0, limit)


def tool_spam_penalty(
    response: str | None, trace: Trace = None, max_calls: int = 8, limit: float = 0.5
) -> float:
    """Grows with calls beyond ``max_calls`` and with calls that repeat an earlier one exactly.

    >>> tool_spam_penalty("", {"tool_calls": [{"name": "search", "arguments": "x"}] * 3})
    -0.125
    """
    calls = tool_calls(trace)
    spam = max(0, len(calls) - _positive("max_calls", max_calls)) + count_repeated(calls)
    return _penalty(spam / max_calls, limit)


def step_count_penalty(
    response: str | None, trace: Trace = None, max_steps: int = 10, limit: float = 0.5
) -> float:
    """0.0 up to ``max_steps`` messages of the trace, then linearly to ``-limit`` at twice as many.

    >>> step_count_penalty("", {"messages": ["..."] * 15})
    -0.25
    """
    steps = len((trace or {}).get("messages") or ())
    return _penalty((steps - _positive("max_steps", max_steps)) / max_steps, limit)


def tool_calls(trace: Trace) -> list[Any]:
    """Return the tool calls of a trace; none if there is no trace."""
    return list((trace or {}).get("tool_calls") or ())


def count_repeated(calls: Sequence[Any]) -> int:
    """Return how many calls repeat an earlier one exactly."""
    return len(calls) - len({json.dumps(call, sort_keys=True, default=str) for call in calls})


def _tool(call: Any) -> str:
    return str(call.get("name", "")) if isinstance(call, Mapping) else str(call)


def _positive(name: str, value: int) -> int:
    if value <= 0:
        raise ValueError(f"{name} must be positive, not {value}.")
    return value


def _penalty(share: float, limit: float) -> float:
    if limit < 0:
        raise ValueError(f"limit must not be negative; it is {limit}.")
    return -limit * max(0.0, min(1.0, share)) or 0.0
