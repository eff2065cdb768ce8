"""Agent traces as OpenTelemetry spans, for the tracer provider that the program has set up."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mint.watch.sinks.sink import Sink

_NONE = ("ProxyTracerProvider", "NoOpTracerProvider", "DefaultTracerProvider")
_NANO = 1_000_000_000


def is_configured() -> bool:
    """Return whether the program has set up a tracer provider."""
    try:
        from opentelemetry import trace
    except ImportError:
        return False
    return type(trace.get_tracer_provider()).__name__ not in _NONE


class Spans(Sink):
    """One span for a rollout that has a trace, with one for each of its messages inside."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        from opentelemetry import trace

        self._trace = trace
        self._tracer = trace.get_tracer("mint.watch")
        self._run = path.resolve().name

    def rollouts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            if row.get("trace"):
                self._write(row)

    def _write(self, row: Mapping[str, Any]) -> None:
        when = int(float(row.get("sampled_at") or time.time()) * _NANO)
        names = ("step", "group", "index", "version", "reward", "error", "stop")
        given = {f"mint.{name}": row[name] for name in names if row.get(name) is not None}
        components = (row.get("components") or {}).items()
        given |= {f"mint.component.{name}": value for name, value in components}
        span = self._tracer.start_span(
            "rollout", attributes={"mint.run": self._run, **given}, start_time=when
        )
        if row.get("error"):
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(row["error"])))
        inside = self._trace.set_span_in_context(span)
        for message in row["trace"]:
            self._message(message, inside, when)
        span.end(end_time=when)

    def _message(self, message: Mapping[str, Any], inside: Any, when: int) -> None:
        role, name = str(message.get("role") or "message"), message.get("name")
        operation = "execute_tool" if role == "tool" else "chat"
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "mint.role": role,
            "mint.content": str(message.get("content") or ""),
        }
        if name:
            attributes["gen_ai.tool.name"] = str(name)
        if message.get("tool_calls"):
            attributes["mint.tool_calls"] = json.dumps(message["tool_calls"], default=repr)
        self._tracer.start_span(
            f"{operation} {name or role}", context=inside, attributes=attributes, start_time=when
        ).end(end_time=when)
