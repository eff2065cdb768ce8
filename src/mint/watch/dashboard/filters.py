"""The filters of a search, and their SQL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

_LONGEST = 1_000
STOPS = ("stop", "length")
_COMPONENT = "list_extract(map_extract(components, ?), 1)"
_CONDITIONS = {
    "text": "(contains(response, ?) OR contains(prompt, ?))",
    "regex": "regexp_matches(response, ?)",
    "reward_min": "reward >= ?",
    "reward_max": "reward <= ?",
    "component": f"{_COMPONENT} IS NOT NULL",
    "component_min": f"{_COMPONENT} >= ?",
    "component_max": f"{_COMPONENT} <= ?",
    "stop": "stop = ?",
    "error": "contains(error, ?)",
    "identity": "identity = ?",
    "step_min": "step >= ?",
    "step_max": "step <= ?",
}
_ERRORS = {"any": "error IS NOT NULL", "none": "error IS NULL"}


class BadFilter(ValueError):
    """A search that cannot be carried out; the text says what to change."""


@dataclass(frozen=True)
class Filter:
    """Conditions on rollouts; all that are given must hold.

    >>> where, values = Filter(text="42", reward_min=0.5).sql()
    >>> where
    '(contains(response, ?) OR contains(prompt, ?)) AND reward >= ?'
    >>> values
    ['42', '42', 0.5]
    """

    text: str | None = None
    regex: str | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    component: str | None = None
    component_min: float | None = None
    component_max: float | None = None
    stop: str | None = None
    error: str | None = None
    step_min: int | None = None
    step_max: int | None = None
    identity: str | None = None

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Filter:
        """Read a filter from the parameters of an address; empty ones are left out.

        >>> Filter.read({"reward_min": "0.5", "text": ""}) == Filter(reward_min=0.5)
        True
        """
        found: dict[str, Any] = {}
        for field in fields(cls):
            raw = given.get(field.name, "")
            if raw == "":
                continue
            if len(raw) > _LONGEST:
                raise BadFilter(f"{field.name} has more than {_LONGEST} characters. Shorten it.")
            kind = str(field.type)
            found[field.name] = _number(field.name, raw, kind) if "str" not in kind else raw
        chosen = cls(**found)
        if chosen.stop not in (None, *STOPS):
            raise BadFilter(f"stop is one of {', '.join(STOPS)}, not {chosen.stop!r}.")
        if chosen.component is None and (
            chosen.component_min is not None or chosen.component_max is not None
        ):
            raise BadFilter("component_min and component_max require component=NAME.")
        return chosen

    def sql(self) -> tuple[str, list[Any]]:
        """Return the condition and its values. Regular expressions are RE2's: linear in time."""
        parts: list[str] = []
        values: list[Any] = []
        for name, condition in _CONDITIONS.items():
            if (value := getattr(self, name)) is None:
                continue
            if name == "error" and value in _ERRORS:
                parts.append(_ERRORS[value])
                continue
            parts.append(condition)
            of_component = [self.component] if name.startswith("component_") else []
            values += [*of_component, *[value] * (condition.count("?") - len(of_component))]
        return " AND ".join(parts) or "true", values

    def may_be_in(self, first: int, last: int) -> bool:
        """Return whether a file with this range of steps can have hits."""
        return (self.step_min is None or last >= self.step_min) and (
            self.step_max is None or first <= self.step_max
        )


def _number(name: str, raw: str, kind: str) -> float | int:
    try:
        value = int(raw) if "int" in kind else float(raw)
    except ValueError:
        raise BadFilter(f"{name} is a number, not {raw[:50]!r}.") from None
    if not math.isfinite(value) or abs(value) > 2**62:
        raise BadFilter(f"{name} is a finite number, not {raw[:50]!r}.")
    return value
