"""Ratios of trainer to sampler in datums: corrected, measured, and clipped by the loss."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mint import types
from mint.rl.algorithms.importance import BOUNDS, Array, Correction, is_clipped, mismatch_figures
from mint.rl.datums.datum import has_weight, replaced, trained_pairs, trained_tokens, values
from mint.rl.settings.config import RLConfig


def corrected(
    datums: Sequence[types.Datum], trainer_D_T: Sequence[Array], correction: Correction
) -> list[types.Datum]:
    """Return datums with the trainer's logprobs as the old ones, and with tokens weighted by the
    importance ratio of trainer to sampler. The ratio of the loss is then 1 before training."""
    found = []
    for datum, trainer in zip(datums, trainer_D_T, strict=True):
        weights, inside = values(datum, "weights").copy(), has_weight(datum)
        sampler = values(datum, "logprobs")[inside]
        weights[inside] *= correction.weights(trainer[inside], sampler)
        found.append(replaced(datum, logprobs=np.where(inside, trainer, 0.0), weights=weights))
    return found


def masked_share(before: Sequence[types.Datum], after: Sequence[types.Datum]) -> float:
    """Return the share of trained tokens that a correction has left out."""
    count = trained_tokens(before)
    return 1.0 - trained_tokens(after) / count if count else 0.0


def mismatch(datums: Sequence[types.Datum], trainer_D_T: Sequence[Array]) -> dict[str, float]:
    """Return how the trainer's logprobs of sampled tokens differ from the sampler's.

    At temperature 1, or with ``match_sampling``, they should agree before the first update.
    """
    pairs = trained_pairs(datums, trainer_D_T, "logprobs")
    return mismatch_figures(np.concatenate([np.empty(0), *(mine - own for mine, own in pairs)]))


Pass = tuple[Sequence[types.Datum], Sequence[Array]]
"""The datums of one forward_backward, and the trainer's logprobs that it returned."""


def clipped_share(cfg: RLConfig, passes: Sequence[Pass]) -> dict[str, float]:
    """Return the share of tokens with an advantage that were clipped, over a step's updates."""
    found = [
        _clipped(cfg, datum, trainer)
        for datums, trainer_D_T in passes
        for datum, trainer in zip(datums, trainer_D_T, strict=True)
    ]
    tokens = np.concatenate([np.empty(0, bool), *found])
    return {"train/clipped": float(tokens.mean())} if len(tokens) else {}


def _clipped(cfg: RLConfig, datum: types.Datum, trainer: Array) -> NDArray[np.bool_]:
    """Return which of a datum's tokens with an advantage were clipped.

    The bounds are the datum's own, those of the config, or those of the loss.
    """
    advantages = values(datum, "advantages")
    inside = has_weight(datum) & (advantages != 0)
    log_ratio = trainer - values(datum, "logprobs")
    if cfg.loss_fn == "gspo":
        sequence = values(datum, "sequence_ratio_mask") != 0
        log_ratio = np.full_like(log_ratio, log_ratio[sequence].mean() if sequence.any() else 0.0)
    bounds: list[Array | float] = []
    for name, own in zip(("low", "high"), BOUNDS[cfg.loss_fn], strict=True):
        key = f"clip_{name}_threshold"
        given = getattr(cfg, key)
        fixed = own if given is None else given
        bounds.append(values(datum, key) if key in datum.loss_fn_inputs else fixed)
    return np.asarray(is_clipped(cfg.loss_fn, log_ratio, advantages, *bounds)[inside])
