"""A run's place in an engine: restored from snapshot and journal, and snapshot again in time."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from mint.service.checkpoints.peft import OPTIMIZER
from mint.service.checkpoints.storage import read_lora
from mint.service.engines.process import EngineProcess
from mint.service.errors import EngineDied
from mint.service.files import link_files
from mint.service.futures import ResultExpired
from mint.service.parts import Parts
from mint.service.runs.journal import Journal, KeptAnswer, Outcome
from mint.service.runs.operations import Done, Operations
from mint.service.runs.stream import GRADIENT_KINDS, Gradients
from mint.service.sampling.samplers import Samplers
from mint.service.store.database import RunRow

log = logging.getLogger(__name__)
_ANSWERED_BY_REPLAY = ("forward", "forward_backward")
_KEPT_ANSWERS, _KEPT_BYTES = 256, 32 * 1024 * 1024
"""How many answers from before a snapshot are kept with it, and their bytes."""
_CHANGES_THE_RUN = (*GRADIENT_KINDS, "optim_step", "load_weights")


class DiedRestoring(EngineDied):
    """The worker did not start, or ended while the run was restored: no operation had begun."""


class RunInEngine:
    """A run's state in an engine, restored there when it is needed."""

    def __init__(self, row: RunRow, journal: Journal, parts: Parts, samplers: Samplers) -> None:
        self._row = row
        self._journal = journal
        self._settings = parts.settings
        self._engines = parts.engines
        self._futures = parts.futures
        self._samplers = samplers
        self._operations = Operations(row, journal, parts.checkpoints, samplers, parts.decoder)
        self._engine: EngineProcess | None = None
        self._work_s = 0.0
        self._is_restoring = False
        self.gradients = Gradients()

    @property
    def log_file(self) -> Path | None:
        return self._engine.log_file if self._engine is not None else None

    def why_waiting(self) -> str | None:
        """Return in words what keeps the run from working."""
        if self._is_restoring:
            return "the run is being restored from its journal"
        return self._engines.why_waiting(self._row.base_model)

    def is_in(self, engine: EngineProcess) -> bool:
        return self._engine is engine

    async def enter(self) -> None:
        """Bring the run into its engine, if it is not there."""
        async with self._entered():
            pass

    @property
    def suspects(self) -> asyncio.Lock:
        """The lock of operations under which a worker of this base model died."""
        return self._engines.suspects[self._row.base_model]

    async def perform(self, kind: str, seq_ids: Sequence[int]) -> Done:
        """Carry out a group of operations, in the run's engine."""
        async with self._entered() as engine:
            start = time.monotonic()
            try:
                return await self._operations.perform(engine, kind, seq_ids)
            finally:
                self._work_s += time.monotonic() - start

    @asynccontextmanager
    async def _entered(self) -> AsyncIterator[EngineProcess]:
        is_entered = False
        try:
            async with self._engines.using(self._row.base_model) as engine:
                if self._engine is not engine:
                    self._is_restoring = True
                    try:
                        await self._restore(engine)
                    finally:
                        self._is_restoring = False
                    self._engine = engine
                is_entered = True
                yield engine
        except EngineDied as died:
            if is_entered:
                raise
            raise DiedRestoring(str(died)) from died

    # ---- restoring ------------------------------------------------------------------------------

    async def _restore(self, engine: EngineProcess) -> None:
        run_id = self._row.id
        lora, tenant = read_lora(self._row.lora), self._row.user
        await engine.call("create_run", run_id=run_id, lora=lora, tenant=tenant)
        if (snapshot := self._journal.snapshot_folder) is not None:
            await asyncio.to_thread(self._journal.check_snapshot)
            await engine.call(
                "load_state",
                run_id=run_id,
                folder=str(snapshot),
                optimizer=(snapshot / OPTIMIZER).exists(),
            )
        self.gradients.clear()
        for outcome in list(self._journal.outcomes):
            if outcome.error is None:
                await self._replay(engine, outcome)
            self.gradients.note(outcome.kind, len(outcome.seq_ids), outcome.error)

    async def _replay(self, engine: EngineProcess, outcome: Outcome) -> None:
        if not self._must_replay(engine, outcome):
            return
        done = await self._operations.perform(engine, outcome.kind, outcome.seq_ids)
        if outcome.kind in _ANSWERED_BY_REPLAY:
            for seq_id, answer in zip(outcome.seq_ids, done.answers, strict=True):
                self._futures.finish(f"{self._row.id}:{seq_id}", answer)

    def _must_replay(self, engine: EngineProcess, outcome: Outcome) -> bool:
        """Return whether an operation changed the engine, or left an answer only it can give."""
        if outcome.kind in _CHANGES_THE_RUN:
            return True
        if outcome.kind == "forward":
            return self._futures.is_open(f"{self._row.id}:{outcome.seq_ids[0]}")
        if outcome.kind == "save_weights_for_sampler":
            sampler_id = (outcome.result or {}).get("sampling_session_id")
            return sampler_id is not None and not self._samplers.has(sampler_id, engine)
        return False

    # ---- snapshots ------------------------------------------------------------------------------

    async def begin_from(self, files: Sequence[Path]) -> None:
        """Let a run without operations begin from these files instead of a fresh adapter."""

        def write() -> None:
            folder = self._journal.new_snapshot_folder(1)
            link_files(files, folder)
            self._journal.cut(folder, 1)

        await asyncio.to_thread(write)

    async def maybe_snapshot(self, kind: str, first: int) -> None:
        """Cut a journal that is long to replay, only when no gradients are accumulated."""
        is_long = (
            self._work_s >= self._settings.snapshot_after_s
            or self._journal.size >= self._settings.snapshot_after_bytes
        )
        if kind == "load_weights" or (kind == "optim_step" and is_long):
            await self.snapshot(first)

    async def snapshot(self, first: int) -> None:
        """Save the run as it is before operation ``first``; on failure the journal continues."""
        if self._engine is None or not self.gradients.is_clear or not self._journal.outcomes:
            return
        folder: Path | None = None
        try:
            await self._samplers.keep(self._engine, run_id=self._row.id)
            folder = await asyncio.to_thread(self._journal.new_snapshot_folder, first)
            await self._engine.call("save_state", run_id=self._row.id, folder=str(folder))
            answers = await asyncio.to_thread(self._kept_answers)
            await asyncio.to_thread(self._journal.cut, folder, first, answers)
        except (OSError, RuntimeError, EngineDied) as error:
            log.warning("no snapshot of %s was made: %s", self._row.id, error)
            if folder is not None:
                await asyncio.to_thread(self._journal.discard_snapshot, folder)
        else:
            self._work_s = 0.0

    def _kept_answers(self) -> dict[int, KeptAnswer]:
        """Return the newest answers that a client may still ask for, within a bound."""
        done = [n for outcome in self._journal.outcomes for n in outcome.seq_ids]
        numbers = [*self._journal.answered, *done]
        kept: dict[int, KeptAnswer] = {}
        size = 0
        for number in reversed(numbers[-_KEPT_ANSWERS:]):
            future = self._futures.find(f"{self._row.id}:{number}", self._row.user)
            if future is None or future.answer is None:
                continue
            size += future.size
            if size > _KEPT_BYTES:
                break
            try:
                answer = future.read()
            except ResultExpired:
                continue
            assert answer is not None, "it is finished"
            kept[number] = KeptAnswer(answer.body, answer.content_type, answer.is_failure)
        return dict(reversed(kept.items()))  # the oldest first

    async def leave(self) -> None:
        """Give the memory in the engine back; a worker that has died holds none."""
        engine, self._engine = self._engine, None
        try:
            await self._operations.references.drop()
            if engine is not None and engine.is_alive:
                await engine.call("drop_run", run_id=self._row.id)
        except EngineDied as died:
            log.warning("%s left its engine: %s", self._row.id, died)
