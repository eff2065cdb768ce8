"""Series of a run's metrics: cleaned, averaged, and compared with their own noise."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

Row = Mapping[str, Any]
Series = list[tuple[int, float]]
"""Steps and values."""

_LARGEST = 1e12
_SIGMAS = 3.0
WINDOW = 5
_WIDEST, _HEAD = 200, 10
_LEAST = 0.01
"""The share of a series' size under which a change never counts."""


def series(rows: Sequence[Row], name: str) -> Series:
    """Return the finite values of a metric, with their steps.

    >>> series([{"step": 1, "x": 0.5}, {"step": 2, "x": None}, {"step": 3, "x": 1}], "x")
    [(1, 0.5), (3, 1.0)]
    """
    found = []
    for place, row in enumerate(rows):
        value, step = number(row.get(name)), number(row.get("step"))
        if value is not None:
            at = place if step is None else int(step)
            found.append((at, max(-_LARGEST, min(_LARGEST, value))))
    return found


def number(value: Any) -> float | None:
    """Return a finite number, or None for anything else.

    >>> number(True), number("3"), number(2), number(1e400)
    (1.0, None, 2.0, None)
    """
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:  # an integer too large for a float
        return None


def first_named(rows: Sequence[Row], names: Sequence[str]) -> tuple[str, Series]:
    """Return the first of several metrics that has values; the first name if none has."""
    for name in names:
        if values := series(rows, name):
            return name, values
    return names[0], []


def mean(values: Series) -> float:
    """Return the mean of a series' values."""
    return statistics.fmean(value for _, value in values)


def median(values: Series) -> float:
    """Return the median of a series' values."""
    return statistics.median(value for _, value in values)


def thin_out(rows: Sequence[Row], keep: str, most: int = 1500) -> Sequence[Row]:
    """Thin out the middle of a long run, keeping every row that has the metric ``keep``.

    >>> len(thin_out([{"step": n} for n in range(10_000)], "x"))
    1469
    """
    if len(rows) <= most:
        return rows
    head, tail = 50, 200
    end = len(rows) - tail
    every = -(-(end - head) // (most - head - tail))
    middle = enumerate(rows[head:end])
    kept = [row for place, row in middle if place % every == 0 or row.get(keep) is not None]
    return [*rows[:head], *kept, *rows[end:]]


def constant_share(rows: Sequence[Row]) -> Series:
    """Return the share of groups whose answers have equal rewards, step by step.

    >>> constant_share([{"step": 1, "groups": 8, "groups/signal": 2}])
    [(1, 0.75)]
    """
    signal = dict(series(rows, "groups/signal"))
    return [
        (step, min(1.0, max(0.0, 1.0 - signal[step] / count)))
        for step, count in series(rows, "groups")
        if count > 0 and step in signal
    ]


@dataclass(frozen=True)
class Shift:
    """A series' first, best and last level, and the change that noise alone explains."""

    first: float
    best: float
    last: float
    best_step: int
    noise: float

    @property
    def rose(self) -> bool:
        return self.last - self.first > self.noise


def shift(values: Series) -> Shift | None:
    """Compare the means of windows of a series with the noise between neighbouring steps.

    None if the series is shorter than two windows.

    >>> shift([(n, float(n % 2)) for n in range(20)]).rose
    False
    """
    numbers = [value for _, value in values]
    if len(numbers) < 2 * WINDOW:
        return None
    wide = max(WINDOW, min(_WIDEST, len(numbers) // 10))  # wider in long runs
    head = min(wide, _HEAD)  # the level of the start lasts only briefly
    sums = list(accumulate(numbers, initial=0.0))
    means = [(sums[i + wide] - sums[i]) / wide for i in range(len(numbers) - wide + 1)]
    best = max(range(len(means)), key=lambda i: means[i])
    best_step = values[best + wide // 2][0]
    first, last = statistics.fmean(numbers[:head]), statistics.fmean(numbers[-wide:])
    size = max(abs(number) for number in numbers)
    noise = max(_SIGMAS * deviation(numbers) * math.sqrt(1.0 / head + 1.0 / wide), _LEAST * size)
    return Shift(first, means[best], last, best_step, noise)


def deviation(numbers: Sequence[float]) -> float:
    """Return the standard deviation around a slow trend, from the differences of neighbours."""
    if len(numbers) < 2:
        return 0.0
    squares = [(b - a) ** 2 for a, b in pairwise(numbers)]
    return math.sqrt(statistics.fmean(squares) / 2.0)
