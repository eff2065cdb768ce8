"""Rewards as they come in: read, weighed, and counted when they fail."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import math
import traceback
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from mint.rewards import Score, TooManyFailures
from mint.rewards.score import read_score
from mint.rl.adapter import overrides
from mint.rl.rollout import Rollout

_LOGGER = logging.getLogger("mint.rl")
_SHOWN = 2000
_FEWEST = 20
"""Rewards seen before some failures can stop a run. When all fail, it stops at once."""


class Ledger:
    """Counts the rewards of a run, and stops it when too many fail."""

    def __init__(self, max_share: float) -> None:
        self.max_share = max_share
        self.seen = 0
        self.failed = 0
        self.reasons: Counter[str] = Counter()

    def record(self, sample: Any, rollout: Rollout) -> None:
        """Take a rollout into account, and log it when it could not be scored."""
        self.seen += 1
        if rollout.error is None:
            return
        self.failed += 1
        self.reasons[rollout.error.partition(":")[0]] += 1
        shown = {"sample": repr(sample)[:_SHOWN], "response": rollout.text[:_SHOWN]}
        _LOGGER.warning("not scored: %s %s", rollout.error, json.dumps(shown, ensure_ascii=False))

    def check(self) -> None:
        """Raise :class:`mint.rewards.TooManyFailures` past the set share."""
        nothing_works = 0 < self.seen == self.failed
        if not nothing_works and self.seen < _FEWEST:
            return
        if self.failed <= self.max_share * self.seen:
            return
        reasons = ", ".join(f"{reason} ({count}×)" for reason, count in self.reasons.most_common(3))
        raise TooManyFailures(
            f"{self.failed} of {self.seen} rollouts could not be scored, more than the "
            f"{self.max_share:.0%} allowed: {reasons}. They are in the log with their samples. "
            "Mend the reward, or raise max_reward_failures."
        )

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep."""
        return {"seen": self.seen, "failed": self.failed, "reasons": dict(self.reasons)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a kept state."""
        self.seen, self.failed = state["seen"], state["failed"]
        self.reasons = Counter(state["reasons"])


def apply_score(rollout: Rollout, value: Any, weights: Mapping[str, float] | None = None) -> None:
    """Give a rollout its reward, or the error in place of it."""
    try:
        if isinstance(value, BaseException):
            raise value
        score = read_score(value)
        if score is not None:
            _require_finite(score)
            rollout.components = {name: float(x) for name, x in score.components.items()}
            rollout.reasons = {str(name): str(why) for name, why in score.reasons.items()}
            rollout.reward = score.total if weights is None else _weighed(score, weights)
    except Exception as error:
        rollout.error = f"{type(error).__name__}: {error}"
        rollout.traceback = "".join(traceback.format_exception(error))


def _require_finite(score: Score) -> None:
    wrong = [name for name, value in score.components.items() if not math.isfinite(value)]
    if wrong:
        raise ValueError(f"The reward's components {wrong} must be finite numbers.")


def _weighed(score: Score, weights: Mapping[str, float]) -> float:
    missing = weights.keys() - score.components.keys()
    if missing:
        raise KeyError(
            f"reward_weights names {sorted(missing)}, and the reward's components are "
            f"{sorted(score.components) or 'none'}"
        )
    return sum(weight * float(score.components[name]) for name, weight in weights.items())


async def score_responses(
    adapter: Any, responses: Sequence[str], sample: Any, threads: Executor | None = None
) -> list[Any]:
    """A reward or an exception for each response of a group."""
    if overrides(adapter, "compute_rewards"):
        values = await _outcome(adapter.compute_rewards, threads, responses, sample)
        if isinstance(values, BaseException):
            return [values] * len(responses)
        if not isinstance(values, Collection) or len(values) != len(responses):
            gave = f"{len(values)} rewards" if isinstance(values, Collection) else repr(values)
            wrong = f"compute_rewards gave {gave} for {len(responses)} responses"
            return [ValueError(wrong)] * len(responses)
        return list(values)
    return list(
        await asyncio.gather(
            *(_outcome(adapter.compute_reward, threads, text, sample) for text in responses)
        )
    )


async def _outcome(method: Any, threads: Executor | None, *arguments: Any) -> Any:
    try:
        if threads is None or inspect.iscoroutinefunction(method):
            value = method(*arguments)
        else:
            value = await asyncio.get_running_loop().run_in_executor(threads, method, *arguments)
        return await value if inspect.isawaitable(value) else value
    except Exception as error:
        return error
