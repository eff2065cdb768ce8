"""The KL reference: its logprobs of rollouts, as a penalty in rewards or a term in the loss."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import mint
from mint import types
from mint.rl.algorithms.advantage import has_signal
from mint.rl.algorithms.importance import Array
from mint.rl.algorithms.kl import k1, kl_figures
from mint.rl.datums.datum import has_weight, replaced, values
from mint.rl.rollouts.rollout import Group, MissingLogprobs, Rollout, Segment

Clients = Mapping[int, mint.SamplingClient]  # the weights of each version that sampled


@dataclass(frozen=True)
class Reference:
    """A frozen model that rollouts are compared with.

    If rollouts were sampled at a temperature other than 1, their logprobs at 1 are computed by the
    weights that sampled them (``policy``), so that the temperature does not count as KL.
    """

    client: mint.SamplingClient
    coefficient: float
    samples: int = 0  # number of rollouts to measure without a penalty
    every_group: bool = False  # also penalise groups in which all answers are equal

    async def penalise(self, groups: Sequence[Group], policy: Clients | None) -> dict[str, float]:
        """Subtract ``coefficient * k1`` from the rewards of groups with signal.

        Return the KL over all groups. Without a coefficient, only some rollouts are measured.
        """
        if not self.coefficient and not self.samples:
            return {}
        measured = [
            (rollout, self.every_group or any(map(has_signal, group.returns_by_turn)))
            for group in groups
            for rollout in group.counted
            if rollout.length
        ]
        if not self.coefficient:  # change nothing, and compare rollouts spread over the groups
            measured = measured[:: max(1, -(-len(measured) // self.samples))]
        pairs = await asyncio.gather(*(self._logprobs(rollout, policy) for rollout, _ in measured))
        if self.coefficient:
            for (rollout, pays), (mine, theirs) in zip(measured, pairs, strict=True):
                if pays:
                    rollout.penalty -= self.coefficient * float(k1(mine, theirs).sum())
        return kl_figures(pairs)

    async def with_logprobs(self, datums: Sequence[types.Datum]) -> list[types.Datum]:
        """Return the datums with the reference's logprobs, for a KL term in the loss."""
        found = await asyncio.gather(*(score(self.client, _segment(datum)) for datum in datums))
        scored = []
        for datum, logprobs in zip(datums, found, strict=True):
            spread = np.zeros(len(values(datum, "weights")))
            spread[has_weight(datum)] = logprobs
            scored.append(replaced(datum, reference_logprobs=spread))
        return scored

    async def _logprobs(self, rollout: Rollout, policy: Clients | None) -> tuple[Array, Array]:
        segments = [segment.trimmed() for segment in rollout.segments if segment.sampled_count]
        theirs = [score(self.client, segment) for segment in segments]
        if policy is None:
            mine = np.asarray(rollout.sampled_logprobs, dtype=np.float64)
            return mine, np.concatenate(await asyncio.gather(*theirs))
        ours = [score_by_version(policy, segment) for segment in segments]
        both = await asyncio.gather(*ours, *theirs)
        return np.concatenate(both[: len(ours)]), np.concatenate(both[len(ours) :])


def _segment(datum: types.Datum) -> Segment:
    """Return a datum's tokens as a segment; those with a weight count as sampled."""
    targets = datum.loss_fn_inputs["target_tokens"].data
    tokens = [*datum.model_input.to_ints(), *(int(token) for token in targets[-1:])]
    return Segment(tokens, [0.0] * len(tokens), [False, *has_weight(datum).tolist()])


async def score_by_version(clients: Clients, segment: Segment) -> Array:
    """Return the logprob of each sampled token under the weights that sampled it."""
    made_by = [version for version in segment.versions if version is not None]
    versions = sorted(set(made_by))
    found = await asyncio.gather(*(score(clients[version], segment) for version in versions))
    chosen = [found[versions.index(version)][i] for i, version in enumerate(made_by)]
    return np.asarray(chosen, dtype=np.float64)


async def score(client: mint.SamplingClient, segment: Segment) -> Array:
    """Return the logprobs, at temperature 1, of a segment's sampled tokens under another model."""
    found = await client.compute_logprobs_async(types.ModelInput.from_ints(segment.tokens))
    chosen = [logprob for logprob, sampled in zip(found, segment.sampled, strict=True) if sampled]
    known = [logprob for logprob in chosen if logprob is not None]
    if len(known) < len(chosen):
        raise MissingLogprobs(
            f"The service sent {len(known)} logprobs for {len(chosen)} sampled tokens. The KL "
            "needs all of them. The first token of a context has none, so every context needs a "
            "prompt."
        )
    return np.asarray(known, dtype=np.float64)
