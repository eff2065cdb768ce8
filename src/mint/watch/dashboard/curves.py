"""Metrics as columns, complete or averaged to as many points as a screen shows."""

from collections.abc import Sequence
from typing import Any, TypeVar

from mint.watch.verdict.series import number

_MOST_POINTS = 2_000
_MOST_NAMES = 500

Rows = Sequence[dict[str, Any]]
Item = TypeVar("Item")


def columns(rows: Rows, points: int = _MOST_POINTS) -> dict[str, Any]:
    """Return ``{"steps": […], "columns": {name: […]}, "bucket": n}``.

    With more rows than points, ``bucket`` neighbouring rows become their mean.

    >>> columns([{"step": 1, "a": 1.0}, {"step": 2}])
    {'steps': [1, 2], 'columns': {'a': [1.0, None]}, 'bucket': 1}
    >>> columns([{"step": s, "a": s} for s in range(4)], points=2)
    {'steps': [1, 3], 'columns': {'a': [0.5, 2.5]}, 'bucket': 2}
    """
    names = metric_names(rows)
    bucket, parts = _split(rows, points)
    table = {name: [_mean(part, name) for part in parts] for name in names}
    return {"steps": [read_step(part[-1]) for part in parts], "columns": table, "bucket": bucket}


def metric_names(rows: Rows) -> list[str]:
    """Return the names of all metrics, in the order in which they came up."""
    found: dict[str, None] = {}
    for row in rows:
        for name, value in row.items():
            if name not in found and name != "step" and number(value) is not None:
                found[name] = None
        if len(found) >= _MOST_NAMES:
            break
    return list(found)[:_MOST_NAMES]


def read_step(row: dict[str, Any]) -> int:
    """Return a row's step, 0 without one."""
    return int(number(row.get("step")) or 0)


def spark(rows: Rows, name: str, points: int = 60) -> list[float]:
    """Return a metric in few points, for a sparkline."""
    values = [x for row in rows if (x := number(row.get(name))) is not None]
    return [float(f"{sum(part) / len(part):.4g}") for part in _split(values, points)[1]]


def _split(items: Sequence[Item], points: int) -> tuple[int, list[Sequence[Item]]]:
    """Split a sequence into at most ``points`` parts of one length, and return this too."""
    length = max(1, -(-len(items) // points))
    return length, [items[i : i + length] for i in range(0, len(items), length)]


def _mean(rows: Rows, name: str) -> float | None:
    """Return the mean in six digits, more than a screen shows; large ones, as times, are exact."""
    values = [x for row in rows if (x := number(row.get(name))) is not None]
    if not values:
        return None
    mean = sum(values) / len(values)
    return mean if abs(mean) >= 1e6 else float(f"{mean:.6g}")
