"""Proof of a sampler's weights: the digest of its adapter, noted when the weights were fixed."""

from __future__ import annotations

import asyncio
import logging

from .errors import UserError
from .settings import Settings
from .store import SamplerRow, Store

log = logging.getLogger(__name__)


class WeightsUnproven(UserError):
    """A sampler does not have the weights that it was made with, so it answers nothing."""


async def prove(store: Store, row: SamplerRow, found: str | None, wanted: str | None) -> None:
    """Compare the digest of weights in an engine with that of the sampler, or else ``wanted``.

    The first time it is noted, for every later one. Raises WeightsUnproven.
    """
    known = row.digest or wanted
    if known is not None and known != found:
        log.error("the weights of %s have digest %s instead of %s", row.id, found, known)
        raise unproven(row.id, "their digest is not the one that was noted when they were saved")
    if row.digest is None and found is not None:
        row.digest = found
        await asyncio.to_thread(store.note_digest, row.id, found)


def unproven(sampler_id: str, why: str) -> WeightsUnproven:
    return WeightsUnproven(
        f"The sampler {sampler_id} cannot prove its weights, so it does not answer: {why}. Make a "
        "new one with save_weights_and_get_sampling_client(), or from a checkpoint with "
        "create_sampling_client(model_path=...). If a file was damaged, check the disk of the "
        "service."
    )


def no_longer_kept(sampler_id: str, settings: Settings) -> UserError:
    """The error of a sampler whose weights are nowhere any more."""
    return UserError(
        f"The weights of the sampler {sampler_id} are no longer kept: its checkpoint was "
        "deleted or overwritten, or it was an ephemeral one. Of these, a run keeps the "
        f"{settings.samplers_per_run} most recently used in memory and "
        f"{settings.samplers_kept_per_run} on disk. Make a new one with "
        "save_weights_and_get_sampling_client(), or save the weights under a name with "
        "save_weights_for_sampler()."
    )
