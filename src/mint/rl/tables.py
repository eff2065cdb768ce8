"""Rollouts as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mint.rl.collect import Batch


def rollout_rows(batch: Batch) -> Iterator[dict[str, Any]]:
    """One row for every rollout of a step, those of replaced groups too."""
    for number, group in enumerate(batch.everything):
        for index, rollout in enumerate(group.rollouts):
            yield {
                "step": batch.step,
                "group": number,
                "index": index,
                "identity": group.identity,
                "prompt": group.prompt,
                "response": rollout.text,
                "reward": rollout.reward,
                "components": rollout.components,
                "penalty": rollout.penalty,
                "advantage": rollout.advantage,
                "length": rollout.length,
                "truncated": rollout.truncated,
                "masked": rollout.masked,
                "error": rollout.error,
                "tracebacks": [f.traceback for f in rollout.failures if f.traceback],
                "trace": rollout.trace,
                "version": group.version,
                "replaced": number >= len(batch.groups),
            }
