"""The live view of a run in a terminal: progress, curves, verdict and samples."""

import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from rich.console import Console, Group, RenderableType
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mint.watch.durations import duration
from mint.watch.sinks.sink import Sink
from mint.watch.verdict.series import Row, series
from mint.watch.verdict.verdict import (
    DIVERGING,
    FLAT,
    HACKING,
    LEARNING,
    STALLED,
    Verdict,
    VerdictHistory,
    judge,
)

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 32
_KEPT = 2000
_SHOWN = 240
_SHARES = ("reward/success", "holdout/pass@1")
_COLOURS = {LEARNING: "green", FLAT: "yellow", STALLED: "yellow", DIVERGING: "red", HACKING: "red"}
_CURVES = (
    ("success", "reward/success"),
    ("reward", "reward/mean"),
    ("holdout", "holdout/pass@1"),
    ("length", "length/mean"),
)
_TIMES = (("sampling", "time/sample"), ("training", "time/train"))


def sparkline(values: Sequence[float]) -> str:
    """Draw a series as a line of blocks.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    if len(values) > _WIDTH:
        edges = [round(i * len(values) / _WIDTH) for i in range(_WIDTH + 1)]
        values = [fmean(values[a:b]) for a, b in pairwise(edges)]
    low, high = min(values), max(values)
    if high == low:
        return _BLOCKS[3] * len(values)
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(top * (value - low) / (high - low))] for value in values)


class LiveView(Sink):
    """A sink that redraws the view after every step. Model output is shown as plain text."""

    def __init__(
        self, task: str, steps: int | None, rows: Sequence[Row] = (), console: Console | None = None
    ) -> None:
        self._task, self._steps = task, steps
        self._history = VerdictHistory.of(rows, [])
        self._rows: list[Row] = list(rows)[-_KEPT:]
        self._times = [time.monotonic()]
        self._samples: dict[str, Row] = {}
        self._live = Live(console=console or Console(file=sys.stdout), auto_refresh=False)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        row = {"step": step, **metrics}
        self._history.add(row)
        self._rows = [*self._rows, row][-_KEPT:]
        before = self._times if step else []  # step 0 is an evaluation: the clock starts after it
        self._times = [*before, time.monotonic()][-11:]
        if not self._live.is_started:
            self._live.start()
            if isinstance(sys.stdout, FileProxy):  # progress bars of others would move the cursor
                sys.stdout.isatty = lambda: False  # type: ignore[method-assign]
        self._live.update(self.render(), refresh=True)

    def rollouts(self, rows: Sequence[Row]) -> None:
        """Keep the best and the worst sample of a step, to show with its metrics."""
        scored = [row for row in rows if row.get("reward") is not None]
        if scored := sorted(scored, key=lambda row: float(row["reward"])):
            self._samples = {"best": scored[-1], "worst": scored[0]}

    def close(self) -> None:
        if self._live.is_started:
            self._live.stop()

    def render(self) -> RenderableType:
        """Render the view of the last step."""
        parts = [self._progress(int(self._rows[-1]["step"])), self._figures(self._rows[-1])]
        parts += [_sample(title, row) for title, row in self._samples.items()]
        parts.append(_verdict(judge(self._history.rows)))
        return Panel(Group(*parts), title=Text(self._task), title_align="left")

    def _progress(self, step: int) -> RenderableType:
        if not self._steps:
            return Text(f"step {step}")
        left = ""
        if step < self._steps and len(self._times) > 1:
            per_step = (self._times[-1] - self._times[0]) / (len(self._times) - 1)
            left = f"{duration(per_step * (self._steps - step))} left"
        table = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=self._steps, completed=step, width=30)
        table.add_row(f"step {step} of {self._steps}", bar, left)
        return table

    def _figures(self, last: Row) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for label, name in _CURVES:
            if points := series(self._rows, name):
                values = [value for _, value in points]
                shown = f"{values[-1]:.1%}" if name in _SHARES else f"{values[-1]:.3g}"
                table.add_row(label, shown, Text(sparkline(values), style="cyan"))
        components = {n: x for n, x in last.items() if n.startswith("component/")}
        if components:
            said = (f"{n.removeprefix('component/')} {x:.3g}" for n, x in components.items())
            table.add_row("components", "", Text(", ".join(said)))
        times = {label: last[name] for label, name in _TIMES if name in last}
        if (total := sum(times.values())) > 0:
            said = (f"{label} {seconds / total:.0%}" for label, seconds in times.items())
            table.add_row("time", f"{total:.1f} s", Text(", ".join(said)))
        seconds = last.get("time/sample")
        tokens = last.get("rollouts", 0) * last.get("length/mean", 0)
        if seconds and tokens:
            table.add_row("tokens/s", f"{tokens / seconds:.0f}", "")
        return table


def _verdict(verdict: Verdict) -> RenderableType:
    colour = _COLOURS.get(verdict.verdict, "default")
    text = Text.assemble((verdict.verdict, f"bold {colour}"), f": {verdict.evidence}")
    return text.append(f" {verdict.advice}", style="dim") if verdict.advice else text


def _sample(title: str, row: Row) -> RenderableType:
    head = f"{title} {float(row['reward']):.3g} "
    prompt = _line(str(row.get("prompt") or "")[-_SHOWN:])
    answer = _line(str(row.get("response") or "")[:_SHOWN])
    return Text.assemble((head, "bold"), (f"{prompt} ", "dim"), answer, overflow="ellipsis")


def _line(text: str) -> str:
    """Return a text on one line, without control characters."""
    shown = "".join(each if each.isprintable() else " " for each in text)
    return " ".join(shown.split())
