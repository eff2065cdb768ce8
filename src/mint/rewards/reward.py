"""The interface of a reward, and the adapter for functions of any known signature."""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, Union

from mint.rewards.score import Failure, RewardOutcome, Sample, Score, read_score
from mint.rewards.signature import SignatureError, read_signature

Result = TypeVar("Result")
RewardLike = Union["Reward", Callable[..., Any], str]


class RewardFailed(RuntimeError):
    """A reward raised; the message names the reward and its error."""


class Reward(ABC):
    """Scores samples, many at a time. Every reward of the library can be used as one."""

    name: str = "reward"

    @abstractmethod
    async def outcomes(self, samples: Sequence[Sample]) -> list[RewardOutcome]:
        """Return a score, a failure, or None ("does not apply") for each sample. Never raises."""

    def score(self, samples: Sequence[Sample]) -> list[Score | None]:
        """Return the scores of the samples; raise :class:`RewardFailed` if one has none."""
        scores: list[Score | None] = []
        for outcome in run(self.outcomes(samples)):
            if isinstance(outcome, Failure):
                raise RewardFailed(str(outcome)) from outcome.error
            scores.append(outcome)
        return scores

    def __call__(
        self, response: str, prompt: str = "", metadata: Mapping[str, Any] | None = None
    ) -> Score | None:
        """Return the score of one response."""
        return self.score([Sample(response, prompt, metadata or {})])[0]

    def at(self, step: int) -> Reward:
        """Return this reward as it is at a training step; only schedules change."""
        return self


class SingleReward(Reward):
    """A reward that scores each sample on its own, ``parallel`` of them at a time."""

    parallel: int = 10_000

    @abstractmethod
    async def score_one(self, sample: Sample) -> Score | None:
        """Score one sample. An exception becomes the sample's failure."""

    async def outcomes(self, samples: Sequence[Sample]) -> list[RewardOutcome]:
        slots = asyncio.Semaphore(self.parallel)

        async def one(sample: Sample) -> RewardOutcome:
            async with slots:
                try:
                    return await self.score_one(sample)
                except Exception as error:
                    return Failure(self.name, error)

        return list(await asyncio.gather(*(one(sample) for sample in samples)))


class FunctionReward(SingleReward):
    """A function as a reward.

    >>> reward = FunctionReward(lambda response, ground_truth: response == ground_truth)
    >>> float(reward("4", metadata={"ground_truth": "4"}))
    1.0
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        self.function = function
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        self.signature = read_signature(function)

    async def outcomes(self, samples: Sequence[Sample]) -> list[RewardOutcome]:
        if self.signature.kind != "batched" or not samples:
            return await super().outcomes(samples)
        try:
            values = list(await _awaited(self.function(**self.signature.columns(samples))))
            if len(values) != len(samples):
                raise ValueError(
                    f"The batched reward returned {len(values)} values for {len(samples)} samples."
                )
        except Exception as error:
            return [Failure(self.name, error) for _ in samples]
        return [self._read(value) for value in values]

    async def score_one(self, sample: Sample) -> Score | None:
        if self.signature.kind == "positional":
            value = self.function(sample.response, sample.prompt, dict(sample.metadata))
        else:
            value = self.function(**self.signature.arguments(sample))
        return read_score(await _awaited(value))

    def _read(self, value: Any) -> RewardOutcome:
        try:
            return read_score(value)
        except Exception as error:
            return Failure(self.name, error)


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def as_reward(reward: RewardLike, name: str | None = None) -> Reward:
    """Return a reward from a reward, a function of any known signature, or a registered name.

    >>> from mint.rewards import check_answer
    >>> as_reward(check_answer)("The answer is 4.", metadata={"ground_truth": "4"}).total
    1.0
    """
    if isinstance(reward, Reward):
        return reward
    if isinstance(reward, str):
        from mint.rewards.registry import find_reward

        return find_reward(reward)
    if callable(reward):
        return FunctionReward(reward, name)
    raise SignatureError(
        f"{reward!r} is not a reward. Pass a function, a Reward, or a name from `mint rewards "
        "list`."
    )


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to completion from synchronous code, inside a running event loop or not."""
    if not in_event_loop():
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, coroutine).result()


def in_event_loop() -> bool:
    """Return whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
