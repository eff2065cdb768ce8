"""Staying near a reference: KL in the reward (k1), and a steadier estimate to report (k3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import mint
from mint import types
from mint.rl.advantage import has_signal
from mint.rl.rollout import Group, MissingLogprobs, Rollout, Segment

Array = NDArray[np.float64]


def k1(policy: Array, reference: Array) -> Array:
    """log p - log ref of each sampled token: unbiased, and right as part of a reward.

    >>> [round(float(x), 6) for x in k1(np.log([0.5]), np.log([0.25]))]
    [0.693147]
    """
    return policy - reference


def k3(policy: Array, reference: Array) -> Array:
    """ref/p - 1 - log(ref/p): never negative, of low variance, to report. As a loss its gradient
    would be that of another divergence, so it is not used as one.

    >>> [round(float(x), 6) for x in k3(np.log([0.5]), np.log([0.25]))]
    [0.193147]
    """
    difference = np.clip(reference - policy, -20.0, 20.0)
    return np.asarray(np.exp(difference) - 1 - difference)


class Reference:
    """A frozen model that rollouts are compared with.

    ``policy`` is asked for its logprobs at temperature 1 when the rollouts were sampled at another:
    the KL must not count what the temperature did.
    """

    def __init__(self, client: mint.SamplingClient, coefficient: float, samples: int = 0) -> None:
        self.client = client
        self.coefficient = coefficient
        self.samples = samples  # rollouts to measure when nothing is penalised

    async def penalise(
        self, groups: Sequence[Group], policy: mint.SamplingClient | None
    ) -> dict[str, float]:
        """Take ``coefficient * k1`` from the rewards of all groups in which some answer was better
        than another. Returns what to report, of all groups: a policy that has collapsed gives such
        in which all are alike. Without a coefficient, only some rollouts are measured.
        """
        if not self.coefficient:
            return _figures(await self._measured(groups, policy))
        found = await asyncio.gather(*(self._compare(group, policy) for group in groups))
        return _figures([pair for of_group in found for pair in of_group])

    async def _measured(
        self, groups: Sequence[Group], policy: mint.SamplingClient | None
    ) -> list[tuple[Array, Array]]:
        """Compare some rollouts, evenly spread over the groups, and change none."""
        rollouts = [r for group in groups for r in group.counted if r.length]
        apart = max(1, -(-len(rollouts) // self.samples))
        chosen = rollouts[::apart]
        return list(await asyncio.gather(*(self._logprobs(r, policy) for r in chosen)))

    async def _compare(
        self, group: Group, policy: mint.SamplingClient | None
    ) -> list[tuple[Array, Array]]:
        rollouts = [rollout for rollout in group.counted if rollout.length]
        pairs = await asyncio.gather(*(self._logprobs(rollout, policy) for rollout in rollouts))
        if any(has_signal(returns_G) for returns_G in group.returns_by_turn):
            for rollout, (mine, theirs) in zip(rollouts, pairs, strict=True):
                rollout.penalty -= self.coefficient * float(k1(mine, theirs).sum())
        return pairs

    async def _logprobs(
        self, rollout: Rollout, policy: mint.SamplingClient | None
    ) -> tuple[Array, Array]:
        segments = [segment.trimmed() for segment in rollout.segments if segment.sampled_count]
        theirs = [score(self.client, segment) for segment in segments]
        if policy is None:
            mine = np.asarray(rollout.sampled_logprobs, dtype=np.float64)
            return mine, np.concatenate(await asyncio.gather(*theirs))
        ours = [score(policy, segment) for segment in segments]
        both = await asyncio.gather(*ours, *theirs)
        return np.concatenate(both[: len(ours)]), np.concatenate(both[len(ours) :])


def _figures(pairs: Sequence[tuple[Array, Array]]) -> dict[str, float]:
    if not pairs:
        return {}
    mine, theirs = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return {
        "kl/k1": float(k1(mine, theirs).mean()),
        "kl/k3": float(k3(mine, theirs).mean()),
    }


async def score(client: mint.SamplingClient, segment: Segment) -> Array:
    """The logprobs, at temperature 1, of a segment's sampled tokens under another model."""
    found = await client.compute_logprobs_async(types.ModelInput.from_ints(segment.tokens))
    chosen = [logprob for logprob, sampled in zip(found, segment.sampled, strict=True) if sampled]
    known = [logprob for logprob in chosen if logprob is not None]
    if len(known) < len(chosen):
        raise MissingLogprobs(
            f"The service sent {len(known)} logprobs for {len(chosen)} sampled tokens. Without all "
            "of them the KL is unknown; the first token of a context has none: give it a prompt."
        )
    return np.asarray(known, dtype=np.float64)
