"""Score rollouts: call the task's reward, read its result, and count failures."""

import asyncio
import inspect
import json
import logging
import math
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mint.rewards import Failure, Reward, Sample, Score, TooManyFailures
from mint.rewards.reward import FunctionReward, in_event_loop, run
from mint.rewards.score import read_score
from mint.rl.rollouts.failures import CodeFailure
from mint.rl.rollouts.rollout import Group, Rollout
from mint.rl.runtime.threads import to_thread
from mint.rl.task import overrides

_LOGGER = logging.getLogger("mint.rl")
_SHOWN = 2000
_FEWEST = 20  # rewards before some failures can stop a run; when all fail, it stops at once
_RECENT = 200  # rollouts over which failures are counted
_SCORED, _NONE = "", "None"
_QUESTIONS = ("prompt", "question", "problem")
_ANSWERS = ("answer", "ground_truth")


class FailureCounter:
    """Counts failed rewards, except ``expected`` exceptions; too many of them stop a run."""

    def __init__(self, max_share: float, expected: Sequence[str] = ()) -> None:
        self.max_share = max_share
        self.expected = frozenset(expected)
        self.recent: deque[str] = deque(maxlen=_RECENT)  # why each was not scored; "" if it was
        self.ever_scored = False

    def record(self, sample: Any, rollout: Rollout) -> None:
        """Count a rollout, and log it if it could not be scored."""
        reason = self._reason(rollout)
        self.recent.append(reason)
        self.ever_scored |= reason == _SCORED
        if rollout.error is not None:
            shown = {"sample": repr(sample)[:_SHOWN], "response": rollout.text[:_SHOWN]}
            _LOGGER.info("not scored: %s %s", rollout.error, json.dumps(shown, ensure_ascii=False))

    def _reason(self, rollout: Rollout) -> str:
        if rollout.error is None:
            return _SCORED if rollout.reward is not None else _NONE
        reason = rollout.error.partition(":")[0]
        return _SCORED if reason in self.expected else reason

    def check(self, groups: Sequence[Group]) -> None:
        """Raise :class:`mint.rewards.TooManyFailures` when too many rewards of these groups, which
        were just recorded, or of recent rollouts are missing."""
        fresh = [self._reason(rollout) for group in groups for rollout in group.rollouts]
        if fresh and _SCORED not in fresh:
            self._check_step(fresh, len(groups))
        failed = [reason for reason in self.recent if reason not in (_SCORED, _NONE)]
        if len(self.recent) >= _FEWEST and len(failed) > self.max_share * len(self.recent):
            last = "the last " if len(self.recent) == _RECENT else ""
            raise TooManyFailures(self._message(failed, f"{last}{len(self.recent)}"))

    def _check_step(self, fresh: Sequence[str], prompts: int) -> None:
        """Raise if nothing of a step was scored, unless a single prompt may be at fault."""
        failed = [reason for reason in fresh if reason != _NONE]
        if failed and self.max_share < 1 and (prompts > 1 or not self.ever_scored):
            raise TooManyFailures(self._message(failed, str(len(fresh))))
        nothing_recent = len(self.recent) == _RECENT and set(self.recent) == {_NONE}
        if not failed and (nothing_recent or not self.ever_scored):
            raise TooManyFailures(
                f"All {len(fresh)} rewards of the step are None, so there is nothing to train on. "
                "None means that the reward does not apply to an answer. Is a `return` missing in "
                "the reward function?"
            )

    def _message(self, failed: Sequence[str], of: str) -> str:
        most = Counter(failed).most_common(3)
        reasons = ", ".join(f"{reason} ({count}×)" for reason, count in most)
        return (
            f"{len(failed)} of {of} rollouts could not be scored, more than the "
            f"{self.max_share:.0%} allowed: {reasons}. Each kind is shown once above, with its "
            "traceback. Fix the reward, or raise max_reward_failures."
        )

    def state(self) -> dict[str, Any]:
        return {"recent": list(self.recent), "ever_scored": self.ever_scored}

    def load(self, state: Mapping[str, Any]) -> None:
        self.recent = deque(state.get("recent", []), maxlen=_RECENT)
        self.ever_scored = state.get("ever_scored", True)


def apply_score(rollout: Rollout, value: Any, weights: Mapping[str, float] | None = None) -> None:
    """Set the reward of a rollout, or its error."""
    try:
        if isinstance(value, BaseException):
            raise value
        score = read_score(value)
        if score is not None:
            if wrong := [n for n, value in score.components.items() if not math.isfinite(value)]:
                raise ValueError(f"The reward's components {wrong} must be finite numbers.")
            rollout.components = {name: float(x) for name, x in score.components.items()}
            rollout.reasons = {str(name): str(why) for name, why in score.reasons.items()}
            rollout.reward = score.total if weights is None else _weighed(score, weights)
    except Exception as error:
        failure = CodeFailure.of(error)
        rollout.error = failure.error
        rollout.failures.append(failure)


def _weighed(score: Score, weights: Mapping[str, float]) -> float:
    missing = weights.keys() - score.components.keys()
    if missing:
        raise KeyError(
            f"reward_weights names {sorted(missing)}, and the reward's components are "
            f"{sorted(score.components) or 'none'}"
        )
    return sum(weight * float(score.components[name]) for name, weight in weights.items())


def score_samples(reward: Reward, samples: Sequence[Sample]) -> Any:
    """Return a reward or an exception for each sample, for a task's ``compute_rewards``.

    In the event loop they are awaited; in a ``reward_workers`` thread a function is just called.
    """

    async def scores() -> list[Any]:
        outcomes = await reward.outcomes(samples)
        return [outcome.error if isinstance(outcome, Failure) else outcome for outcome in outcomes]

    plain = isinstance(reward, FunctionReward) and not reward.signature.is_async
    return run(scores()) if plain and not in_event_loop() else scores()


async def score_responses(
    adapter: Any, responses: Sequence[str], sample: Any, workers: asyncio.Semaphore | None = None
) -> list[Any]:
    """Return a reward or an exception for each response of a group. ``workers`` limits threads."""
    if overrides(adapter, "compute_rewards"):
        values = await _outcome(adapter.compute_rewards, workers, responses, sample)
        if isinstance(values, BaseException):
            return [values] * len(responses)
        if not isinstance(values, Collection) or len(values) != len(responses):
            gave = f"{len(values)} rewards" if isinstance(values, Collection) else repr(values)
            wrong = f"compute_rewards gave {gave} for {len(responses)} responses"
            return [ValueError(wrong)] * len(responses)
        return list(values)
    scored = (_outcome(adapter.compute_reward, workers, text, sample) for text in responses)
    return list(await asyncio.gather(*scored))


async def _outcome(method: Any, workers: asyncio.Semaphore | None, *arguments: Any) -> Any:
    try:
        if workers is None or inspect.iscoroutinefunction(method):
            value = method(*arguments)
        else:
            async with workers:
                value = await to_thread(lambda: method(*arguments))
        return await value if inspect.isawaitable(value) else value
    except Exception as error:
        return error


def as_sample(sample: Any, response: str) -> Sample:
    """Return a task's sample as reward functions see it: a response, a prompt, and metadata.

    >>> as_sample(("What is 3 + 5?", "8"), "It is 8.")
    Sample(response='It is 8.', prompt='What is 3 + 5?', metadata={'answer': '8'})
    >>> as_sample({"question": "What is 3 + 5?", "answer": "8"}, "8").metadata["answer"]
    '8'
    """
    if isinstance(sample, str):
        return Sample(response, sample)
    if isinstance(sample, tuple) and len(sample) == 2 and isinstance(sample[0], str):
        return Sample(response, sample[0], {"answer": sample[1]})
    if isinstance(getattr(sample, "metadata", None), Mapping):
        return Sample(response, str(getattr(sample, "prompt", "")), sample.metadata)
    if isinstance(sample, Mapping):
        values = dict(sample)
    else:
        named = [name for name in (*_QUESTIONS, *_ANSWERS) if hasattr(sample, name)]
        values = getattr(sample, "__dict__", {}) | {name: getattr(sample, name) for name in named}
    prompt = next((str(values[name]) for name in _QUESTIONS if name in values), "")
    return Sample(response, prompt, values or {"sample": sample})
