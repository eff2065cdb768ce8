"""What was rewarded and what was not, over a whole run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mint.rewards import Sample, Score, Scored, analyse, failure_pattern
from mint.rl.collect import Batch
from mint.training.reward import ANSWERS, as_sample
from mint.watch.files import read_rows
from mint.watch.reader import RunReader

RIGHT_ANSWERS, ANALYSIS = "answers.jsonl", "reward_analysis"
COLUMNS = (
    *("step", "group", "identity", "prompt", "response", "reward", "components"),
    *("error", "truncated"),
)
"""What the analysis reads of a rollout: everything but its tokens."""


class Analyst:
    """Keeps the right answers as they come by, and writes the analysis of a run at its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers = {row["identity"]: row["answer"] for row in read_rows(folder / RIGHT_ANSWERS)}

    def see(self, batch: Batch) -> None:
        """Remember the answers of a batch, for this process and for one that continues the run."""
        with open(self.folder / RIGHT_ANSWERS, "a") as file:
            for group in batch.everything:
                metadata = as_sample(group.sample, "").metadata
                answer = next((metadata[name] for name in ANSWERS if name in metadata), None)
                if group.identity not in self.answers and isinstance(answer, str | int | float):
                    self.answers[group.identity] = answer
                    row = {"identity": group.identity, "answer": answer}
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def write(self) -> None:
        """Write the analysis as text, as JSON and as a picture, and say where."""
        rows = RunReader(self.folder).rollouts(columns=COLUMNS)
        if not rows:
            return
        found = analyse([_scored(row) for row in rows])
        kinds = kinds_of(rows, self.answers)
        patterns = {each["type"]: each["count"] for each in kinds}
        data = {**found.as_data(), "failure_patterns": patterns, "response_types": kinds}
        path = self.folder / f"{ANALYSIS}.json"
        path.write_text(json.dumps(data, indent=2, ensure_ascii=False))
        text = f"{found.as_text()}\n{_table(kinds)}\n"
        path.with_suffix(".txt").write_text(text, errors="backslashreplace")
        found.plot(path.with_suffix(".svg"))
        print(f"Reward analysis: {path.with_suffix('.txt')}, .json and .svg", flush=True)


def kinds_of(rows: Sequence[Mapping[str, Any]], answers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Which types of response there were, how often, and what they were paid: the best first."""
    rewards: dict[str, list[float]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        kind = _kind(row, answers)
        counts[kind] += 1
        if row["reward"] is not None:
            rewards[kind].append(row["reward"])
    found = [
        {
            "type": kind,
            "count": count,
            "share": count / len(rows),
            "mean_reward": sum(rewards[kind]) / len(rewards[kind]) if rewards[kind] else None,
        }
        for kind, count in counts.items()
    ]
    return sorted(
        found, key=lambda each: (each["mean_reward"] is None, -(each["mean_reward"] or 0))
    )


def _kind(row: Mapping[str, Any], answers: Mapping[str, Any]) -> str:
    """How a response compares with the right answer, where there is one, or how it ended."""
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


def _scored(row: Mapping[str, Any]) -> Scored:
    metadata = {"group": (row["step"], row["group"])}
    score = None if row["reward"] is None else Score(row["reward"], row["components"])
    return Scored(Sample(row["response"], row["prompt"], metadata), score, row["error"])


def _table(kinds: Sequence[Mapping[str, Any]]) -> str:
    lines = ["response types, by their mean reward:"]
    lines.append(f"  {'mean':>6}  {'type':<24} {'count':>6}  share")
    for each in kinds:
        mean = "-" if each["mean_reward"] is None else f"{each['mean_reward']:.3f}"
        lines.append(f"  {mean:>6}  {each['type']:<24} {each['count']:>6}  {each['share']:>5.0%}")
    return "\n".join(lines)
