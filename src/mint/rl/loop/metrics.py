"""Metrics of a step's rollouts."""

from collections.abc import Sequence
from itertools import compress
from statistics import fmean

from mint.rewards.shaping.aspects import repeated_share
from mint.rl.algorithms.importance import entropy
from mint.rl.rollouts.rollout import Group, Rollout
from mint.rl.sampling.batch import Batch

_KINDS = ("signal", "all_right", "all_wrong", "all_equal", "unscored")  # see Group.kind
_LOOKED_AT = 64  # rollouts of a step whose repetition is measured


def measure(groups: Sequence[Group], threshold: float) -> dict[str, float]:
    """Rewards, signal, lengths, entropy and repetition of a step's rollouts."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    scored = [(r.reward, r.truncated) for r in rollouts if r.reward is not None]
    rewards = [reward for reward, _ in scored]
    of_some = {
        "reward/truncated": [reward for reward, truncated in scored if truncated],
        "reward/untruncated": [reward for reward, truncated in scored if not truncated],
    }
    for name in sorted({name for rollout in rollouts for name in rollout.components}):
        values = [r.components[name] for r in rollouts if name in r.components]
        of_some[f"component/{name}"] = values
    kinds = [group.kind(threshold) for group in groups]
    return {
        "rollouts": float(len(rollouts)),
        "rollouts/signal": float(
            sum(len(g.counted) for g, kind in zip(groups, kinds, strict=True) if kind == "signal")
        ),
        "reward/mean": _mean(rewards),
        "reward/success": _mean([reward >= threshold for reward in rewards]),
        "reward/failures": float(sum(rollout.error is not None for rollout in rollouts)),
        "groups": float(len(groups)),
        **{f"groups/{kind}": float(kinds.count(kind)) for kind in _KINDS},
        "length/mean": _mean([rollout.length for rollout in rollouts]),
        "length/max": float(max((rollout.length for rollout in rollouts), default=0)),
        "length/truncated": _mean([rollout.truncated for rollout in rollouts]),
        "policy/entropy": entropy([x for rollout in rollouts for x in rollout.sampled_logprobs]),
        "policy/repetition": _mean([repetition(r) for r in rollouts[:_LOOKED_AT]]),
        **{name: fmean(values) for name, values in of_some.items() if values},
    }


def staleness(batch: Batch) -> dict[str, float]:
    """Return how old the weights were that sampled a batch, and how many groups were too old."""
    versions = [v for group in batch.groups for r in group.rollouts for v in r.versions]
    ages = [batch.step - 1 - version for version in versions]
    return {
        "staleness/mean": _mean(ages),
        "staleness/max": float(max(ages, default=0)),
        "staleness/dropped": float(len(batch.stale) + batch.aborted),
    }


def repetition(rollout: Rollout) -> float:
    """Return the share of a rollout's runs of four tokens that occurred in it before."""
    written = [t for segment in rollout.segments for t in compress(segment.tokens, segment.sampled)]
    return float(repeated_share(written, 4)) if len(written) >= 8 else 0.0


def _mean(numbers: Sequence[float]) -> float:
    return float(fmean(numbers)) if numbers else 0.0
