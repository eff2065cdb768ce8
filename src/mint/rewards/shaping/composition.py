"""Rewards composed of rewards. The value of every component is kept along with the total."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from mint.rewards.reward import Reward, RewardLike, as_reward
from mint.rewards.score import Failure, RewardOutcome, Sample, Score

Weights = Mapping[str, float]
Scores = Mapping[str, Score]
Combine = Callable[[Scores], Score | None]


class Combined(Reward):
    """Combines the scores of several rewards into one; a failure of any of them is the outcome.

    ``combine`` gets the scores of the components that apply to a sample.
    """

    def __init__(self, name: str, components: Mapping[str, Reward], combine: Combine) -> None:
        self.name, self.components, self.combine = name, dict(components), combine

    async def outcomes(self, samples: Sequence[Sample]) -> list[RewardOutcome]:
        columns = await asyncio.gather(*(r.outcomes(samples) for r in self.components.values()))
        return [self._outcome(row) for row in zip(*columns, strict=True)]

    def _outcome(self, row: Sequence[RewardOutcome]) -> RewardOutcome:
        failure = next((outcome for outcome in row if isinstance(outcome, Failure)), None)
        named = zip(self.components, row, strict=True)
        try:
            return failure or self.combine({n: s for n, s in named if isinstance(s, Score)})
        except ValueError as error:  # the total is not finite
            return Failure(self.name, error)

    def at(self, step: int) -> Reward:
        return Combined(self.name, _at(self.components, step), self.combine)


def _at(rewards: Mapping[str, Reward], step: int) -> dict[str, Reward]:
    return {name: reward.at(step) for name, reward in rewards.items()}


def weighted(components: Mapping[str, tuple[float, RewardLike]]) -> Reward:
    """Return a weighted sum of ``{"name": (weight, reward)}``; what does not apply adds nothing.

    >>> from mint.rewards import check_answer, match_format_exactly
    >>> total = weighted(
    ...     {"format": (0.3, match_format_exactly), "correctness": (0.7, check_answer)}
    ... )
    >>> total("It is 4.", metadata={"format": "The answer is [NUM].", "answer": "4"})
    Score(total=0.7, components={'format': 0.0, 'correctness': 1.0})
    """
    if not components:
        raise ValueError("weighted() needs at least one component.")
    rewards = {name: as_reward(reward, name) for name, (_, reward) in components.items()}
    weights = {name: weight for name, (weight, _) in components.items()}
    return Combined("weighted", rewards, lambda scores: _weighted_sum(scores, weights))


def _weighted_sum(scores: Scores, weights: Weights) -> Score | None:
    if not scores:
        return None
    total = sum(weights[name] * score.total for name, score in scores.items())
    return Score(total, _flat(scores), _reasons(scores))


class Scheduled(Combined):
    """A weighted sum whose weights depend on the training step."""

    def __init__(
        self, weights_at: Callable[[int], Weights], components: Mapping[str, Reward], step: int = 0
    ) -> None:
        weights = weights_at(step)
        if unknown := set(weights) ^ set(components):
            raise ValueError(f"Components and weights differ in: {', '.join(sorted(unknown))}.")
        super().__init__("schedule", components, lambda scores: _weighted_sum(scores, weights))
        self.weights_at = weights_at

    def at(self, step: int) -> Reward:
        return Scheduled(self.weights_at, _at(self.components, step), step)


def schedule(
    weights_at: Callable[[int], Weights], components: Mapping[str, RewardLike]
) -> Scheduled:
    """Return a weighted sum whose weights are a function of the step, set by ``reward.at(step)``.

    >>> from mint.rewards import check_answer, match_format_exactly
    >>> reward = schedule(
    ...     lambda step: {"format": 1.0 if step < 10 else 0.3, "right": 0.0 if step < 10 else 0.7},
    ...     {"format": match_format_exactly, "right": check_answer},
    ... )
    >>> sample = {"format": "The answer is [NUM].", "answer": "4"}
    >>> reward.at(0)("It is 4.", metadata=sample).total, reward.at(10)("4", metadata=sample).total
    (0.0, 0.7)
    """
    return Scheduled(weights_at, {n: as_reward(reward, n) for n, reward in components.items()})


def gated(
    reward: RewardLike, gate: RewardLike, threshold: float = 0.8, otherwise: float = 0.0
) -> Reward:
    """Return ``reward`` where ``gate`` is at least ``threshold``, and ``otherwise`` elsewhere.

    >>> from mint.rewards import check_answer, match_format_exactly
    >>> reward = gated(check_answer, match_format_exactly)
    >>> reward("It is 4.", metadata={"format": "The answer is [NUM].", "answer": "4"}).total
    0.0
    """

    def combine(scores: Scores) -> Score | None:
        if len(scores) < 2:
            return scores.get("reward")
        is_open = scores["gate"].total >= threshold
        how = "counted: the gate is at least" if is_open else "not counted: the gate is below"
        total = scores["reward"].total if is_open else otherwise
        reasons = {**_reasons(scores), "total": f"{how} {threshold:g}"}
        return Score(total, _flat(scores), reasons)

    return Combined("gated", {"reward": as_reward(reward), "gate": as_reward(gate)}, combine)


def shaped(
    base: RewardLike, shaping: Mapping[str, tuple[float, RewardLike]], limit: float = 0.3
) -> Reward:
    """Return ``base`` plus weighted additions, whose sum is limited to ``limit`` either way.

    >>> from mint.rewards import check_answer, has_reasoning_steps
    >>> reward = shaped(check_answer, {"reasoning": (0.1, has_reasoning_steps)})
    >>> reward("First, 2 + 2 = 4. So the answer is 4.", metadata={"answer": "4"}).total
    1.1
    """
    if limit < 0:
        raise ValueError(f"The limit of shaping must not be negative; it is {limit}.")

    def combine(scores: Scores) -> Score | None:
        if len(scores) < 2:
            return scores.get("base")
        base, added = scores["base"], scores["shaping"]
        addition = max(-limit, min(limit, added.total))
        components = {"base": base.total, **base.components, **added.components}
        reasons = {**_reasons({"base": base}, nested=False), **added.reasons}
        if addition != added.total:
            reasons["shaping"] = f"{added.total:g}, limited to {limit:g} either way"
        return Score(base.total + addition, {**components, "shaping": addition}, reasons)

    return Combined("shaped", {"base": as_reward(base), "shaping": weighted(shaping)}, combine)


def _mapped(name: str, reward: RewardLike, change: Callable[[float], float]) -> Reward:
    """Return ``reward`` with its total changed by a function."""

    def combine(scores: Scores) -> Score | None:
        if (score := scores.get("unchanged")) is None:
            return None
        total, reasons = change(score.total), _reasons(scores, nested=False)
        if total != score.total:
            reasons["total"] = f"{name}: {score.total:g} became {total:g}"
        return Score(total, {"unchanged": score.total, **score.components}, reasons)

    return Combined(name, {"unchanged": as_reward(reward)}, combine)


def clip(reward: RewardLike, low: float = 0.0, high: float = 1.0) -> Reward:
    """Return ``reward`` clipped to ``[low, high]``.

    >>> clip(lambda response: 7.0)("x").total
    1.0
    """
    if low > high:
        raise ValueError(f"clip() needs low <= high, not {low} and {high}.")
    return _mapped("clip", reward, lambda total: max(low, min(high, total)))


def floored(reward: RewardLike, minimum: float = 0.1) -> Reward:
    """Return ``reward``, raised to at least ``minimum``.

    >>> floored(lambda response: 0.0)("x").total
    0.1
    """
    return _mapped("floored", reward, lambda total: max(minimum, total))


class MultiTask(Reward):
    """A reward for each task; a sample's metadata names the one that scores it."""

    name = "multi_task"

    def __init__(self, rewards: Mapping[str, Reward], key: str) -> None:
        self.rewards, self.key = dict(rewards), key

    async def outcomes(self, samples: Sequence[Sample]) -> list[RewardOutcome]:
        outcomes: list[RewardOutcome] = [None] * len(samples)
        for task, reward in self.rewards.items():
            chosen = [i for i, each in enumerate(samples) if each.metadata.get(self.key) == task]
            scored = await reward.outcomes([samples[index] for index in chosen]) if chosen else []
            for index, outcome in zip(chosen, scored, strict=True):
                outcomes[index] = outcome
        return outcomes

    def at(self, step: int) -> Reward:
        return MultiTask(_at(self.rewards, step), self.key)


def multi_task(rewards: Mapping[str, RewardLike], key: str = "task") -> Reward:
    """Return the reward that a sample's ``metadata[key]`` names; None for an unknown task.

    >>> reward = multi_task({"short": lambda response: len(response) < 5})
    >>> reward("abc", metadata={"task": "short"}).total, reward("abc", metadata={"task": "other"})
    (1.0, None)
    """
    return MultiTask({task: as_reward(reward, task) for task, reward in rewards.items()}, key)


def _flat(scores: Scores) -> dict[str, float]:
    """Return every component's value; those of nested rewards are named ``outer/inner``."""
    values: dict[str, float] = {}
    for name, score in scores.items():
        values[name] = score.total
        values |= {f"{name}/{inner}": value for inner, value in score.components.items()}
    return values


def _reasons(scores: Scores, nested: bool = True) -> dict[str, str]:
    """Return every component's reason; that of a total gets the component's name."""
    reasons: dict[str, str] = {}
    for name, score in scores.items():
        for inner, reason in score.reasons.items():
            place = f"{name}/{inner}" if nested else inner
            reasons[name if inner == "total" else place] = reason
    return reasons
