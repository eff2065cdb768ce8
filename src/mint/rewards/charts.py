"""Draw small charts as inline SVG, without a plotting library."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 640, 240, 52, 28, 14
STYLE = Path(__file__).with_name("charts.css").read_text()
"""Needs the colours --a to --d, --soft and --line."""
Points = Sequence[tuple[float, float]]
Band = Sequence[tuple[float, float, float]]


class _Scale:
    """Maps values to coordinates in the picture."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self.x0, self.x1 = min(xs), max(xs)
        self.y0, self.y1 = min(ys), max(ys)
        if self.x0 == self.x1:
            self.x0, self.x1 = self.x0 - 0.5, self.x1 + 0.5
        if self.y0 == self.y1:
            self.y0, self.y1 = self.y0 - 0.5, self.y1 + 0.5

    def x(self, value: float) -> float:
        inner = _WIDTH - _LEFT - 12
        return _LEFT + inner * (value - self.x0) / (self.x1 - self.x0)

    def y(self, value: float) -> float:
        inner = _HEIGHT - _BOTTOM - _TOP
        return _HEIGHT - _BOTTOM - inner * (value - self.y0) / (self.y1 - self.y0)

    def axes(self, label: str) -> str:
        ground = _HEIGHT - _BOTTOM
        return (
            f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - 12}" y1="{ground}" y2="{ground}"/>'
            + _text(_LEFT, _HEIGHT - 10, f"{self.x0:g}", "start")
            + _text(_WIDTH - 12, _HEIGHT - 10, f"{self.x1:g}", "end")
            + _text(_WIDTH / 2, _HEIGHT - 10, label)
            + _text(_LEFT - 6, ground, f"{self.y0:.3g}", "end")
            + _text(_LEFT - 6, _TOP + 8, f"{self.y1:.3g}", "end")
        )


def line_chart(lines: Mapping[str, Points], band: Band = ()) -> str:
    """Draw series as lines, and a band behind them; return an empty string if there are no points.

    >>> line_chart({"mean": [(1, 0.5), (2, 0.75)]}).startswith("<svg")
    True
    """
    xs = [x for points in lines.values() for x, _ in points] + [x for x, _, _ in band]
    ys = [y for points in lines.values() for _, y in points]
    ys += [y for _, low, high in band for y in (low, high)]
    if not xs:
        return ""
    scale = _Scale(xs, ys)
    shapes = []
    if band:
        there = [f"{scale.x(x):.1f},{scale.y(high):.1f}" for x, _, high in band]
        back = [f"{scale.x(x):.1f},{scale.y(low):.1f}" for x, low, _ in reversed(band)]
        shapes.append(f'<polygon class="band c0" points="{" ".join(there + back)}"/>')
    for number, (name, points) in enumerate(lines.items()):
        kind = f"c{number % 4}"
        places = [f"{scale.x(x):.1f} {scale.y(y):.1f}" for x, y in points]
        if len(places) == 1:
            x, y = places[0].split()
            shapes.append(f'<circle class="{kind}" cx="{x}" cy="{y}" r="3"/>')
        elif places:
            shapes.append(f'<path class="line {kind}" d="M{" L".join(places)}"/>')
        legend = _LEFT + 10 + 120 * (number % 5)
        shapes.append(f'<circle class="{kind}" cx="{legend}" cy="8" r="4"/>')
        shapes.append(_text(legend + 8, 12, name, "start"))
    return _svg(scale.axes("step") + "".join(shapes), ", ".join(lines))


def bar_chart(bins: Sequence[tuple[float, float, int]]) -> str:
    """Draw a histogram."""
    if not bins:
        return ""
    scale = _Scale([bins[0][0], bins[-1][1]], [0, max(1, *(count for _, _, count in bins))])
    shapes = []
    for low, high, count in bins:
        x, y = scale.x(low), scale.y(count)
        title = f"<title>{low:.2f} to {high:.2f}: {count}</title>"
        shapes.append(
            f'<rect class="bar" x="{x + 1:.1f}" y="{y:.1f}" width="{scale.x(high) - x - 2:.1f}" '
            f'height="{scale.y(0) - y:.1f}">{title}</rect>'
        )
    return _svg(scale.axes("reward") + "".join(shapes), "histogram of rewards")


def standalone(chart: str, title: str) -> str:
    """Return a chart as a separate SVG document, with colours and a title.

    >>> standalone(bar_chart([(0.0, 1.0, 3)]), "3 rewards").startswith("<svg")
    True
    """
    head, end, body = chart.partition(">")
    style = f"<style>:root{{--a:#3a7ca5;--soft:#444;--line:#999}}{STYLE}</style>"
    return f"{head}{end}{style}{_text(_LEFT, 12, title, 'start')}{body}\n"


def _svg(inner: str, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{inner}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
