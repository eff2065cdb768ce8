"""The comparison as a table in Markdown: means over seeds, with the range of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.trl.runs import NAMES, SIDES, Comparison, Run

Figure = Callable[[Run], float | None]


@dataclass(frozen=True)
class Line:
    """A line of the table: what it says, how it is read from a run, and how it is written."""

    label: str
    figure: Figure
    form: str = "{:.3f}"
    has_ratio: bool = False


def table(comparison: Comparison) -> str:
    """Both sides and, for times, the ratio within each seed. What failed is said below."""
    done = {side: list(comparison.done(side).values()) for side in SIDES}
    heads = [_head(side, runs) for side, runs in done.items()]
    rows = [["", *heads, "TRL / mint"], ["---"] * (len(heads) + 2)]
    for line in _lines(comparison):
        cells = [_cell(line.form, [line.figure(run) for run in done[side]]) for side in SIDES]
        rows.append([line.label, *cells, _ratio(line, comparison)])
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n\n".join([text, *comparison.complaints()]) + "\n"


def _head(side: str, runs: list[Run]) -> str:
    return f"{NAMES[side]} {runs[0].version}" if runs else NAMES[side]


def _lines(comparison: Comparison) -> list[Line]:
    def seconds(label: str, figure: Figure) -> Line:
        return Line(label, figure, "{:.2f}", has_ratio=True)

    def first(key: str) -> Figure:
        return lambda run: float(run.steps[0][key])

    def exact(when: str) -> Figure:
        return lambda run: float(run.evaluation(when)["exact"])

    pairs = comparison.pairs()
    answers = comparison.settings["prompts"] * comparison.settings["group"]
    shortest = {ours.seed: min(theirs.training, ours.training) for theirs, ours in pairs}

    def reward_after(share: float) -> Figure:
        def figure(run: Run) -> float | None:
            return run.reward_at(share * shortest[run.seed]) if run.seed in shortest else None

        return figure

    return [
        seconds("a step, s", lambda run: run.training / len(run.steps)),
        seconds("- of it sampling and scoring, s", lambda run: run.mean("sample")),
        seconds("- of it training, s", lambda run: run.mean("train")),
        seconds("all steps, s", lambda run: run.training),
        seconds("start-up, s", lambda run: run.startup),
        seconds("the whole process with evaluations, s", lambda run: run.process),
        Line("reward when the faster side is half through", reward_after(0.5)),
        Line("reward when the faster side is done", reward_after(1.0)),
        Line("reward when each side is done", lambda run: run.reward_at(run.training)),
        Line("held-out exact rate before", exact("before"), "{:.1%}"),
        Line("held-out exact rate after", exact("after"), "{:.1%}"),
        Line("reward of the first step", first("reward")),
        Line("- its standard error", first("reward_error")),
        Line(
            "tokens per answer in the first step",
            lambda run: float(run.steps[0]["tokens"]) / answers,
            "{:.2f}",
        ),
    ]


def _cell(form: str, figures: Sequence[float | None]) -> str:
    """The mean and the range of what there is."""
    found = [figure for figure in figures if figure is not None]
    if not found:
        return "-"
    mean = form.format(fmean(found))
    if len(found) == 1:
        return mean
    return f"{mean} ({form.format(min(found))} to {form.format(max(found))})"


def _ratio(line: Line, comparison: Comparison) -> str:
    if not line.has_ratio:
        return ""
    return _cell("{:.1f}", [_quotient(line.figure, *pair) for pair in comparison.pairs()])


def _quotient(figure: Figure, theirs: Run, ours: Run) -> float | None:
    above, below = figure(theirs), figure(ours)
    return above / below if above is not None and below else None
