"""The report on a run: its rewards by step, what was rewarded, and what went wrong."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mint.rewards import Analysis, Sample, Score, Scored, analyse, failure_pattern
from mint.rl.recording.report_page import as_html, as_markdown
from mint.rl.rollouts.scoring import as_sample
from mint.rl.sampling.batch import Batch
from mint.watch.directory.files import read_rows
from mint.watch.directory.reader import RunReader

Row = Mapping[str, Any]
RIGHT_ANSWERS, ANALYSIS = "answers.jsonl", "reward_analysis"
COLUMNS = (
    *("step", "group", "identity", "prompt", "response", "reward", "components"),
    *("error", "truncated", "reasons"),
)
"""What the analysis reads of a rollout: everything but its tokens."""
_BY_STEP = ("count", "mean", "std", "variance", "skewness")
_MOST = 50_000
_EXAMPLES = 3
_SHOWN = 1000


class AnalysisWriter:
    """Collects the right answers during a run, and writes the analysis at its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known = set(_right_answers(folder))

    def see(self, batch: Batch) -> None:
        """Remember the answers of a batch, for this process and for one that continues the run."""
        with open(self.folder / RIGHT_ANSWERS, "a") as file:
            for group in batch.everything:
                answer = as_sample(group.sample, "").gold
                if group.identity not in self.known and isinstance(answer, str | int | float):
                    self.known.add(group.identity)
                    row = {"identity": group.identity, "answer": answer}
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def write(self) -> None:
        """Write the report on the rewards, and say where."""
        if write_report(self.folder):
            path = self.folder / ANALYSIS
            print(f"Reward analysis: {path}.txt, .md, .html, .json and .svg", flush=True)


class RewardLog:
    """Prints the rewards of every batch, and those of the run so far."""

    def __init__(self, folder: Path) -> None:
        run = RunReader(folder)
        self.means = [row["reward/mean"] for row in run.metrics() if "reward/mean" in row]
        rewards = (row["reward"] for row in run.iter_rollouts(columns=["reward"]))
        self.rewards = [reward for reward in rewards if reward is not None]

    def __call__(self, batch: Batch) -> None:
        rollouts = [rollout for group in batch.everything for rollout in group.rollouts]
        failed = sum(rollout.error is not None for rollout in rollouts)
        rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
        found = _analyse_rewards(rewards)
        self.rewards += rewards
        self.means.append(found.mean)
        print(f"  rewards of step {batch.step}: {_summary(rewards)}, {failed} not scored")
        for line, (_, _, count) in zip(found.bars(width=30), found.histogram, strict=True):
            if count:
                print(f"  {line}")
        best = max(range(len(self.means)), key=lambda i: self.means[i])
        print(
            f"  rewards of the run: {_summary(self.rewards)}; "
            f"step means from {self.means[0]:.3f} to {self.means[-1]:.3f}, "
            f"highest {self.means[best]:.3f} at step {best + 1}",
            flush=True,
        )


def _analyse_rewards(rewards: Sequence[float]) -> Analysis:
    return analyse([Scored(Sample(""), Score(reward)) for reward in rewards])


def _summary(rewards: Sequence[float]) -> str:
    found = np.asarray(rewards or [0.0], dtype=np.float64)
    return (
        f"{len(rewards)} answers, mean {found.mean():.3f}, std {found.std():.3f}, "
        f"min {found.min():.3f}, max {found.max():.3f}"
    )


def _right_answers(folder: Path) -> dict[str, Any]:
    """Return the right answers that training kept, by the identity of their prompt."""
    return {row["identity"]: row["answer"] for row in read_rows(folder / RIGHT_ANSWERS)}


def write_report(folder: Path) -> list[Path]:
    """Write the report on a run into its directory. Of very long runs, some steps are read."""
    run, answers = RunReader(folder), _right_answers(folder)
    counts = sum(1 for _ in run.iter_rollouts(columns=["step"]))
    chosen = run.steps()[:: max(1, -(-counts // _MOST))]
    rows = [row for step in chosen for row in run.iter_rollouts(step, COLUMNS)]
    if not rows:
        return []
    found = analyse([_scored(row) for row in rows])
    kinds = count_kinds(rows, answers)
    summary = run.summary()
    data = {
        **found.as_data(),
        "run": {name: summary.get(name) for name in ("name", "task", "status", "step", "steps")},
        "verdict": summary.get("verdict"),
        "rollouts": counts,
        "steps_read": len(chosen),
        "by_step": by_step(rows),
        "curves": _curves(run.metrics()),
        "failure_patterns": {each["type"]: each["count"] for each in kinds},
        "response_types": kinds,
        "failures": failures(rows, answers),
    }
    contents = {
        ".txt": f"{found.as_text()}\n{_table(kinds)}\n",
        ".json": json.dumps(data, indent=2, ensure_ascii=False),
        ".md": as_markdown(data),
        ".html": as_html(data),
    }
    *texts, plot = [folder / f"{ANALYSIS}{suffix}" for suffix in (*contents, ".svg")]
    for path, text in zip(texts, contents.values(), strict=True):
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    found.plot(plot)
    return [*texts, plot]


def count_kinds(rows: Sequence[Row], answers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Count the kinds of responses with their rewards, the best first."""
    found = []
    for kind, own in _by_kind(rows, answers).items():
        rewards = [row["reward"] for row in own if row["reward"] is not None]
        mean = sum(rewards) / len(rewards) if rewards else None
        shares = {"count": len(own), "share": len(own) / len(rows)}
        found.append({"type": kind, **shares, "mean_reward": mean})
    return sorted(
        found, key=lambda kind: (kind["mean_reward"] is None, -(kind["mean_reward"] or 0))
    )


def _by_kind(rows: Iterable[Row], answers: Mapping[str, Any]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[response_kind(row, answers)].append(row)
    return found


def response_kind(row: Row, answers: Mapping[str, Any]) -> str:
    """Return how a response compares with the right answer, where there is one, or how it ended."""
    if row["error"] is not None:
        return f"not scored: {row['error'].partition(':')[0]}"
    if not row["response"].strip():
        return "empty"
    pattern = "complete"
    if row["identity"] in answers:
        pattern = failure_pattern(row["response"], answers[row["identity"]])
    if row["truncated"] and pattern != "right":
        return "truncated"
    return "wrong" if pattern == "truncated" else pattern  # it only looks as if it were cut off


def by_step(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the distribution of each step's rewards."""
    rewards: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        if row["reward"] is not None:
            rewards[row["step"]].append(row["reward"])
    found = []
    for step, values in sorted(rewards.items()):
        one = _analyse_rewards(values)
        ordered = sorted(values)
        quarters = {f"q{q}": ordered[(len(ordered) - 1) * q // 100] for q in (10, 25, 50, 75, 90)}
        numbers = {name: getattr(one, name) for name in _BY_STEP}
        found.append({"step": step, **numbers, "min": ordered[0], "max": ordered[-1], **quarters})
    return found


def failures(rows: Sequence[Row], answers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the most common failures, with examples from the latest steps."""
    best = max((row["reward"] for row in rows if row["reward"] is not None), default=0.0)
    worse = [row for row in reversed(rows) if row["reward"] is None or row["reward"] < best]
    kinds = sorted(_by_kind(worse, answers).items(), key=lambda kind: -len(kind[1]))
    return [
        {
            "type": kind,
            "count": len(own),
            "share": len(own) / len(rows),
            "examples": [_example(row, answers) for row in own[:_EXAMPLES]],
        }
        for kind, own in kinds
    ]


def _example(row: Row, answers: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "step": row["step"],
        "reward": row["reward"],
        "prompt": row["prompt"][-_SHOWN:],
        "response": row["response"][:_SHOWN],
        "answer": answers.get(row["identity"]),
        "error": row["error"],
        "reasons": dict(row["reasons"] or {}),
    }


def _curves(metrics: Sequence[Row]) -> dict[str, list[list[float]]]:
    """Return the series of a run that a report draws."""
    names = ("reward/mean", "reward/success", "holdout/pass@1", "length/mean", "length/truncated")
    found = {}
    for name in names:
        rows = [(i, row) for i, row in enumerate(metrics) if isinstance(row.get(name), int | float)]
        if rows:
            found[name] = [[row.get("step", place), row[name]] for place, row in rows]
    return found


def _scored(row: Row) -> Scored:
    metadata = {"group": (row["step"], row["group"])}
    components = {name: x for name, x in (row["components"] or {}).items() if x is not None}
    score = None if row["reward"] is None else Score(row["reward"], components)
    return Scored(Sample(row["response"], row["prompt"], metadata), score, row["error"])


def _table(kinds: Sequence[Mapping[str, Any]]) -> str:
    lines = ["response types, by their mean reward:"]
    lines.append(f"  {'mean':>6}  {'type':<24} {'count':>6}  share")
    for each in kinds:
        mean = "-" if each["mean_reward"] is None else f"{each['mean_reward']:.3f}"
        lines.append(f"  {mean:>6}  {each['type']:<24} {each['count']:>6}  {each['share']:>5.0%}")
    return "\n".join(lines)
