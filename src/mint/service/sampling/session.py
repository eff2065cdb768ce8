"""A sampling session: weights that never change, and the samples that are drawn from them.

The digest of the weights is recorded when they are fixed. It is compared wherever they are loaded
or restored, and with every sample.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from mint.engine.messages import SampledToken, SampleRequest, SampleResult
from mint.service.background import in_background
from mint.service.checkpoints.storage import CheckpointPath
from mint.service.engines.pool import MAX_DEATHS
from mint.service.engines.process import EngineProcess
from mint.service.errors import DATABASE_FAILED, EngineDied, UserError
from mint.service.sampling.evicted import EvictedSamplers
from mint.service.sampling.progress import AdmittedSample
from mint.service.shared_components import SharedComponents
from mint.service.store.database import CheckpointRow, SamplerRow

log = logging.getLogger(__name__)
RestoreRun = Callable[[str, str], Awaitable[None]]
"""Restores a run of a user in its engine, and with it the run's samplers, unless it has ended."""
OnTokens = Callable[[list[SampledToken]], None]
NAMED = "named"  # the session id of samplers that OpenAI clients request by name


class WeightsMismatch(UserError):
    """The weights of a sampler are not those that it was created with."""


@dataclass(eq=False)
class SamplingSession:
    """A sampler, and the engine that holds its weights now (if one does).

    ``make_room`` is called after the weights were loaded. A sampler whose weights were recomputed
    and came out different is ``refused``, with the reason.
    """

    row: SamplerRow
    shared: SharedComponents
    evicted: EvictedSamplers
    restore_run: RestoreRun
    make_room: Callable[["SamplingSession"], Awaitable[None]]
    tenant: str
    """Whose samples these are: tenants share the engine evenly."""
    engine: EngineProcess | None = None
    refused: WeightsMismatch | None = None
    users: int = 0
    used_at: float = field(default_factory=time.monotonic)
    _loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def sample(
        self, request: SampleRequest, sample: AdmittedSample, on_tokens: OnTokens | None = None
    ) -> SampleResult:
        """Sample in the engine of the base model, and again in a new one if it dies.

        ``on_tokens`` is called with the tokens of a request that asks for progress, as they are
        sampled; they count as used even if the request ends before it is done. Raises UserError,
        EngineDied, OSError or RuntimeError.
        """
        sampled = 0

        def report(tokens: list[SampledToken]) -> None:
            nonlocal sampled
            sample.start()  # the first report, without tokens, says so
            sampled += len(tokens)
            if on_tokens is not None and tokens:
                on_tokens(tokens)

        request = replace(request, tenant=self.tenant)
        self.users += 1
        try:
            result = await self._sample(request, report, may_retry=on_tokens is None)
            sampled = sum(len(sequence.tokens) for sequence in result.sequences)
            return result
        finally:
            self.users -= 1
            if sampled:
                path, prompt = self.row.model_path, len(request.prompt)
                run_id = self.row.run_id if path is None else CheckpointPath.parse(path).run_id
                used = {"prompt_tokens": prompt, "tokens_sampled": sampled}
                self.shared.usage.add(self.row.key, run_id, **used)

    async def _sample(
        self, request: SampleRequest, report: OnTokens, may_retry: bool
    ) -> SampleResult:
        """Sample, up to ``MAX_DEATHS`` times if workers die.

        The last attempt waits until no other request runs under which workers died, so that only
        the one that kills them fails. Tokens that were reported cannot be sampled again.
        """
        engines, deaths = self.shared.engines, 0
        while True:
            try:
                async with engines.using(self.row.base_model) as engine:
                    await self.load(engine)
                    is_last = deaths == MAX_DEATHS - 1
                    async with engines.alone(self.row.base_model, is_last):
                        if not is_last or engine.is_alive:  # otherwise it died during the wait
                            return await self._call(engine, request, report)
            except EngineDied as died:
                deaths += 1
                if not may_retry or deaths == MAX_DEATHS:
                    raise
                log.warning("retrying a sample of %s: %s", self.row.id, died)

    async def _call(
        self, engine: EngineProcess, request: SampleRequest, report: OnTokens
    ) -> SampleResult:
        self.used_at = time.monotonic()
        result: SampleResult = await engine.call(
            "sample", report, sampler_id=self.row.id, request=request
        )
        if result.digest != self.row.digest:
            await self.drop()
            raise self._mismatch("its engine has other weights")
        return result

    @property
    def is_loading(self) -> bool:
        return self.engine is None and self._loading.locked()

    async def load(self, engine: EngineProcess) -> None:
        """Load the weights into an engine, unless it has them. Raises UserError."""
        if self.engine is engine:
            return
        async with self._loading:
            if self.engine is not engine:
                await self._load(engine)
                self.engine = engine
        await self.make_room(self)

    async def _load(self, engine: EngineProcess) -> None:
        row = self.row
        folder = await asyncio.to_thread(self.evicted.find, row)
        if folder is None and row.run_id is not None:
            await self.restore_run(row.run_id, row.user)
            if self.engine is engine:
                return
            if not engine.is_alive:  # it died meanwhile, and the run may be in the next one
                raise EngineDied("the engine died while the weights of a sampler were restored")
            folder = await asyncio.to_thread(self.evicted.find, row)  # saved by unload_model
            if folder is None:
                raise self.refused or self._no_longer_kept()
        if folder is not None:
            await asyncio.to_thread(os.utime, folder)  # the least recently used are deleted first
        elif row.model_path is not None:
            return await self._load_checkpoint(engine)
        source = str(folder) if folder is not None else None
        digest = await engine.call("create_sampler", sampler_id=row.id, folder=source)
        await self._check_digest(digest, engine)

    async def _load_checkpoint(self, engine: EngineProcess) -> None:
        """Load the sampler's checkpoint, which may be deleted or overwritten meanwhile."""
        if (checkpoint := await self._checkpoint()) is None:
            raise self._no_longer_kept()
        try:
            verified = self.shared.checkpoints.verified
            folder, saved = await asyncio.to_thread(verified, checkpoint)
            digest = await engine.call("create_sampler", sampler_id=self.row.id, folder=str(folder))
            await self._check_digest(digest, engine, saved)
        except (UserError, OSError, RuntimeError) as error:
            if await self._checkpoint() is None:
                raise self._no_longer_kept() from error
            raise

    async def freeze(self, engine: EngineProcess) -> None:
        """Take the weights of the sampler's run as they are now.

        When a run is restored, they must be those of the first time: if not, the sampler is refused
        and the run continues.
        """
        row = self.row
        digest = await engine.call("create_sampler", sampler_id=row.id, run_id=row.run_id)
        try:
            await self._check_digest(digest, engine)
        except WeightsMismatch as error:
            self.refused = error
        else:
            self.engine, self.refused = engine, None
            if engine.info.plan is not None and engine.info.plan.device != "cpu":
                # On a CPU a replay gives the same bits. Sampling need not wait for the disk.
                in_background(self._save_copy(engine))
        await self.make_room(self)

    async def _save_copy(self, engine: EngineProcess) -> None:
        """Write the weights to disk, in case the engine dies."""
        try:
            await self.evicted.save(self.row, engine)
        except Exception as error:  # whatever it was, the sampler in memory is not affected
            log.warning("The weights of %s are only in memory: %s", self.row.id, error)

    async def _check_digest(
        self, found: str | None, engine: EngineProcess, saved: str | None = None
    ) -> None:
        """Compare the digest of weights in an engine with the sampler's, or else with ``saved``.

        The first digest is recorded. Raises WeightsMismatch.
        """
        row, known = self.row, self.row.digest or saved
        if known is not None and known != found:
            log.error("the weights of %s have digest %s instead of %s", row.id, found, known)
            await engine.call("drop_sampler", sampler_id=row.id)
            raise self._mismatch("their digest is not the one that was recorded")
        if row.digest is None and found is not None:
            await asyncio.to_thread(self.shared.store.note_digest, row.id, found)
            row.digest = found  # last: a database that fails is asked again

    async def _checkpoint(self) -> CheckpointRow | None:
        """Return the checkpoint that the sampler was created from, unless it changed since."""
        if self.row.model_path is None:
            return None
        path = CheckpointPath.parse(self.row.model_path)
        found = await asyncio.to_thread(self.shared.checkpoints.find, path, self.row.user)
        is_same = found is not None and self.row.version in (None, found.version)
        return found if is_same else None

    async def is_only_in_memory(self) -> bool:
        """Return whether the weights would be lost with the engine, and could be asked for."""
        if self.row.run_id is not None:
            return True
        if self.row.session_id == NAMED:  # the name now means something else, or nothing
            return False
        return self.row.model_path is not None and await self._checkpoint() is None

    async def evict(self) -> None:
        """Free the memory in the engine, after saving weights that are nowhere else."""
        engine = self.engine
        try:
            if engine is not None and engine.is_alive and await self.is_only_in_memory():
                await self.evicted.save(self.row, engine)
            await self.drop()
        except (OSError, RuntimeError, EngineDied, *DATABASE_FAILED) as error:
            log.warning("%s was not evicted: %s", self.row.id, error)

    async def drop(self) -> None:
        """Free the memory in the engine."""
        engine, self.engine = self.engine, None
        if engine is not None and engine.is_alive:
            await engine.call("drop_sampler", sampler_id=self.row.id)

    def _no_longer_kept(self) -> UserError:
        settings = self.shared.settings
        return UserError(
            f"The weights of the sampler {self.row.id} are no longer kept: its checkpoint was "
            "deleted or overwritten, or it was ephemeral. Of its ephemeral samplers, a run keeps "
            f"the {settings.samplers_per_run} most recently used in memory and "
            f"{settings.samplers_kept_per_run} on disk. Create a new one with "
            "save_weights_and_get_sampling_client(), or save the weights under a name with "
            "save_weights_for_sampler()."
        )

    def _mismatch(self, why: str) -> WeightsMismatch:
        return WeightsMismatch(
            f"The weights of the sampler {self.row.id} could not be verified, so it does not "
            f"sample: {why}. Create a new one with save_weights_and_get_sampling_client(), or from "
            "a checkpoint with create_sampling_client(model_path=...). If a file was damaged, "
            "check the disk of the service."
        )
