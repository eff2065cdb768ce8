"""Find the tokens whose ratio a clipped loss clips."""

import numpy as np
from numpy.typing import NDArray

from mint.rl.algorithms.importance import Array, bounded_ratio

BOUNDS = {"ppo": (0.8, 1.2), "cispo": (0.0, 4.0), "gspo": (1 - 3e-4, 1 + 4e-4)}
"""The protocol's own thresholds, where the config sets none."""


def is_clipped(
    loss_fn: str, log_ratio: Array, advantages: Array, low: Array | float, high: Array | float
) -> NDArray[np.bool_]:
    """Return which tokens have a clipped ratio.

    ``ppo`` and ``gspo`` clip a ratio that has gone further than a bound in the direction of the
    advantage: such a token has no gradient. ``cispo`` clips every ratio outside of its bounds.

    >>> is_clipped("ppo", np.log([1.5, 1.5]), np.array([1.0, -1.0]), 0.8, 1.2).tolist()
    [True, False]
    """
    ratio = bounded_ratio(log_ratio)
    above, below = ratio > high, ratio < low
    if loss_fn == "cispo":
        return np.asarray(above | below)
    return np.asarray(np.where(advantages > 0, above, below))
