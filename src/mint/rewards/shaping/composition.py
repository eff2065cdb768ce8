"""Rewards made of rewards. Every component's value is kept beside the total."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from mint.rewards.reward import Reward, RewardLike, as_reward
from mint.rewards.score import Failure, Outcome, Sample, Score

Weights = Mapping[str, float]


class Weighted(Reward):
    """The weighted sum of components; one that does not apply adds nothing."""

    name = "weighted"

    def __init__(self, components: Mapping[str, Reward], weights: Weights) -> None:
        if not components:
            raise ValueError("weighted() needs at least one component.")
        unknown = set(weights) ^ set(components)
        if unknown:
            raise ValueError(f"Components and weights differ in: {', '.join(sorted(unknown))}.")
        self.components = dict(components)
        self.weights = dict(weights)

    async def outcomes(self, samples: Sequence[Sample]) -> list[Outcome]:
        rows = await _rows(self.components, samples)
        return [self._total(row) for row in rows]

    def _total(self, row: Mapping[str, Outcome]) -> Outcome:
        scores: dict[str, Score] = {}
        for name, outcome in row.items():
            if isinstance(outcome, Failure):
                return outcome
            if outcome is not None:
                scores[name] = outcome
        if not scores:
            return None
        total = sum(self.weights[name] * score.total for name, score in scores.items())
        return Score(total, _flat(scores), _reasons(scores))

    def at(self, step: int) -> Reward:
        return Weighted({name: r.at(step) for name, r in self.components.items()}, self.weights)


def weighted(components: Mapping[str, tuple[float, RewardLike]]) -> Reward:
    """A weighted sum: ``{"name": (weight, reward)}``.

    >>> from mint.rewards import check_answer, match_format_exactly
    >>> total = weighted(
    ...     {"format": (0.3, match_format_exactly), "correctness": (0.7, check_answer)}
    ... )
    >>> total("It is 4.", metadata={"format": "The answer is [NUM].", "answer": "4"})
    Score(total=0.7, components={'format': 0.0, 'correctness': 1.0})
    """
    rewards = {name: as_reward(reward, name) for name, (_, reward) in components.items()}
    return Weighted(rewards, {name: weight for name, (weight, _) in components.items()})


class Scheduled(Reward):
    """A weighted sum whose weights follow the training step."""

    name = "schedule"

    def __init__(
        self, weights_at: Callable[[int], Weights], components: Mapping[str, Reward], step: int = 0
    ) -> None:
        self.weights_at = weights_at
        self.components = dict(components)
        self.step = step
        self._now = Weighted(self.components, weights_at(step))

    async def outcomes(self, samples: Sequence[Sample]) -> list[Outcome]:
        return await self._now.outcomes(samples)

    def at(self, step: int) -> Reward:
        components = {name: reward.at(step) for name, reward in self.components.items()}
        return Scheduled(self.weights_at, components, step)


def schedule(
    weights_at: Callable[[int], Weights], components: Mapping[str, RewardLike]
) -> Scheduled:
    """A weighted sum whose weights are a function of the step; ``reward.at(step)`` moves it.

    >>> from mint.rewards import check_answer, match_format_exactly
    >>> reward = schedule(
    ...     lambda step: {"format": 1.0 if step < 10 else 0.3, "right": 0.0 if step < 10 else 0.7},
    ...     {"format": match_format_exactly, "right": check_answer},
    ... )
    >>> sample = {"format": "The answer is [NUM].", "answer": "4"}
    >>> reward.at(0)("It is 4.", metadata=sample).total, reward.at(10)("4", metadata=sample).total
    (0.0, 0.7)
    """
    rewards = {name: as_reward(reward, name) for name, reward in components.items()}
    return Scheduled(weights_at, rewards)


class Gated(Reward):
    """A reward that is paid only when a gate is good enough."""

    name = "gated"

    def __init__(self, reward: Reward, gate: Reward, threshold: float, otherwise: float) -> None:
        self.reward, self.gate = reward, gate
        self.threshold, self.otherwise = threshold, otherwise

    async def outcomes(self, samples: Sequence[Sample]) -> list[Outcome]:
        rows = await _rows({"reward": self.reward, "gate": self.gate}, samples)
        return [self._total(row["reward"], row["gate"]) for row in rows]

    def _total(self, reward: Outcome, gate: Outcome) -> Outcome:
        for outcome in (reward, gate):
            if isinstance(outcome, Failure):
                return outcome
        if not isinstance(reward, Score) or not isinstance(gate, Score):
            return reward
        is_open = gate.total >= self.threshold
        total = reward.total if is_open else self.otherwise
        scores = {"reward": reward, "gate": gate}
        how = "paid: the gate is at least" if is_open else "not paid: the gate is under"
        reasons = {**_reasons(scores), "total": f"{how} {self.threshold:g}"}
        return Score(total, _flat(scores), reasons)

    def at(self, step: int) -> Reward:
        return Gated(self.reward.at(step), self.gate.at(step), self.threshold, self.otherwise)


def gated(
    reward: RewardLike, gate: RewardLike, threshold: float = 0.8, otherwise: float = 0.0
) -> Reward:
    """``reward`` where ``gate`` is at least ``threshold``, else ``otherwise``.

    >>> from mint.rewards import check_answer, match_format_exactly
    >>> reward = gated(check_answer, match_format_exactly)
    >>> reward("It is 4.", metadata={"format": "The answer is [NUM].", "answer": "4"}).total
    0.0
    """
    return Gated(as_reward(reward), as_reward(gate), threshold, otherwise)


class Shaped(Reward):
    """A base reward with small additions whose sum is bounded."""

    name = "shaped"

    def __init__(self, base: Reward, shaping: Weighted, limit: float) -> None:
        if limit < 0:
            raise ValueError(f"The limit of shaping must not be negative; it is {limit}.")
        self.base, self.shaping, self.limit = base, shaping, limit

    async def outcomes(self, samples: Sequence[Sample]) -> list[Outcome]:
        rows = await _rows({"base": self.base, "shaping": self.shaping}, samples)
        return [self._total(row["base"], row["shaping"]) for row in rows]

    def _total(self, base: Outcome, shaping: Outcome) -> Outcome:
        for outcome in (base, shaping):
            if isinstance(outcome, Failure):
                return outcome
        if not isinstance(base, Score) or not isinstance(shaping, Score):
            return base
        addition = max(-self.limit, min(self.limit, shaping.total))
        components = {"base": base.total, **base.components, **shaping.components}
        reasons = {**_reasons({"base": base}, nested=False), **shaping.reasons}
        if addition != shaping.total:
            reasons["shaping"] = f"{shaping.total:g}, limited to {self.limit:g} either way"
        return Score(base.total + addition, {**components, "shaping": addition}, reasons)

    def at(self, step: int) -> Reward:
        shaping = self.shaping.at(step)
        assert isinstance(shaping, Weighted)
        return Shaped(self.base.at(step), shaping, self.limit)


def shaped(
    base: RewardLike, shaping: Mapping[str, tuple[float, RewardLike]], limit: float = 0.3
) -> Reward:
    """``base`` plus weighted additions, together never more than ``limit`` either way.

    >>> from mint.rewards import check_answer, has_reasoning_steps
    >>> reward = shaped(check_answer, {"reasoning": (0.1, has_reasoning_steps)})
    >>> reward("First, 2 + 2 = 4. So the answer is 4.", metadata={"answer": "4"}).total
    1.1
    """
    additions = weighted(shaping)
    assert isinstance(additions, Weighted)
    return Shaped(as_reward(base), additions, limit)


class Mapped(Reward):
    """A reward whose total goes through a function."""

    def __init__(self, name: str, reward: Reward, change: Callable[[float], float]) -> None:
        self.name, self.reward, self.change = name, reward, change

    async def outcomes(self, samples: Sequence[Sample]) -> list[Outcome]:
        return [
            self._changed(outcome) if isinstance(outcome, Score) else outcome
            for outcome in await self.reward.outcomes(samples)
        ]

    def _changed(self, score: Score) -> Score:
        total = self.change(score.total)
        reasons = _reasons({"unchanged": score}, nested=False)
        if total != score.total:
            reasons["total"] = f"{self.name}: {score.total:g} became {total:g}"
        return Score(total, {"unchanged": score.total, **score.components}, reasons)

    def at(self, step: int) -> Reward:
        return Mapped(self.name, self.reward.at(step), self.change)


def clip(reward: RewardLike, low: float = 0.0, high: float = 1.0) -> Reward:
    """``reward`` kept inside ``[low, high]``.

    >>> clip(lambda response: 7.0)("x").total
    1.0
    """
    if low > high:
        raise ValueError(f"clip() needs low <= high, not {low} and {high}.")
    return Mapped("clip", as_reward(reward), lambda total: max(low, min(high, total)))


def floored(reward: RewardLike, minimum: float = 0.1) -> Reward:
    """``reward``, but never under ``minimum``.

    >>> floored(lambda response: 0.0)("x").total
    0.1
    """
    return Mapped("floored", as_reward(reward), lambda total: max(minimum, total))


class MultiTask(Reward):
    """A reward per task; each sample is scored by the one that its metadata names."""

    name = "multi_task"

    def __init__(self, rewards: Mapping[str, Reward], key: str) -> None:
        self.rewards, self.key = dict(rewards), key

    async def outcomes(self, samples: Sequence[Sample]) -> list[Outcome]:
        outcomes: list[Outcome] = [None] * len(samples)
        for task, reward in self.rewards.items():
            chosen = [
                i for i, sample in enumerate(samples) if sample.metadata.get(self.key) == task
            ]
            scored = await reward.outcomes([samples[index] for index in chosen]) if chosen else []
            for index, outcome in zip(chosen, scored, strict=True):
                outcomes[index] = outcome
        return outcomes

    def at(self, step: int) -> Reward:
        return MultiTask({task: r.at(step) for task, r in self.rewards.items()}, self.key)


def multi_task(rewards: Mapping[str, RewardLike], key: str = "task") -> Reward:
    """The reward that a sample's ``metadata[key]`` names; None for a task without one.

    >>> reward = multi_task({"short": lambda response: len(response) < 5})
    >>> reward("abc", metadata={"task": "short"}).total, reward("abc", metadata={"task": "other"})
    (1.0, None)
    """
    return MultiTask({task: as_reward(reward, task) for task, reward in rewards.items()}, key)


async def _rows(
    rewards: Mapping[str, Reward], samples: Sequence[Sample]
) -> list[dict[str, Outcome]]:
    """One row per sample, with the outcome of every reward."""
    columns = await asyncio.gather(*(reward.outcomes(samples) for reward in rewards.values()))
    return [dict(zip(rewards, row, strict=True)) for row in zip(*columns, strict=True)]


def _flat(scores: Mapping[str, Score]) -> dict[str, float]:
    """Every component's value, those of nested rewards under ``outer/inner``."""
    values: dict[str, float] = {}
    for name, score in scores.items():
        values[name] = score.total
        values |= {f"{name}/{inner}": value for inner, value in score.components.items()}
    return values


def _reasons(scores: Mapping[str, Score], nested: bool = True) -> dict[str, str]:
    """Every component's reason: that of a total under the component's own name."""
    reasons: dict[str, str] = {}
    for name, score in scores.items():
        for inner, reason in score.reasons.items():
            place = f"{name}/{inner}" if nested else inner
            reasons[name if inner == "total" else place] = reason
    return reasons
