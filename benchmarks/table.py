"""Figures with their spread, targets, and tables of both in Markdown. Pure: nothing is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

MET, MISSED, UNKNOWN = "met", "**missed**", "not measured"
COLUMNS = ("what", "mint", "against", "ratio", "of the ceiling", "target", "")


@dataclass(frozen=True)
class Spread:
    """The median of some figures, and their range."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread | None:
        """Summarise figures; None when there are none.

        >>> Spread.of([3.0, 1.0, 2.0])
        Spread(middle=2.0, low=1.0, high=3.0)
        """
        return cls(median(figures), min(figures), max(figures)) if figures else None

    def show(self, form: Callable[[float], str]) -> str:
        """Write the median and, if it is one, the range, with a unit that all share only once.

        >>> Spread(250.0, 240.0, 262.0).show(rate), Spread(2.0, 2.0, 2.0).show(ratio)
        ('250 (240 to 262) tok/s', '2.00×')
        """
        if self.low == self.high:
            return form(self.middle)
        texts = [form(figure) for figure in (self.middle, self.low, self.high)]
        units = {text.partition(" ")[2] for text in texts}
        if len(units) > 1:
            return f"{texts[0]} ({texts[1]} to {texts[2]})"
        numbers = [text.partition(" ")[0] for text in texts]
        return f"{numbers[0]} ({numbers[1]} to {numbers[2]}) {units.pop()}".rstrip()


@dataclass(frozen=True)
class Target:
    """A bound for a figure, ``at least`` or ``at most``."""

    bound: float
    form: Callable[[float], str]
    at_least: bool = True

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.form(self.bound)}"

    def is_met(self, figure: float) -> bool:
        return figure >= self.bound if self.at_least else figure <= self.bound


def rate(figure: float) -> str:
    """Write tokens a second.

    >>> rate(1234.4), rate(12.34)
    ('1,234 tok/s', '12.3 tok/s')
    """
    return f"{figure:,.0f} tok/s" if figure >= 100 else f"{figure:.1f} tok/s"


def ratio(figure: float) -> str:
    return f"{figure:.2f}×"


def share(figure: float) -> str:
    return f"{figure:.0%}" if figure >= 0.1 else f"{figure:.1%}"


def seconds(figure: float) -> str:
    """Write a time.

    >>> seconds(0.0123), seconds(4.2)
    ('12.3 ms', '4.20 s')
    """
    return f"{figure:.2f} s" if figure >= 0.1 else f"{figure * 1000:.1f} ms"


def small(figure: float) -> str:
    return f"{figure:.1e}"


def gibibytes(figure: float) -> str:
    return f"{figure:.1f} GiB"


@dataclass(frozen=True)
class Row:
    """A line of a table. ``figure`` is what the target is held against, None if not measured."""

    key: str
    what: str
    mint: str = "-"
    against: str = ""
    ratio: str = ""
    ceiling: str = ""
    target: Target | None = None
    figure: float | None = None

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        if self.figure is None:
            return UNKNOWN
        return MET if self.target.is_met(self.figure) else MISSED

    def cells(self) -> list[str]:
        target = str(self.target) if self.target else ""
        return [
            self.what, self.mint, self.against, self.ratio, self.ceiling, target, self.verdict
        ]  # fmt: skip


def markdown(rows: Sequence[Row]) -> str:
    """Write rows as a table."""
    lines = [list(COLUMNS), ["---"] * len(COLUMNS), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plain(rows: Sequence[Row]) -> str:
    """Write rows for a terminal.

    >>> print(plain([Row("k", "speed", "5 tok/s", target=Target(4, rate), figure=5.0)]))
    what   mint     against  ratio  of the ceiling  target
    speed  5 tok/s                                  ≥ 4.0 tok/s  met
    """
    lines = [list(COLUMNS), *(row.cells() for row in rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def explain_missed(rows: Sequence[Row], reasons: dict[str, str]) -> list[str]:
    """Return a line for every missed target: the reason that was written down, or that none was."""
    return [
        f"- {row.what}: {reasons.get(row.key, 'missed, and no reason was written down yet')}"
        for row in rows
        if row.verdict == MISSED
    ]
