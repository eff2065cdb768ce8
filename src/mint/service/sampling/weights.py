"""A sampler's weights: where they come from, and the proof that they are its own.

Their digest is noted when they are fixed, and compared wherever they are loaded or restored.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from mint.service.background import in_background
from mint.service.checkpoints.links import link_version
from mint.service.checkpoints.storage import CheckpointPath
from mint.service.engines.process import EngineProcess
from mint.service.errors import UserError
from mint.service.parts import Parts
from mint.service.sampling.evicted import EvictedSamplers
from mint.service.store.database import SamplerRow

log = logging.getLogger(__name__)
RestoreRun = Callable[[str, str], Awaitable[None]]
"""Restores a run of a user in its engine, and with it the run's samplers."""


class WeightsUnproven(UserError):
    """A sampler does not have the weights that it was made with, so it answers nothing."""


@dataclass
class SamplerInEngine:
    """A sampler's row, and the engine that holds its weights now (if one does).

    One whose weights were recomputed and came out different is ``refused``, with the reason.
    """

    row: SamplerRow
    engine: EngineProcess | None = None
    refused: WeightsUnproven | None = None
    users: int = 0
    caller: str = ""
    used_at: float = field(default_factory=time.monotonic)
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def tenant(self) -> str:
        """Whose samples these are: those of each share the engine evenly."""
        return self.caller or self.row.user

    @property
    def trained_by(self) -> str | None:
        """The run whose weights these are; None for a base model."""
        path = self.row.model_path
        return self.row.run_id if path is None else CheckpointPath.parse(path).run_id

    @property
    def group(self) -> str:
        """Samplers of one group share a bound on how many stay in memory."""
        return self.row.run_id or self.row.session_id


class Weights:
    """Brings the weights of samplers into engines, from disk, from checkpoints or from runs."""

    def __init__(self, parts: Parts, restore_run: RestoreRun) -> None:
        self._settings = parts.settings
        self._store = parts.store
        self._checkpoints = parts.checkpoints
        self.evicted = EvictedSamplers(
            parts.settings.home / "samplers", parts.settings.samplers_kept_per_run
        )
        self._restore_run = restore_run

    async def freeze(self, sampler: SamplerInEngine, engine: EngineProcess) -> None:
        """Take the weights of the sampler's run as they are now.

        When a run is restored, they must be those of the first time: if not, the sampler is refused
        and the run continues.
        """
        row = sampler.row
        digest = await engine.call("create_sampler", sampler_id=row.id, run_id=row.run_id)
        try:
            await self._prove(row, digest, engine)
        except WeightsUnproven as error:
            sampler.refused = error
        else:
            sampler.engine, sampler.refused = engine, None
            if engine.info.plan is not None and engine.info.plan.device != "cpu":
                # On a CPU a replay gives the same bits. Sampling need not wait for the disk.
                in_background(self._keep(row, engine))

    async def _keep(self, row: SamplerRow, engine: EngineProcess) -> None:
        """Put the weights on disk, for the case that the engine dies."""
        try:
            await self.evicted.save(row, engine)
        except Exception as error:  # whatever it was, the sampler in memory is not affected
            log.warning("The weights of %s are only in memory: %s", row.id, error)

    async def load(self, sampler: SamplerInEngine, engine: EngineProcess) -> None:
        """See to it that the engine has the weights. Raises UserError, WeightsUnproven if not."""
        row = sampler.row
        async with sampler.loading:
            if sampler.engine is engine:
                return
            evicted = await asyncio.to_thread(self.evicted.find, row)
            if evicted is not None:
                await self._read(row, engine, str(evicted))
                await asyncio.to_thread(self.evicted.touch, evicted)
            elif row.run_id is not None:
                await self._restore_run(row.run_id, row.user)
                if sampler.engine is not engine:
                    raise sampler.refused or self._no_longer_kept(row)
            elif row.model_path is None:
                await self._read(row, engine, None)
            else:
                path = await self._checkpoint(row)
                if path is None:
                    raise self._no_longer_kept(row)
                folder = await asyncio.to_thread(self._checkpoints.verified_folder, path)
                wanted = await asyncio.to_thread(self._checkpoints.weights_digest, path)
                await self._read(row, engine, str(folder), wanted)
            sampler.engine = engine

    async def are_only_in_memory(self, row: SamplerRow) -> bool:
        """Say whether the weights are lost with the engine, unless they are evicted to disk."""
        if row.run_id is not None:
            return True
        return row.model_path is not None and await self._checkpoint(row) is None

    async def _read(
        self, row: SamplerRow, engine: EngineProcess, folder: str | None, wanted: str | None = None
    ) -> None:
        digest = await engine.call("create_sampler", sampler_id=row.id, folder=folder)
        await self._prove(row, digest, engine, wanted)

    async def _prove(
        self, row: SamplerRow, found: str | None, engine: EngineProcess, wanted: str | None = None
    ) -> None:
        """Compare the digest of weights in an engine with that of the sampler, or else ``wanted``.

        The first time it is noted, for every later one. Raises WeightsUnproven.
        """
        known = row.digest or wanted
        if known is not None and known != found:
            log.error("the weights of %s have digest %s instead of %s", row.id, found, known)
            await engine.call("drop_sampler", sampler_id=row.id)
            raise unproven(row.id, "their digest is not the one that was noted at first")
        if row.digest is None and found is not None:
            row.digest = found
            await asyncio.to_thread(self._store.note_digest, row.id, found)

    async def _checkpoint(self, row: SamplerRow) -> CheckpointPath | None:
        """Return the checkpoint that a sampler was made from, unless it changed since."""
        if row.model_path is None:
            return None
        try:
            path, found = await asyncio.to_thread(
                self._checkpoints.require, row.model_path, row.user
            )
        except UserError:
            return None
        return path if row.version in (None, link_version(found)) else None

    def _no_longer_kept(self, row: SamplerRow) -> UserError:
        return UserError(
            f"The weights of the sampler {row.id} are no longer kept: its checkpoint was "
            "deleted or overwritten, or it was ephemeral. Of its ephemeral samplers, a run keeps "
            f"the {self._settings.samplers_per_run} most recently used in memory and "
            f"{self._settings.samplers_kept_per_run} on disk. Create a new one with "
            "save_weights_and_get_sampling_client(), or save the weights under a name with "
            "save_weights_for_sampler()."
        )


def unproven(sampler_id: str, why: str) -> WeightsUnproven:
    return WeightsUnproven(
        f"The sampler {sampler_id} cannot prove its weights, so it does not answer: {why}. Make a "
        "new one with save_weights_and_get_sampling_client(), or from a checkpoint with "
        "create_sampling_client(model_path=...). If a file was damaged, check the disk of the "
        "service."
    )
