"""Kinds of responses in a run, and their rewards."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from mint.rewards import failure_pattern


def count_kinds(
    rows: Sequence[Mapping[str, Any]], answers: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Count the kinds of responses with their rewards, the best first."""
    rewards: dict[str, list[float]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        kind = response_kind(row, answers)
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


def response_kind(row: Mapping[str, Any], answers: Mapping[str, Any]) -> str:
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
