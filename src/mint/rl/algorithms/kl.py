"""Estimates of the KL divergence from a reference: k1 for rewards, k3 to report."""

from collections.abc import Sequence

import numpy as np

from mint.rl.algorithms.importance import Array


def k1(policy: Array, reference: Array) -> Array:
    """log p - log ref of each sampled token: unbiased, and right as part of a reward.

    >>> [round(float(x), 6) for x in k1(np.log([0.5]), np.log([0.25]))]
    [0.693147]
    """
    return policy - reference


def k3(policy: Array, reference: Array) -> Array:
    """ref/p - 1 - log(ref/p): never negative, of low variance, to report.

    >>> [round(float(x), 6) for x in k3(np.log([0.5]), np.log([0.25]))]
    [0.193147]
    """
    difference = np.clip(reference - policy, -20.0, 20.0)
    return np.asarray(np.exp(difference) - 1 - difference)


def kl_figures(pairs: Sequence[tuple[Array, Array]]) -> dict[str, float]:
    """Return the mean k1 and k3 over the tokens of pairs of policy and reference logprobs."""
    if not pairs:
        return {}
    mine, theirs = (np.concatenate(side) for side in zip(*pairs, strict=True))
    if not len(mine):
        return {}
    return {
        "kl/k1": float(k1(mine, theirs).mean()),
        "kl/k3": float(k3(mine, theirs).mean()),
    }
