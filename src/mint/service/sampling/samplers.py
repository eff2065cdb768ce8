"""Samplers: immutable snapshots that answer ``sample``, and the samples they are asked for."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import replace

from mint.engine.messages import SampledToken, SampleRequest, SampleResult
from mint.service.access.scopes import Caller
from mint.service.background import in_background
from mint.service.checkpoints.links import link_version
from mint.service.engines.process import EngineProcess
from mint.service.errors import EngineDied, UserError, not_found
from mint.service.futures import Response, WaitReason
from mint.service.idleness import Idleness
from mint.service.parts import Parts
from mint.service.results import Share
from mint.service.sampling.progress import Sample, SamplesInProgress
from mint.service.sampling.weights import RestoreRun, SamplerInEngine, Weights, unproven
from mint.service.store.database import RunRow, SamplerRow
from mint.service.wire import codec
from mint.service.wire.arrays import Csr
from mint.service.wire.requests import CreateSamplingSession, SampleBody

log = logging.getLogger(__name__)
_USUAL_CONTEXT = 4096  # what a sample without max_tokens may take, until its model is loaded
OnTokens = Callable[[list[SampledToken]], None]


class Samplers:
    """All samplers of this service by id."""

    def __init__(self, parts: Parts, restore_run: RestoreRun) -> None:
        self._settings = parts.settings
        self._store = parts.store
        self._sessions = parts.sessions
        self._futures = parts.futures
        self._engines = parts.engines
        self._checkpoints = parts.checkpoints
        self.weights = Weights(parts, restore_run)
        self._samplers: dict[str, SamplerInEngine] = {}
        self._sampling: dict[str, asyncio.Task[None]] = {}
        self._usage = parts.usage
        self._quota_of = parts.quota_of
        self._in_progress = SamplesInProgress(Share(parts.settings.max_outstanding_samples))

    # ---- making ---------------------------------------------------------------------------------

    async def create(self, caller: Caller, request: CreateSamplingSession) -> str:
        """A sampler of a base model or of a checkpoint; the same request gives the same one."""
        user = caller.user
        await self._sessions.require(request.session_id, user)
        sampler_id = f"{request.session_id}:sample:{request.sampling_session_seq_id}"
        if sampler_id not in self._samplers:
            row = await self._described(user, request.base_model, request.model_path)
            row.id, row.session_id, row.user = sampler_id, request.session_id, user
            row.key = caller.key
            row = await asyncio.to_thread(self._store.add_once, row, sampler_id)
            sampler = self._samplers.setdefault(sampler_id, SamplerInEngine(row))
            in_background(self._preload(sampler))
        return sampler_id

    async def _described(
        self, user: str, base_model: str | None, model_path: str | None
    ) -> SamplerRow:
        """Return what to sample from. Raises UserError when it is not there for this user."""
        if model_path is not None:
            path, found = await asyncio.to_thread(self._checkpoints.require, model_path, user)
            return SamplerRow(
                base_model=found.base_model,
                model_path=path.uri,
                version=link_version(found),
                user=found.user,
            )
        if base_model is None:
            raise UserError("Set base_model or model_path to choose what to sample from.")
        await self._engines.locate(base_model)
        return SamplerRow(base_model=base_model, user="")

    async def _preload(self, sampler: SamplerInEngine) -> None:
        try:
            async with self._engines.using(sampler.row.base_model) as engine:
                await self._load(sampler, engine)
        except (UserError, EngineDied, OSError, RuntimeError) as error:
            log.warning("%s is not loaded yet: %s", sampler.row.id, error)

    async def named(self, caller: Caller, model: str) -> SamplerInEngine:
        """The sampler of a base model or checkpoint, for those who ask without a session."""
        user = caller.user
        is_path = model.startswith(("tinker://", "mint://"))
        row = await self._described(user, None if is_path else model, model if is_path else None)
        name = row.model_path or row.base_model
        row.id, row.session_id = f"named:{caller.key}:{name}@{row.version}", "named"
        row.key = caller.key
        return self._samplers.setdefault(row.id, SamplerInEngine(row, caller=user))

    async def freeze(
        self, run: RunRow, sampler_id: str, engine: EngineProcess, seq_id: int
    ) -> None:
        """An ephemeral sampler of a run as it is now, made by one operation and never changed."""
        row = SamplerRow(
            id=sampler_id,
            session_id=run.session_id,
            user=run.user,
            key=run.key,
            base_model=run.base_model,
            run_id=run.id,
            seq_id=seq_id,
        )
        row = await asyncio.to_thread(self._store.add_once, row, sampler_id)
        if (row.run_id, row.seq_id) != (run.id, seq_id):
            raise UserError(
                f"The sampler {sampler_id} already exists, and samplers cannot be changed. Use "
                "another sampling_session_seq_id."
            )
        sampler = self._samplers.setdefault(sampler_id, SamplerInEngine(row))
        await self.weights.freeze(sampler, engine)
        await self._bound(sampler)

    # ---- keeping and dropping -------------------------------------------------------------------

    def has(self, sampler_id: str, engine: EngineProcess) -> bool:
        """Return whether the weights of this sampler are in this engine or on disk."""
        sampler = self._samplers.get(sampler_id)
        if sampler is None:
            return False
        return sampler.engine is engine or self.weights.evicted.find(sampler.row) is not None

    async def keep(self, engine: EngineProcess, run_id: str | None = None) -> None:
        """Put on disk what only this engine's memory has, the most recently used of each group."""
        held = [s for s in self._samplers.values() if s.engine is engine]
        held.sort(key=lambda sampler: sampler.used_at)
        groups: dict[str, list[SamplerInEngine]] = {}
        for sampler in held:
            if run_id in (None, sampler.row.run_id) and await self.weights.are_only_in_memory(
                sampler.row
            ):
                groups.setdefault(sampler.group, []).append(sampler)
        for samplers in groups.values():
            for sampler in samplers[-self._settings.samplers_kept_per_run :]:
                await self.weights.evicted.save(sampler.row, engine)

    async def _bound(self, newest: SamplerInEngine) -> None:
        """Drop the least recently used samplers of a sampler's group and key beyond the bounds."""
        loaded = [s for s in self._samplers.values() if s.engine]
        loaded.sort(key=lambda sampler: sampler.used_at)
        of_group = [s for s in loaded if s.group == newest.group]
        beyond = of_group[: -self._settings.samplers_per_run]
        if (limit := self._quota_of(newest.row.key).samplers) is not None:
            beyond += [s for s in loaded if s.row.key == newest.row.key][:-limit]
        for sampler in beyond:
            if sampler.users == 0 and sampler is not newest and sampler.engine is not None:
                await self._evict(sampler)

    async def _evict(self, sampler: SamplerInEngine) -> None:
        engine = sampler.engine
        try:
            if (
                engine is not None
                and engine.is_alive
                and await self.weights.are_only_in_memory(sampler.row)
            ):
                await self.weights.evicted.save(sampler.row, engine)
        except (OSError, RuntimeError, EngineDied) as error:
            log.warning("%s stays in memory: %s", sampler.row.id, error)
        else:
            await self._drop(sampler)

    async def _drop(self, sampler: SamplerInEngine) -> None:
        engine, sampler.engine = sampler.engine, None
        if engine is not None and engine.is_alive:
            await engine.call("drop_sampler", sampler_id=sampler.row.id)

    async def release_session(self, session_id: str) -> None:
        """Give memory back. What is not on disk can be replayed from the journal of its run."""
        for sampler in self._of_session(session_id):
            await self._drop(sampler)
            self._samplers.pop(sampler.row.id, None)

    def is_sampling(self, session_id: str) -> bool:
        """Return whether a sampler of the session has work to do."""
        return any(sampler.users for sampler in self._of_session(session_id))

    def _of_session(self, session_id: str) -> list[SamplerInEngine]:
        return [s for s in self._samplers.values() if s.row.session_id == session_id]

    def open_paths(self) -> set[str]:
        """Return the checkpoints that somebody samples from."""
        return {
            s.row.model_path
            for s in list(self._samplers.values())
            if s.row.model_path is not None
            and (s.row.session_id != "named" or (s.engine is not None and s.engine.is_alive))
        }

    def delete_unused(self, idleness: Idleness) -> None:
        self.weights.evicted.delete_unused(self._settings.run_kept_s, idleness)

    @property
    def waiting(self) -> int:
        """Return how many samples are in progress."""
        return self._in_progress.count.total

    # ---- using ----------------------------------------------------------------------------------

    async def find(self, sampler_id: str, user: str) -> SamplerInEngine:
        """The sampler of this id. Raises ApiError 404 when ``user`` has none."""
        sampler = self._samplers.get(sampler_id)
        if sampler is None:
            row = await asyncio.to_thread(self._store.get, SamplerRow, sampler_id, user)
            if row is not None:
                sampler = self._samplers.setdefault(sampler_id, SamplerInEngine(row))
        if sampler is None or sampler.row.user != user or sampler.row.session_id == "named":
            raise not_found("sampler", sampler_id, "Create one with create_sampling_client().")
        self._sessions.saw(sampler.row.session_id, user)
        return sampler

    async def join(self, sampler_id: str, user: str) -> int:
        """A number for one more client of a sampler."""
        await self.find(sampler_id, user)
        return await asyncio.to_thread(self._store.add_client, sampler_id)

    async def submit(self, user: str, request: SampleBody) -> tuple[str, list[str]]:
        """Start sampling; returns the request id and one id per sample."""
        engine_request, targets = request.to_engine(), request.target_cells()
        sampler = await self.find(str(request.sampling_session_id), user)
        number = uuid.uuid4().hex if request.seq_id is None else request.seq_id
        request_id = f"{sampler.row.id}:{number}"
        if self._futures.find(request_id, user) is None:
            sample = self._admit(sampler, engine_request)
            task = self._sampling[request_id] = self._futures.compute(
                request_id,
                user,
                "Sampling",
                self._answer(sampler, engine_request, targets, sample),
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
        self, sampler: SamplerInEngine, request: SampleRequest, on_tokens: OnTokens | None = None
    ) -> SampleResult:
        """Sample and wait for the result. Raises UserError, EngineDied, OSError or RuntimeError.

        ``on_tokens`` hears the tokens of a request that asks for progress, as they are sampled.
        """
        sample = self._admit(sampler, request)
        try:
            return await self._sample(sampler, request, sample, on_tokens)
        finally:
            sample.end()

    def _why_waiting(self, sampler: SamplerInEngine, sample: Sample) -> WaitReason | None:
        """Say what keeps a sample from being answered; None once it has started."""
        if (why := self._engines.why_waiting(sampler.row.base_model)) is None:
            is_loading = sampler.engine is None and sampler.loading.locked()
            why = "the weights of the sampler are being loaded"
            why = why if is_loading else sample.why_waiting()
        return None if why is None else WaitReason(why)

    def _admit(self, sampler: SamplerInEngine, request: SampleRequest) -> Sample:
        """Count a request as in progress. Raises ApiError 429 while it has no place."""
        self._in_progress.refuse_if_full(sampler.tenant)
        base_model, key = sampler.row.base_model, sampler.row.key
        quota = self._quota_of(key)
        if quota.samplers is not None:
            of_key = [s for s in self._samplers.values() if s.row.key == key and s is not sampler]
            quota.refuse_samplers(key, sum(other.users > 0 for other in of_key))
        most = request.max_tokens
        if most is None:
            engine = self._engines.running(base_model)
            context = engine.info.context_length if engine else _USUAL_CONTEXT
            most = max(context - len(request.prompt), 0)
        tokens = len(request.prompt) + request.num_samples * most
        quota.refuse_tokens(key, self._in_progress.tokens[key], tokens)
        return self._in_progress.begin(base_model, sampler.tenant, key, tokens)

    async def _answer(
        self,
        sampler: SamplerInEngine,
        request: SampleRequest,
        targets: Csr | None,
        sample: Sample,
    ) -> Response:
        try:
            result = await self._sample(sampler, request, sample)
        except asyncio.CancelledError:
            raise UserError("This sample was cancelled before it was finished.") from None
        return Response.protobuf(codec.encode_sample(result, targets), result.digest)

    async def _sample(
        self,
        sampler: SamplerInEngine,
        request: SampleRequest,
        sample: Sample,
        on_tokens: OnTokens | None = None,
        is_retry: bool = False,
    ) -> SampleResult:
        """Sample in the engine of the base model, once more in a new one if it dies."""

        def hear(tokens: list[SampledToken]) -> None:
            sample.start()  # the first news, without tokens, says so
            if on_tokens is not None and tokens:
                on_tokens(tokens)

        sampler.users += 1
        try:
            async with self._engines.using(sampler.row.base_model) as engine:
                await self._load(sampler, engine)
                sampler.used_at = time.monotonic()
                asked = replace(request, tenant=sampler.tenant)
                result: SampleResult = await engine.call(
                    "sample", hear, sampler_id=sampler.row.id, request=asked
                )
                if result.digest != sampler.row.digest:
                    await self._drop(sampler)
                    raise unproven(sampler.row.id, "its engine answered with other weights")
        except EngineDied:
            if is_retry or on_tokens is not None:
                raise  # some tokens may have been told, and a second try would tell others
            return await self._sample(sampler, request, sample, is_retry=True)
        finally:
            sampler.users -= 1
        sampled = sum(len(sequence.tokens) for sequence in result.sequences)
        used = {"prompt_tokens": len(request.prompt), "tokens_sampled": sampled}
        self._usage.add(sampler.row.key, sampler.trained_by, **used)
        return result

    async def _load(self, sampler: SamplerInEngine, engine: EngineProcess) -> None:
        """See to it that the engine has the sampler's weights."""
        if sampler.engine is not engine:
            await self.weights.load(sampler, engine)
            await self._bound(sampler)
