"""Sample the answers to a prompt, and score them as soon as they arrive."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import mint
from mint.rewards import overlong_penalty
from mint.rl.agents.environment import run_environment
from mint.rl.data.prompts import Item
from mint.rl.rollouts.failures import CodeFailure, FailureLog
from mint.rl.rollouts.policy import Policy, make_segment, seed_for
from mint.rl.rollouts.rollout import Group, Rollout
from mint.rl.rollouts.scoring import FailureCounter, apply_score, score_responses
from mint.rl.sampling.shared_requests import SharingPolicy
from mint.rl.settings.config import RLConfig
from mint.rl.settings.schedules import reward_weights_at, step_of_draw


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
        self._talks = False  # whether a conversation had several replies

    async def groups(
        self, policy: Policy, items: Sequence[Item], step: int, size: int, round_: str = ""
    ) -> list[Group]:
        """Sample one group for every item, all in flight at once."""
        tasks = [
            asyncio.ensure_future(self.group(policy, item, step, size, f"{round_}{index}"))
            for index, item in enumerate(items)
        ]
        try:
            groups = await asyncio.gather(*tasks)
        except (Exception, asyncio.CancelledError):
            await cancel_all(tasks)
            raise
        self.counter.check(groups)
        return groups

    async def group(self, policy: Policy, item: Item, step: int, size: int, place: str) -> Group:
        """Sample and score ``size`` answers to one item; step and place decide the seed."""
        try:
            if item.prompt is None:
                rollouts = await self._conversations(policy, item, step, size, place)
                prompt = next((rollout.prompt for rollout in rollouts if rollout.prompt), "")
            else:
                rollouts = await self._answers(policy, item, step, size, place)
                prompt = str(policy.tokenizer.decode(list(item.prompt)))
        finally:
            del self.answered[id(item)]
        now, cfg = time.time(), self.cfg
        for rollout in rollouts:
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
        version = min((v for rollout in rollouts for v in rollout.versions), default=policy.version)
        return Group(item.sample, item.identity, prompt, rollouts, version)

    async def _answers(
        self, policy: Policy, item: Item, step: int, size: int, place: str
    ) -> list[Rollout]:
        assert item.prompt is not None
        seed = seed_for(self.cfg.seed, "sample", step, place)
        try:
            answers = await policy.sample(item.prompt, size, seed)
        except mint.RequestFailedError as error:  # this prompt is at fault: too long, for example
            failure = CodeFailure(f"{type(error).__name__}: {error}", "", "")
            return [Rollout([], "", error=failure.error, failures=[failure]) for _ in range(size)]
        self.answered[id(item)] += size
        rollouts = [
            Rollout([make_segment(item.prompt, each)], policy.text(each), truncated=each.truncated)
            for each in answers
        ]
        texts = [rollout.text for rollout in rollouts]
        values = await score_responses(self.adapter, texts, item.sample, self.workers)
        weights = self._weights(policy, step)
        for rollout, value in zip(rollouts, values, strict=True):
            apply_score(rollout, value, weights)
        return rollouts

    def _weights(self, policy: Policy, draw: int) -> Mapping[str, float] | None:
        return reward_weights_at(self.cfg, step_of_draw(self.cfg, draw, policy.version))

    async def _conversations(
        self, policy: Policy, item: Item, step: int, size: int, place: str
    ) -> list[Rollout]:
        weights = self._weights(policy, step)
        if policy.digest is not None and not self._talks:  # a mint service, which takes seeds
            policy = SharingPolicy.of(policy)

        async def one(index: int) -> Rollout:
            seed = seed_for(self.cfg.seed, "rollout", step, place, index)
            found = await run_environment(
                self.adapter, item.sample, policy, self.cfg, seed, weights
            )
            self.answered[id(item)] += 1
            return found

        rollouts = await asyncio.gather(*(one(index) for index in range(size)))
        self._talks |= any(len(rollout.turns) > 1 for rollout in rollouts)
        return list(rollouts)


async def cancel_all(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _longest_reply(rollout: Rollout) -> int:
    """Tokens of the longest of a conversation's replies, each of which has ``max_tokens``."""
    runs = (run for segment in rollout.segments for _, run in groupby(segment.sampled))
    return max(map(sum, runs), default=0)
