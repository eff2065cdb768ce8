"""The samplers of this service: creates and finds them, bounds their number, admits samples."""

import asyncio
import logging
import time
import uuid

from mint.engine.messages import SampleRequest, SampleResult
from mint.service.access.scopes import Caller
from mint.service.background import in_background
from mint.service.engines.process import EngineProcess
from mint.service.errors import EXPLAINED, ApiError, UserError, not_found
from mint.service.futures import Response, WaitReason
from mint.service.results import Share
from mint.service.sampling.evicted import EvictedSamplers
from mint.service.sampling.progress import AdmittedSample, SamplesInProgress
from mint.service.sampling.session import NAMED, OnTokens, RestoreRun, SamplingSession
from mint.service.shared_components import SharedComponents
from mint.service.store.database import RunRow, SamplerRow
from mint.service.wire import codec
from mint.service.wire.arrays import Csr
from mint.service.wire.requests import CreateSamplingSession, SampleBody

log = logging.getLogger(__name__)
_USUAL_CONTEXT = 4096  # what a sample without max_tokens may take, until its model is loaded


class Samplers:
    """All samplers of this service by id."""

    def __init__(self, shared: SharedComponents, restore_run: RestoreRun) -> None:
        self._shared = shared
        self._settings = shared.settings
        self._restore_run = restore_run
        self.evicted = EvictedSamplers(
            shared.settings.home / "samplers", shared.settings.samplers_kept_per_run
        )
        self._samplers: dict[str, SamplingSession] = {}
        self._sampling: dict[str, asyncio.Task[None]] = {}
        self._in_progress = SamplesInProgress(Share(shared.settings.max_outstanding_samples))

    async def create(self, caller: Caller, request: CreateSamplingSession) -> str:
        """Create a sampler of a base model or checkpoint; the same request gives the same one."""
        user = caller.user
        await self._shared.sessions.require(request.session_id, user)
        sampler_id = f"{request.session_id}:sample:{request.sampling_session_seq_id}"
        if sampler_id not in self._samplers:
            row = await self._describe(caller, request.base_model, request.model_path)
            row.id, row.session_id, row.user = sampler_id, request.session_id, user
            row = await asyncio.to_thread(self._shared.store.add_once, row, sampler_id)
            in_background(self._preload(self._open(row)))
        return sampler_id

    async def _describe(
        self, caller: Caller, base_model: str | None, model_path: str | None
    ) -> SamplerRow:
        """Return what to sample from. Raises UserError when it is not there for this user."""
        if model_path is not None:
            require = self._shared.checkpoints.require
            found = await asyncio.to_thread(require, model_path, caller.user)
            return SamplerRow(
                base_model=found.base_model,
                model_path=found.uri,
                version=found.version,
                user=found.user,
                key=caller.key,
            )
        if base_model is None:
            raise UserError("Set base_model or model_path to choose what to sample from.")
        await self._shared.engines.locate(base_model)
        return SamplerRow(base_model=base_model, user="", key=caller.key)

    def _open(self, row: SamplerRow, caller: str = "") -> SamplingSession:
        """Return the sampler of a row, which is in memory from now on."""
        new = SamplingSession(
            row, self._shared, self.evicted, self._restore_run, self._make_room, caller or row.user
        )
        return self._samplers.setdefault(row.id, new)

    async def _preload(self, sampler: SamplingSession) -> None:
        try:
            async with self._shared.engines.using(sampler.row.base_model) as engine:
                if self._samplers.get(sampler.row.id) is sampler:  # not released meanwhile
                    await sampler.load(engine)
        except (ApiError, *EXPLAINED, RuntimeError) as error:
            log.warning("%s is not loaded yet: %s", sampler.row.id, error)

    async def named(self, caller: Caller, model: str) -> SamplingSession:
        """Return the sampler of a base model or checkpoint, for clients without a session."""
        is_path = model.startswith(("tinker://", "mint://"))
        row = await self._describe(caller, None if is_path else model, model if is_path else None)
        name = row.model_path or row.base_model
        row.id, row.session_id = f"{NAMED}:{caller.key}:{name}@{row.version}", NAMED
        sampler = self._open(row, caller.user)
        sampler.used_at = time.monotonic()
        return sampler

    async def freeze(
        self, run: RunRow, sampler_id: str, engine: EngineProcess, seq_id: int
    ) -> None:
        """Create an ephemeral sampler of a run as it is now, by one of the run's operations."""
        row = SamplerRow(
            id=sampler_id,
            session_id=run.session_id,
            user=run.user,
            key=run.key,
            base_model=run.base_model,
            run_id=run.id,
            seq_id=seq_id,
        )
        row = await asyncio.to_thread(self._shared.store.add_once, row, sampler_id)
        if (row.run_id, row.seq_id) != (run.id, seq_id):
            raise UserError(
                f"The sampler {sampler_id} already exists, and samplers cannot be changed. Use "
                "another sampling_session_seq_id."
            )
        await self._open(row).freeze(engine)

    async def find(self, sampler_id: str, user: str) -> SamplingSession:
        """Return the sampler of this id. Raises ApiError 404 when ``user`` has none."""
        sampler = self._samplers.get(sampler_id)
        if sampler is None:
            row = await asyncio.to_thread(self._shared.store.get, SamplerRow, sampler_id, user)
            sampler = self._open(row) if row is not None else None
        if sampler is None or sampler.row.user != user or sampler.row.session_id == NAMED:
            raise not_found("sampler", sampler_id, "Create one with create_sampling_client().")
        self._shared.sessions.saw(sampler.row.session_id, user)
        return sampler

    async def join(self, sampler_id: str, user: str) -> int:
        """Return a number for one more client of a sampler."""
        await self.find(sampler_id, user)
        return await asyncio.to_thread(self._shared.store.add_client, sampler_id)

    def has(self, sampler_id: str, engine: EngineProcess) -> bool:
        """Return whether the weights of this sampler are in this engine or on disk."""
        sampler = self._samplers.get(sampler_id)
        if sampler is None:
            return False
        return sampler.engine is engine or self.evicted.find(sampler.row) is not None

    def are_kept(self, run: RunRow) -> bool:
        """Return whether all ephemeral samplers of a run are on disk, or need not be."""
        if self._settings.samplers_kept_per_run == 0:
            return True
        rows = self._shared.store.samplers_of_run(run)
        return all(self.evicted.find(row) is not None for row in rows)

    async def keep(self, engine: EngineProcess, run_id: str | None = None) -> None:
        """Save what only this engine has in memory, the most recently used of each group."""
        held = [s for s in self._samplers.values() if s.engine is engine]
        held.sort(key=lambda sampler: sampler.used_at)
        groups: dict[str, list[SamplingSession]] = {}
        for sampler in held:
            if run_id in (None, sampler.row.run_id) and await sampler.is_only_in_memory():
                groups.setdefault(sampler.row.group, []).append(sampler)
        for samplers in groups.values():
            for sampler in samplers[-self._settings.samplers_kept_per_run :]:
                await self.evicted.save(sampler.row, engine)

    async def _make_room(self, newest: SamplingSession) -> None:
        """Evict the least recently used samplers of a sampler's group and key beyond the limits."""
        loaded = [s for s in self._samplers.values() if s.engine]
        loaded.sort(key=lambda sampler: sampler.used_at)
        of_group = [s for s in loaded if s.row.group == newest.row.group]
        beyond = of_group[: -self._settings.samplers_per_run]
        if (limit := self._shared.find_quota(newest.row.key).samplers) is not None:
            beyond += [s for s in loaded if s.row.key == newest.row.key][:-limit]
        for sampler in beyond:
            if sampler.users == 0 and sampler is not newest and sampler.engine is not None:
                await sampler.evict()

    async def release_session(self, session_id: str) -> None:
        """Free the memory. What is not on disk can be replayed from the journal of its run, or was
        beyond what is kept of an unloaded run."""
        for sampler in self._in_session(session_id):
            self._samplers.pop(sampler.row.id, None)
            await sampler.drop()

    async def release_named(self, idle_s: float) -> None:
        """Free the memory of samplers that clients without a session have not used for a while."""
        cutoff = time.monotonic() - idle_s
        for sampler in self._in_session(NAMED):
            if sampler.users == 0 and sampler.used_at < cutoff:
                self._samplers.pop(sampler.row.id, None)
                await sampler.drop()

    def is_sampling(self, session_id: str) -> bool:
        """Return whether a sampler of the session is in use or being loaded."""
        return any(s.users or s.is_loading for s in self._in_session(session_id))

    def _in_session(self, session_id: str) -> list[SamplingSession]:
        return [s for s in self._samplers.values() if s.row.session_id == session_id]

    def open_paths(self) -> set[str]:
        """Return the checkpoints that are being sampled from."""
        return {
            s.row.model_path
            for s in list(self._samplers.values())
            if s.row.model_path is not None
            and (s.row.session_id != NAMED or (s.engine is not None and s.engine.is_alive))
        }

    @property
    def in_progress(self) -> int:
        """The number of samples in progress."""
        return self._in_progress.count.total

    async def submit(self, user: str, request: SampleBody) -> tuple[str, list[str]]:
        """Start sampling; returns the request id and one id per sample."""
        engine_request, targets = request.to_engine(), request.target_cells()
        sampler = await self.find(str(request.sampling_session_id), user)
        number = uuid.uuid4().hex if request.seq_id is None else request.seq_id
        request_id = f"{sampler.row.id}:{number}"
        if self._shared.futures.find(request_id, user) is None:
            sample = self._admit(sampler, engine_request)
            task = self._sampling[request_id] = self._shared.futures.compute(
                request_id,
                user,
                "sampling",
                _answer(sampler, engine_request, targets, sample),
                lambda: self._why_waiting(sampler, sample),
            )
            task.add_done_callback(lambda _: sample.end())
            task.add_done_callback(lambda _: self._sampling.pop(request_id, None))
        return request_id, [f"{request_id}:{i}" for i in range(request.num_samples)]

    def cancel(self, request_id: str) -> bool:
        """Cancel a sample in progress; whoever waits for it gets an error."""
        task = self._sampling.get(request_id)
        return task is not None and task.cancel()

    async def sample(
        self, sampler: SamplingSession, request: SampleRequest, on_tokens: OnTokens | None = None
    ) -> SampleResult:
        """Sample and wait for the result, as :meth:`SamplingSession.sample` does."""
        sample = self._admit(sampler, request)
        try:
            return await sampler.sample(request, sample, on_tokens)
        finally:
            sample.end()

    def _why_waiting(self, sampler: SamplingSession, sample: AdmittedSample) -> WaitReason | None:
        """Return what a sample waits for; None once it has started."""
        if (why := self._shared.engines.why_waiting(sampler.row.base_model)) is None:
            loading = "the weights of the sampler are being loaded"
            why = loading if sampler.is_loading else sample.why_waiting()
        return None if why is None else WaitReason(why)

    def _admit(self, sampler: SamplingSession, request: SampleRequest) -> AdmittedSample:
        """Count a request as in progress. Raises ApiError 429 while there is no room for it."""
        count, tenant = self._in_progress.count, sampler.tenant
        if not count.has_room(tenant):
            mine, total = count.of(tenant), count.total
            raise ApiError(
                429, f"Too many samples are in progress ({mine} of yours, {total} in all); retry."
            )
        base_model, key = sampler.row.base_model, sampler.row.key
        quota = self._shared.find_quota(key)
        if quota.samplers is not None:
            of_key = [s for s in self._samplers.values() if s.row.key == key and s is not sampler]
            quota.refuse_samplers(key, sum(other.users > 0 for other in of_key))
        most = request.max_tokens
        if most is None:
            engine = self._shared.engines.running(base_model)
            context = engine.info.context_length if engine else _USUAL_CONTEXT
            most = max(context - len(request.prompt), 0)
        tokens = len(request.prompt) + request.num_samples * most
        quota.refuse_tokens(key, self._in_progress.tokens[key], tokens)
        return self._in_progress.begin(base_model, tenant, key, tokens)


async def _answer(
    sampler: SamplingSession, request: SampleRequest, targets: Csr | None, sample: AdmittedSample
) -> Response:
    try:
        result = await sampler.sample(request, sample)
    except asyncio.CancelledError:
        raise UserError("This sample was cancelled before it was finished.") from None
    return Response.protobuf(codec.encode_sample(result, targets), result.digest)
