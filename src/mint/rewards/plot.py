"""A histogram of rewards as SVG, drawn without a plotting library."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mint.rewards.analysis import Analysis

_WIDTH, _HEIGHT, _MARGIN = 640, 320, 48
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#444}.bar{fill:#3a7ca5}.mean{stroke:#c1440e;"
    "stroke-width:2}.axis{stroke:#999}"
)


def histogram_svg(analysis: Analysis) -> str:
    """The distribution of the rewards with their mean, as an SVG document."""
    bins = analysis.histogram
    most = max((count for _, _, count in bins), default=1) or 1
    inner_width, inner_height = _WIDTH - 2 * _MARGIN, _HEIGHT - 2 * _MARGIN
    step = inner_width / max(1, len(bins))
    shapes = []
    for index, (low, high, count) in enumerate(bins):
        height = inner_height * count / most
        x, y = _MARGIN + index * step, _HEIGHT - _MARGIN - height
        title = f"<title>{low:.2f} to {high:.2f}: {count}</title>"
        shapes.append(
            f'<rect class="bar" x="{x + 1:.1f}" y="{y:.1f}" width="{step - 2:.1f}" '
            f'height="{height:.1f}">{title}</rect>'
        )
        shapes.append(_label(x, _HEIGHT - _MARGIN + 16, f"{low:.2f}"))
    if bins:
        low, high = bins[0][0], bins[-1][1]
        shapes.append(_label(_WIDTH - _MARGIN, _HEIGHT - _MARGIN + 16, f"{high:.2f}"))
        x = _MARGIN + inner_width * (analysis.mean - low) / (high - low)
        shapes.append(
            f'<line class="mean" x1="{x:.1f}" x2="{x:.1f}" y1="{_MARGIN}" '
            f'y2="{_HEIGHT - _MARGIN}"/>'
        )
    title = (
        f"{analysis.count} rewards, mean {analysis.mean:.3f}, std {analysis.std:.3f}, "
        f"skewness {analysis.skewness:+.2f}"
    )
    shapes.append(f'<text x="{_MARGIN}" y="24">{escape(title)}</text>')
    shapes.append(_label(_MARGIN - 8, _MARGIN + 4, str(most), "end"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">'
        f"<style>{_STYLE}</style>{''.join(shapes)}"
        f'<line class="axis" x1="{_MARGIN}" x2="{_WIDTH - _MARGIN}" y1="{_HEIGHT - _MARGIN}" '
        f'y2="{_HEIGHT - _MARGIN}"/></svg>\n'
    )


def _label(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
