"""The share of a batch's tokens that a clipped loss clips."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mint import types
from mint.rl.algorithms.clipping import BOUNDS, is_clipped
from mint.rl.datums.datum import values
from mint.rl.settings.config import RLConfig

Array = NDArray[np.float64]
Pass = tuple[Sequence[types.Datum], Sequence[Array]]
"""The datums of one forward_backward, and the trainer's logprobs that it returned."""


def clipped_share(cfg: RLConfig, passes: Sequence[Pass]) -> dict[str, float]:
    """The share of tokens with an advantage whose ratio was clipped, over all updates of a step."""
    found = [
        _clipped(cfg, datum, trainer)
        for datums, trainer_D_T in passes
        for datum, trainer in zip(datums, trainer_D_T, strict=True)
    ]
    tokens = np.concatenate(found) if found else np.empty(0, bool)
    return {"train/clipped": float(tokens.mean())} if len(tokens) else {}


def _clipped(cfg: RLConfig, datum: types.Datum, trainer: Array) -> NDArray[np.bool_]:
    """Return which of a datum's tokens with an advantage were clipped."""
    advantages = values(datum, "advantages")
    inside = (values(datum, "weights") != 0) & (advantages != 0)
    log_ratio = trainer - values(datum, "logprobs")
    if cfg.loss_fn == "gspo":
        sequence = values(datum, "sequence_ratio_mask") != 0
        log_ratio = np.full_like(log_ratio, log_ratio[sequence].mean() if sequence.any() else 0.0)
    low, high = _bounds(cfg, datum)
    clipped = is_clipped(cfg.loss_fn, log_ratio, advantages, low, high)
    return np.asarray(clipped[inside])


def _bounds(cfg: RLConfig, datum: types.Datum) -> list[Array | float]:
    """The bounds of a datum: its own, those of the config, or those of the loss."""
    found: list[Array | float] = []
    for name, own in zip(("low", "high"), BOUNDS[cfg.loss_fn], strict=True):
        key = f"clip_{name}_threshold"
        given: float | None = getattr(cfg, key)
        own = own if given is None else given
        found.append(values(datum, key) if key in datum.loss_fn_inputs else own)
    return found
