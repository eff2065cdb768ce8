"""Sample the answers to a prompt, and score them as soon as they arrive."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import mint
from mint.rewards import TooManyFailures, overlong_penalty
from mint.rl.agents.environment import run_environment
from mint.rl.data.prompts import Item
from mint.rl.rollouts.failures import CodeFailure, FailureLog
from mint.rl.rollouts.policy import Policy, make_segment, seed_for
from mint.rl.rollouts.rollout import Group, Rollout
from mint.rl.rollouts.scoring import FailureCounter, apply_score, score_responses
from mint.rl.sampling.batch import Batch
from mint.rl.settings.config import RLConfig
from mint.rl.settings.schedules import reward_weights_at


class StepFailed(TooManyFailures):
    """Too many rewards of a step, or of an evaluation, are missing. ``batch`` has its answers."""

    def __init__(self, reason: str, batch: Batch, sampled_for: str) -> None:
        super().__init__(reason)
        self.batch = batch
        self.sampled_for = sampled_for


class Collector:
    """Samples and scores groups: answers to an adapter's prompt, or rollouts of an environment."""

    def __init__(
        self,
        adapter: Any,
        cfg: RLConfig,
        counter: FailureCounter,
        failures: FailureLog | None = None,
        sampled_for: str = "training",
    ) -> None:
        self.adapter = adapter
        self.cfg = cfg
        self.counter = counter
        self.workers = asyncio.Semaphore(cfg.reward_workers) if cfg.reward_workers else None
        self.failures = failures or FailureLog()
        self.sampled_for = sampled_for
        self.answered: Counter[int] = Counter()  # answers so far of each item in progress, by id

    async def groups(
        self, policy: Policy, items: Sequence[Item], step: int, size: int, round_: str = ""
    ) -> list[Group]:
        """One group for every item, all in flight at once."""
        tasks = [
            asyncio.ensure_future(self.group(policy, item, step, size, f"{round_}{index}"))
            for index, item in enumerate(items)
        ]
        try:
            groups = await asyncio.gather(*tasks)
        except (Exception, asyncio.CancelledError):
            await cancel_all(tasks)
            raise
        self.check(groups, policy, step)
        return groups

    def check(self, groups: list[Group], policy: Policy, step: int) -> None:
        """Raise :class:`StepFailed` when too many rewards are missing."""
        try:
            self.counter.check(groups)
        except TooManyFailures as error:
            batch = Batch(step, groups, policy)
            raise StepFailed(str(error), batch, self.sampled_for) from error

    async def group(self, policy: Policy, item: Item, step: int, size: int, place: str) -> Group:
        """Sample and score ``size`` answers to one item; step and place decide the seed."""
        try:
            if item.prompt is None:
                group = await self._environment_group(policy, item, step, size, place)
            else:
                group = await self._prompt_group(policy, item, step, size, place)
        finally:
            del self.answered[id(item)]
        group.version = min((v for r in group.rollouts for v in r.versions), default=policy.version)
        now, cfg = time.time(), self.cfg
        for rollout in group.rollouts:
            rollout.sampled_at = now
            self.counter.record(item.sample, rollout)
            for failure in rollout.failures:
                self.failures.see(failure, step, self.sampled_for)
            rollout.masked = rollout.truncated and cfg.mask_truncated
            if cfg.overlong_buffer:
                rollout.penalty += overlong_penalty(
                    rollout.text,
                    tokens=_longest_reply(rollout),
                    max_tokens=cfg.max_tokens,
                    buffer=cfg.overlong_buffer,
                    limit=cfg.overlong_limit,
                )
        return group

    async def _prompt_group(
        self, policy: Policy, item: Item, step: int, size: int, place: str
    ) -> Group:
        assert item.prompt is not None
        prompt = str(policy.tokenizer.decode(list(item.prompt)))
        group = Group(item.sample, item.identity, prompt, [])
        seed = seed_for(self.cfg.seed, "sample", step, place)
        try:
            answers = await policy.sample(item.prompt, size, seed)
        except mint.RequestFailedError as error:  # of this prompt, as when it is too long
            failure = CodeFailure(f"{type(error).__name__}: {error}", "", "")
            group.rollouts = [
                Rollout([], "", error=failure.error, failures=[failure]) for _ in range(size)
            ]
            return group
        self.answered[id(item)] += size
        group.rollouts = [
            Rollout(
                [make_segment(item.prompt, answer)],
                policy.text(answer),
                truncated=answer.truncated,
            )
            for answer in answers
        ]
        texts = [rollout.text for rollout in group.rollouts]
        values = await score_responses(self.adapter, texts, item.sample, self.workers)
        weights = reward_weights_at(self.cfg, step)
        for rollout, value in zip(group.rollouts, values, strict=True):
            apply_score(rollout, value, weights)
        return group

    async def _environment_group(
        self, policy: Policy, item: Item, step: int, size: int, place: str
    ) -> Group:
        weights = reward_weights_at(self.cfg, step)

        async def one(index: int) -> Rollout:
            seed = seed_for(self.cfg.seed, "rollout", step, place, index)
            found = await run_environment(
                self.adapter, item.sample, policy, self.cfg, seed, weights
            )
            self.answered[id(item)] += 1
            return found

        rollouts = await asyncio.gather(*(one(index) for index in range(size)))
        prompt = next((rollout.prompt for rollout in rollouts if rollout.prompt), "")
        return Group(item.sample, item.identity, prompt, list(rollouts))


async def cancel_all(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _longest_reply(rollout: Rollout) -> int:
    """Tokens of the longest of a conversation's replies, each of which has ``max_tokens``."""
    runs = (run for segment in rollout.segments for _, run in groupby(segment.sampled))
    return max(map(sum, runs), default=0)
