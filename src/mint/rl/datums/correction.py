"""Correct datums for the difference between the policy that sampled and the one that trains."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mint import types
from mint.rl.algorithms.importance import Correction, mismatch_figures
from mint.rl.datums.datum import replaced, values

Array = NDArray[np.float64]


def corrected(
    datums: Sequence[types.Datum], trainer_D_T: Sequence[Array], correction: Correction
) -> list[types.Datum]:
    """The datums with the trainer's own logprobs as the old policy's, and tokens weighed by how
    much likelier the trainer finds them than the sampler did.

    Use it when the two differ: a sampler in lower precision, another temperature, or a batch that
    is used for several steps. The ratio of the loss then only sees what training itself changes.
    """
    found = []
    for datum, trainer in zip(datums, trainer_D_T, strict=True):
        weights, sampler = values(datum, "weights"), values(datum, "logprobs")
        inside = weights != 0
        importance = np.zeros_like(weights)
        importance[inside] = correction.weights(trainer[inside], sampler[inside])
        found.append(
            replaced(
                datum,
                logprobs=np.where(inside, trainer, 0.0),
                weights=np.where(inside, weights * importance, 0.0),
            )
        )
    return found


def masked_share(before: Sequence[types.Datum], after: Sequence[types.Datum]) -> float:
    """The share of trained tokens that a correction has left out."""
    counts = [sum(int((values(d, "weights") != 0).sum()) for d in each) for each in (before, after)]
    return 1.0 - counts[1] / counts[0] if counts[0] else 0.0


def mismatch(datums: Sequence[types.Datum], trainer_D_T: Sequence[Array]) -> dict[str, float]:
    """Return how the trainer's logprobs of sampled tokens differ from the sampler's.

    At temperature 1, or with ``match_sampling``, they are the same policy before the first update
    and should agree. Otherwise the sampler's are those of the flattened or sharpened distribution.
    """
    if not datums:
        return {}
    differences = np.concatenate(
        [
            (trainer - values(datum, "logprobs"))[values(datum, "weights") != 0]
            for datum, trainer in zip(datums, trainer_D_T, strict=True)
        ]
    )
    return mismatch_figures(differences)
