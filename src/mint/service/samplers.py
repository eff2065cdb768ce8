"""Samplers: immutable snapshots that answer ``sample``, and the samples they are asked for."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from mint.engine.messages import SampleRequest

from . import codec
from .engine_process import EngineProcess
from .errors import ApiError, EngineDied, UserError, not_found
from .futures import Answer
from .parts import Parts
from .requests import CreateSamplingSession, Sample
from .store import RunRow, SamplerRow

log = logging.getLogger(__name__)


@dataclass
class Sampler:
    """A sampler's row, and the engine that holds its weights now (if one does)."""

    row: SamplerRow
    engine: EngineProcess | None = None
    used_at: float = field(default_factory=time.monotonic)
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def group(self) -> str:
        """Samplers of one group share a bound on how many stay in memory."""
        return self.row.run_id or self.row.session_id


class Samplers:
    """All samplers of this service by id."""

    def __init__(self, parts: Parts) -> None:
        self._settings = parts.settings
        self._store = parts.store
        self._sessions = parts.sessions
        self._futures = parts.futures
        self._engines = parts.engines
        self._checkpoints = parts.checkpoints
        self._samplers: dict[str, Sampler] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.restore_run: Callable[[str, str], Awaitable[None]]

    # ---- making ---------------------------------------------------------------------------------

    async def create(self, user: str, request: CreateSamplingSession) -> str:
        """A sampler of a base model or of a checkpoint; the same request gives the same one."""
        await self._sessions.require(request.session_id, user)
        sampler_id = f"{request.session_id}:sample:{request.sampling_session_seq_id}"
        if sampler_id not in self._samplers:
            base_model, model_path = await self._resolve(user, request)
            row = SamplerRow(
                id=sampler_id,
                session_id=request.session_id,
                user=user,
                base_model=base_model,
                model_path=model_path,
            )
            row = await asyncio.to_thread(self._store.add_once, row, sampler_id)
            self._samplers.setdefault(sampler_id, Sampler(row))
            self._in_background(self._preload(sampler_id))
        return sampler_id

    async def _resolve(self, user: str, request: CreateSamplingSession) -> tuple[str, str | None]:
        if request.model_path is not None:
            path, row = await asyncio.to_thread(self._checkpoints.require, request.model_path, user)
            return row.base_model, path.uri
        if request.base_model is None:
            raise UserError("Give base_model or model_path, to say what to sample from.")
        await self._engines.locate(request.base_model)
        return request.base_model, None

    async def _preload(self, sampler_id: str) -> None:
        try:
            await self._loaded(self._samplers[sampler_id])
        except (UserError, EngineDied, RuntimeError) as error:
            log.warning("%s is not loaded yet: %s", sampler_id, error)

    async def freeze(self, run: RunRow, sampler_id: str, engine: EngineProcess) -> None:
        """An ephemeral sampler of a run as it is now."""
        if self.holds(sampler_id, engine):
            raise UserError(
                f"There is a sampler {sampler_id} already, and samplers never change. Use another "
                "sampling_session_seq_id."
            )
        await engine.call("create_sampler", sampler_id=sampler_id, run_id=run.id)
        row = SamplerRow(
            id=sampler_id,
            session_id=run.session_id,
            user=run.user,
            base_model=run.base_model,
            run_id=run.id,
        )
        row = await asyncio.to_thread(self._store.add_once, row, sampler_id)
        self._samplers.setdefault(sampler_id, Sampler(row)).engine = engine
        await self._bound(run.id)

    def holds(self, sampler_id: str, engine: EngineProcess) -> bool:
        """Whether this engine has the weights of this sampler."""
        sampler = self._samplers.get(sampler_id)
        return sampler is not None and sampler.engine is engine

    async def _bound(self, group: str) -> None:
        """Drop the least recently used samplers of a group beyond the bound."""
        loaded = [s for s in self._samplers.values() if s.group == group and s.engine]
        loaded.sort(key=lambda sampler: sampler.used_at)
        for sampler in loaded[: -self._settings.samplers_per_run]:
            await self._drop(sampler)

    async def _drop(self, sampler: Sampler) -> None:
        engine, sampler.engine = sampler.engine, None
        if engine is not None and engine.is_alive:
            await engine.call("drop_sampler", sampler_id=sampler.row.id)

    async def release_session(self, session_id: str) -> None:
        for sampler in list(self._samplers.values()):
            if sampler.row.session_id == session_id:
                await self._drop(sampler)
                self._samplers.pop(sampler.row.id, None)

    # ---- using ----------------------------------------------------------------------------------

    async def find(self, sampler_id: str, user: str) -> Sampler:
        """The sampler of this id. Raises ApiError 404 when ``user`` has none."""
        sampler = self._samplers.get(sampler_id)
        if sampler is None:
            row = await asyncio.to_thread(self._store.get, SamplerRow, sampler_id, user)
            if row is not None:
                sampler = self._samplers.setdefault(sampler_id, Sampler(row))
        if sampler is None or sampler.row.user != user:
            raise not_found("sampler", sampler_id, "Make one with create_sampling_client().")
        self._sessions.saw(sampler.row.session_id, user)
        return sampler

    async def submit(self, user: str, request: Sample) -> tuple[str, list[str]]:
        """Start sampling; returns the request id and one id per sample."""
        engine_request = request.to_engine()
        sampler = await self.find(str(request.sampling_session_id), user)
        number = uuid.uuid4().hex if request.seq_id is None else request.seq_id
        request_id = f"{sampler.row.id}:{number}"
        if self._futures.find(request_id, user) is None:
            if len(self._tasks) >= self._settings.max_outstanding_samples:
                raise ApiError(429, "Too many samples are in work. The client tries again.")
            self._futures.open(request_id, user, lambda: self._why_waiting(sampler))
            self._in_background(self._sample(sampler, request_id, engine_request))
        return request_id, [f"{request_id}:{i}" for i in range(request.num_samples)]

    def _why_waiting(self, sampler: Sampler) -> str | None:
        if self._engines.running(sampler.row.base_model) is None:
            return f"the base model {sampler.row.base_model} is loading"
        return None

    async def _sample(self, sampler: Sampler, request_id: str, request: SampleRequest) -> None:
        self._futures.finish(request_id, await self._answer(sampler, request))

    async def _answer(self, sampler: Sampler, request: SampleRequest) -> Answer:
        try:
            try:
                return await self._try_sample(sampler, request)
            except EngineDied:
                return await self._try_sample(sampler, request)
        except UserError as error:
            return Answer.failure(str(error), "user")
        except EngineDied as error:
            return Answer.failure(str(error), "server")
        except Exception as error:
            log.exception("sampling from %s failed", sampler.row.id)
            return Answer.failure(f"Sampling failed in the service: {error}", "server")

    async def _try_sample(self, sampler: Sampler, request: SampleRequest) -> Answer:
        engine = await self._loaded(sampler)
        sampler.used_at = time.monotonic()
        result = await engine.call("sample", sampler_id=sampler.row.id, request=request)
        return Answer.protobuf(codec.encode_sample(result))

    async def _loaded(self, sampler: Sampler) -> EngineProcess:
        """The engine, with the sampler's weights in it."""
        row = sampler.row
        async with sampler.loading:
            engine = await self._engines.get(row.base_model)
            if sampler.engine is engine:
                return engine
            if row.run_id is not None:
                await self.restore_run(row.run_id, row.user)
                if sampler.engine is not engine:
                    raise self._lost(row.id)
                return engine
            folder = None
            if row.model_path is not None:
                path, _ = await asyncio.to_thread(
                    self._checkpoints.require, row.model_path, row.user
                )
                folder = str(self._checkpoints.folder(path))
            await engine.call("create_sampler", sampler_id=row.id, folder=folder)
            sampler.engine = engine
        await self._bound(sampler.group)
        return engine

    def _lost(self, sampler_id: str) -> UserError:
        return UserError(
            f"The weights of the sampler {sampler_id} are no longer in memory. Ephemeral samplers "
            f"last while the engine runs, the {self._settings.samplers_per_run} most recently used "
            "of a run. Make a new one with save_weights_and_get_sampling_client(), or save the "
            "weights under a name with save_weights_for_sampler() to keep them."
        )

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
