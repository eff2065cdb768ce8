"""Tables and curves of docs/results.md, from run directories.

    for seed in 0 1 2; do
        python run_training.py +experiment=arithmetic training.seed=$seed \\
            logging.run_dir=runs/results/arithmetic-$seed
    done
    python -m benchmarks.results runs/results --out docs/img

A run directory is named by its experiment and its seed. The picture of an experiment has every seed
as a thin line and their mean as a thick one.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from mint.watch.directory.recorder import EVENTS, METRICS, read_rows

SUCCESS = "holdout/pass@1"
KEPT = ("reward/mean", SUCCESS, "holdout/reward", "time/total")


@dataclass(frozen=True)
class Result:
    """One run: its seed, its steps' numbers, and the steps at which it was caught cheating."""

    experiment: str
    seed: int
    rows: list[dict[str, Any]]
    caught: list[int]

    @classmethod
    def read(cls, folder: Path) -> Result:
        name, _, seed = folder.name.rpartition("-")
        events = read_rows(folder / EVENTS)
        caught = [row["step"] for row in events if row.get("name") == "reward_hacking"]
        return cls(name, int(seed), read_rows(folder / METRICS), caught)

    def curve(self, key: str) -> tuple[list[int], list[float]]:
        """The steps at which a number is known, and the number."""
        known = [row for row in self.rows if row.get(key) is not None]
        return [row["step"] for row in known], [row[key] for row in known]

    @property
    def steps(self) -> int:
        return int(self.rows[-1]["step"])

    @property
    def minutes(self) -> float:
        return float(self.rows[-1]["time/total"]) / 60


def read_results(folder: Path) -> dict[str, list[Result]]:
    """The runs of a folder by their experiment, in order of their seeds."""
    found: dict[str, list[Result]] = defaultdict(list)
    for config in sorted(folder.glob("*-[0-9]*/config.yaml")):
        result = Result.read(config.parent)
        found[result.experiment].append(result)
    return dict(found)


def table(results: dict[str, list[Result]]) -> str:
    """Held-out success before and after training, a row for every run."""
    lines = [
        "| experiment | seed | held-out, base | held-out, trained | best | steps | minutes |",
        "|---|---|---|---|---|---|---|",
    ]
    for experiment, runs in results.items():
        for run in runs:
            evaluated = [row for row in run.rows if row.get(SUCCESS) is not None]
            best = max(evaluated, key=lambda row: float(row[SUCCESS]))
            lines.append(
                f"| {experiment} | {run.seed} | {_share(evaluated[0])} | {_share(evaluated[-1])} "
                f"| {best[SUCCESS]:.1%} at {best['step']} | {run.steps} | {run.minutes:.1f} |"
            )
    return "\n".join(lines)


def _share(row: dict[str, Any]) -> str:
    low, high = row[f"{SUCCESS}_low"], row[f"{SUCCESS}_high"]
    return f"{row[SUCCESS]:.1%} ({low:.0%} to {high:.0%})"


def draw(runs: list[Result], file: Path) -> None:
    """The rewards of training and the success on the holdout."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "mint"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.2), layout="constrained")
    for key, label, colour, marker in (
        ("reward/mean", "training reward", "#1b7f5c", ""),
        (SUCCESS, "held-out success", "#5b6ee1", "o"),
    ):
        curves = [run.curve(key) for run in runs]
        for steps, values in curves:
            axes.plot(steps, values, color=colour, alpha=0.3, linewidth=1)
        shared = sorted(set.intersection(*(set(steps) for steps, _ in curves)))
        means = [fmean(v[s.index(step)] for s, v in curves) for step in shared]
        axes.plot(shared, means, color=colour, linewidth=2, marker=marker, label=label)
    first = [run.caught[0] for run in runs if run.caught]
    for number, step in enumerate(first):
        label = "reward_hacking is reported" if number == 0 else None
        axes.axvline(step, color="#c0392b", linestyle=":", label=label)
    seeds = ", ".join(str(run.seed) for run in runs)
    axes.set(xlabel="step", ylim=(min(0.0, axes.get_ylim()[0]), 1.02))
    axes.set_title(f"{runs[0].experiment}, seeds {seeds}", fontsize="medium")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def write_numbers(results: dict[str, list[Result]], file: Path) -> None:
    """What the pictures are drawn from, to draw others. Other experiments keep their rows."""
    others: list[list[str]] = []
    if file.exists():
        with file.open(newline="") as stream:
            others = [row for row in list(csv.reader(stream))[1:] if row[0] not in results]
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["experiment", "seed", "step", *KEPT])
        writer.writerows(others)
        for experiment, runs in results.items():
            for run in runs:
                for row in run.rows:
                    numbers = [row.get(key) for key in KEPT]
                    shown = ["" if number is None else f"{number:.4g}" for number in numbers]
                    writer.writerow([experiment, run.seed, row["step"], *shown])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path, help="the folder that holds the run directories")
    parser.add_argument("--out", type=Path, default=Path("docs/img"), help="where pictures go")
    given = parser.parse_args()
    results = read_results(given.runs)
    if not results:
        parser.error(f"{given.runs} has no run directories such as arithmetic-0.")
    for experiment, runs in results.items():
        draw(runs, given.out / f"results-{experiment}.svg")
    write_numbers(results, given.out.parent / "results.csv")
    print(table(results))


if __name__ == "__main__":
    main()
