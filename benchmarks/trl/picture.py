"""The comparison as a picture: reward against wall-clock time, every seed thin, the mean bold."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from benchmarks.trl.runs import NAMES, SIDES, Comparison, Run

COLOURS = {"trl": "#5b6ee1", "mint": "#1b7f5c"}


def draw(comparison: Comparison, path: Path) -> None:
    """Write the picture as an SVG file. Needs matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "mint"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.4), layout="constrained")
    for side in SIDES:
        runs = list(comparison.done(side).values())
        if not runs:
            continue
        for run in runs if len(runs) > 1 else []:
            rewards = [row["reward"] for row in run.steps]
            axes.plot(run.times, rewards, color=COLOURS[side], linewidth=0.8, alpha=0.45)
        label = f"{NAMES[side]} {runs[0].version}"
        axes.plot(*_mean(runs), color=COLOURS[side], linewidth=2.2, label=label)
    settings = comparison.settings
    axes.set(
        xlabel="seconds since the first step began",
        ylabel="average reward",
        ylim=(0, 1),
        title=f"{settings['prompts']} x {settings['group']} answers a step, "
        f"{settings['steps']} steps, {comparison.machine['device']}",
    )
    axes.set_xlim(left=0)
    axes.title.set_fontsize("medium")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small", loc="lower right")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _mean(runs: list[Run]) -> tuple[list[float], list[float]]:
    """Time and reward of every step, averaged over the seeds."""
    times = [fmean(step) for step in zip(*(run.times for run in runs), strict=True)]
    rewards = [
        fmean(row["reward"] for row in step)
        for step in zip(*(run.steps for run in runs), strict=True)
    ]
    return times, rewards
