"""A run in its engine: restores the run there when needed, and executes its operations."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mint.engine.messages import AdamSettings, ForwardBackwardResult
from mint.service.checkpoints.peft import OPTIMIZER
from mint.service.checkpoints.storage import (
    EXTERNAL,
    SAMPLER,
    TRAINING,
    CheckpointPath,
    NewCheckpoint,
    check_name,
    read_lora,
)
from mint.service.engines.pool import MAX_DEATHS
from mint.service.engines.process import EngineProcess
from mint.service.errors import DATABASE_FAILED, EXPLAINED, EngineDied, UserError, is_disk_full
from mint.service.futures import Response, ResultExpired
from mint.service.runs.journal import Journal, JournalDamaged, Outcome
from mint.service.runs.references import References
from mint.service.runs.stream import GRADIENT_KINDS, Gradients
from mint.service.sampling.samplers import Samplers
from mint.service.shared_components import SharedComponents
from mint.service.store.database import CheckpointRow, RunRow
from mint.service.wire import codec, requests

log = logging.getLogger(__name__)
T = TypeVar("T")
MAX_FAILED_STARTS = 6
"""How often a worker may die before an operation has started."""
DATABASE_WAIT_S = 60.0
"""How long an operation waits for a database that does not answer."""
_KEPT_ANSWERS, _KEPT_BYTES = 256, 32 * 1024 * 1024
"""Limits on the answers from before a snapshot that are kept with it."""
_CHANGES_THE_RUN = (*GRADIENT_KINDS, "optim_step", "load_weights")
_REQUESTS: dict[str, type[requests.Request]] = {
    "forward_backward_reverse_kl": requests.ReverseKl,
    "optim_step": requests.OptimStep,
    "save_weights": requests.SaveWeights,
    "save_weights_external": requests.SaveWeightsExternal,
    "save_weights_for_sampler": requests.SaveWeightsForSampler,
    "load_weights": requests.LoadWeights,
}


class RunInEngine:
    """Executes a run's operations in its engine, restoring the run there first if needed."""

    def __init__(
        self, row: RunRow, journal: Journal, shared: SharedComponents, samplers: Samplers
    ) -> None:
        self._row = row
        self._journal = journal
        self._shared = shared
        self._samplers = samplers
        self._references = References(row, journal, shared.checkpoints)
        self._engine: EngineProcess | None = None
        self._work_s = 0.0
        self._size_after_snapshot = 0
        self._is_restoring = False
        self._is_ahead = False  # the engine may have a change that the journal does not record
        self.gradients = Gradients()
        for outcome in journal.outcomes:
            self.note(outcome)

    @property
    def log_hint(self) -> str | None:
        """Where to read more about a failure in the engine."""
        return self._engine.log_hint if self._engine is not None else None

    def why_waiting(self) -> str | None:
        """Return what the run waits for, as a message."""
        if self._is_restoring:
            return "the run is being restored from its journal"
        return self._shared.engines.why_waiting(self._row.base_model)

    def is_in(self, engine: EngineProcess) -> bool:
        return self._engine is engine

    async def enter(self) -> None:
        """Load the run into its engine, if it is not there."""
        await self._in_engine("loading", lambda engine: asyncio.sleep(0))

    def note(self, outcome: Outcome) -> None:
        """Take note of an outcome that is in the journal."""
        self.gradients.note(outcome.kind, len(outcome.seq_ids), outcome.error)
        self._is_ahead = self._is_ahead and outcome.error is not None

    async def perform(self, kind: str, seq_ids: list[int]) -> Outcome:
        """Execute a group of operations. Raises UserError for the user's mistakes."""
        return await self._in_engine(kind, lambda engine: self._perform(engine, kind, seq_ids))

    async def _in_engine(self, what: str, work: Callable[[EngineProcess], Awaitable[T]]) -> T:
        """Run some work in the engine; when the worker dies, restore the run and retry.

        An operation during which a worker died too often fails: it is probably the cause. A worker
        that dies while the run is restored, or does not start, has more attempts. A database that
        does not answer is retried too, for ``DATABASE_WAIT_S``.
        """
        deaths = failed_starts = 0
        deadline = time.monotonic() + DATABASE_WAIT_S
        base_model = self._row.base_model
        while True:
            has_begun = False
            try:
                alone = self._shared.engines.alone(base_model, is_suspect=deaths > 0)
                async with alone, self._shared.engines.using(base_model) as engine:
                    if self._is_ahead:  # an operation failed after the engine had executed it
                        await self.leave()
                    if self._engine is not engine:
                        await self._restore(engine)
                    has_begun, start = True, time.monotonic()
                    try:
                        return await work(engine)
                    finally:
                        self._work_s += time.monotonic() - start
            except EngineDied as died:
                deaths, failed_starts = deaths + has_begun, failed_starts + (not has_begun)
                times = deaths + failed_starts
                if deaths >= MAX_DEATHS or failed_starts >= MAX_FAILED_STARTS:
                    often = f"This happened {times} times; the operation is not retried."
                    raise EngineDied(f"{died} {often}") from died
                log.warning("retrying %s of %s: %s", what, self._row.id, died)
                await asyncio.sleep(min(0.05 * 2**times, 2.0))
            except DATABASE_FAILED as error:
                if is_disk_full(error) or time.monotonic() > deadline:
                    raise
                cause = getattr(error, "orig", error)
                log.warning("retrying %s of %s: %s", what, self._row.id, cause)
                await asyncio.sleep(1.0)

    async def keep_samplers(self) -> None:
        """Save the ephemeral samplers that would be lost with the engine or the journal.

        If they are in neither the engine nor on disk, the run is restored to recompute them. Raises
        EngineDied, OSError or DATABASE_FAILED, after which it may succeed later.
        """
        try:
            if not await asyncio.to_thread(self._samplers.are_kept, self._row):
                keep = partial(self._samplers.keep, run_id=self._row.id)
                await self._in_engine("keeping the samplers", keep)
        except (UserError, RuntimeError, JournalDamaged) as error:  # it would fail again
            log.warning("samplers of %s are not kept: %s", self._row.id, error)

    async def leave(self) -> None:
        """Free the memory in the engine; a worker that has died holds none."""
        engine, self._engine = self._engine, None
        try:
            await self._references.drop()
            if engine is not None and engine.is_alive:
                await engine.call("drop_run", run_id=self._row.id)
        except EngineDied as died:
            log.warning("%s left its engine: %s", self._row.id, died)

    # ---- restoring ------------------------------------------------------------------------------

    async def _restore(self, engine: EngineProcess) -> None:
        """Load the run's snapshot into an engine, and replay its journal."""
        self._is_restoring = True
        try:
            run_id, lora = self._row.id, read_lora(self._row.lora)
            await engine.call("create_run", run_id=run_id, lora=lora, tenant=self._row.user)
            if (folder := self._journal.snapshot_folder) is not None:
                await asyncio.to_thread(self._journal.check_snapshot)
                optimizer = (folder / OPTIMIZER).exists()
                source = str(folder)
                await engine.call("load_state", run_id=run_id, folder=source, optimizer=optimizer)
            for outcome in list(self._journal.outcomes):
                if outcome.error is None and self._must_replay(engine, outcome):
                    done = await self._perform(engine, outcome.kind, outcome.seq_ids)
                    if outcome.result is None:  # the answer is too large for the journal
                        for seq_id, answer in done.answers.items():
                            self._shared.futures.finish(f"{run_id}:{seq_id}", answer)
        finally:
            self._is_restoring = False
        self._engine, self._is_ahead = engine, False

    def _must_replay(self, engine: EngineProcess, outcome: Outcome) -> bool:
        """Return whether an operation changed the run, or its answer is needed and not recorded."""
        if outcome.kind in _CHANGES_THE_RUN:
            return True
        if outcome.kind == "forward":
            return self._shared.futures.is_open(f"{self._row.id}:{outcome.seq_ids[0]}")
        if outcome.kind == "save_weights_for_sampler":
            sampler_id = (outcome.result or {}).get("sampling_session_id")
            return sampler_id is not None and not self._samplers.has(sampler_id, engine)
        return False

    # ---- operations -----------------------------------------------------------------------------

    async def _change(self, engine: EngineProcess, method: str, **arguments: Any) -> Any:
        """Change the run in its engine. If the operation fails later, the run is restored."""
        self._is_ahead = True
        try:
            return await engine.call(method, run_id=self._row.id, **arguments)
        except UserError:  # nothing was changed
            self._is_ahead = False
            raise

    async def _perform(self, engine: EngineProcess, kind: str, seq_ids: list[int]) -> Outcome:
        if kind in ("forward", "forward_backward"):
            return await self._forward_backward(engine, kind, seq_ids)
        run_id, [seq_id] = self._row.id, seq_ids
        body = await asyncio.to_thread(self._journal.body, seq_id)
        result: dict[str, Any] = {}
        request = await asyncio.to_thread(requests.parse, _REQUESTS[kind], body)
        match request:
            case requests.ReverseKl():
                return await self._reverse_kl(engine, seq_id, request)
            case requests.OptimStep():
                params = AdamSettings(**request.adam_params.model_dump())
                result = {"metrics": await self._change(engine, "optim_step", params=params)}
            case requests.SaveWeightsForSampler(path=None, sampling_session_seq_id=int(number)):
                sampler_id = f"{self._row.session_id}:sample:{number}"
                await self._samplers.freeze(self._row, sampler_id, engine, seq_id)
                result = {"sampling_session_id": sampler_id}
            case requests.SaveWeights():
                is_sampler = isinstance(request, requests.SaveWeightsForSampler)
                name = f"operation-{seq_id}" if request.path is None else check_name(request.path)
                path = CheckpointPath(run_id, SAMPLER if is_sampler else TRAINING, name)
                ttl, metadata = request.ttl_seconds, request.user_metadata
                new = NewCheckpoint(path, seq_id, request.overwrite, ttl, metadata)
                method = "save_adapter" if is_sampler else "save_state"
                result = {"path": (await self._write(engine, method, new)).uri}
            case requests.SaveWeightsExternal():
                path = CheckpointPath(run_id, EXTERNAL, check_name(request.path))
                new = NewCheckpoint(path, seq_id, ttl_seconds=request.ttl_seconds)
                row = await self._write(engine, "save_adapter", new)
                result = {"path": row.uri, "size_bytes": row.size_bytes}
            case requests.LoadWeights():
                folder = str(await asyncio.to_thread(self._references.to_load, request, seq_id))
                optimizer = request.optimizer
                await self._change(engine, "load_state", folder=folder, optimizer=optimizer)
                result = {"path": CheckpointPath.parse(request.path).uri}
        return Outcome(kind, seq_ids, result={**result, "type": kind})

    async def _forward_backward(
        self, engine: EngineProcess, kind: str, seq_ids: list[int]
    ) -> Outcome:
        bodies = await asyncio.to_thread(lambda: [self._journal.body(n) for n in seq_ids])
        entries = [self._journal.entries[n] for n in seq_ids]
        operations = await self._shared.decoder.forward_backward(
            bodies,
            [entry.content_type == codec.PROTOBUF for entry in entries],
            forward_only=kind == "forward",
        )
        results: list[ForwardBackwardResult] = await self._change(
            engine, "forward_backward", operations=operations
        )
        answers = await asyncio.to_thread(
            lambda: [Response.protobuf(codec.encode_forward_backward(each)) for each in results]
        )
        tokens = sum(operation.tokens for operation in operations)
        large_answers = dict(zip(seq_ids, answers, strict=True))
        return Outcome(kind, seq_ids, large_answers=large_answers, tokens=tokens)

    async def _reverse_kl(
        self, engine: EngineProcess, seq_id: int, request: requests.ReverseKl
    ) -> Outcome:
        data = await asyncio.to_thread(codec.decode_reverse_kl, request.data)
        reference = await self._references.load(engine, request.reference_model_path, seq_id)
        losses, metrics = await self._change(
            engine,
            "forward_backward_reverse_kl",
            sampler_id=reference,
            data=data,
            temperature=request.temperature,
        )
        outputs = [{"loss": {"data": [x], "shape": [1], "dtype": "float32"}} for x in losses]
        tokens = sum(len(datum.student) for datum in data)
        kind = "forward_backward_reverse_kl"
        result = {"outputs": outputs, "metrics": metrics, "type": f"mint_{kind}"}
        return Outcome(kind, [seq_id], result=result, tokens=tokens)

    async def _write(self, engine: EngineProcess, method: str, new: NewCheckpoint) -> CheckpointRow:
        """Let the engine save a checkpoint, which appears complete or not at all."""
        checkpoints = self._shared.checkpoints
        await asyncio.to_thread(checkpoints.check_quota, self._row, new.path)
        draft = await asyncio.to_thread(checkpoints.begin, new)
        try:
            digest = await engine.call(method, run_id=self._row.id, folder=str(draft))
            return await asyncio.to_thread(checkpoints.publish, new, draft, self._row, digest)
        except BaseException:
            await asyncio.to_thread(checkpoints.discard, draft)
            raise

    # ---- snapshots ------------------------------------------------------------------------------

    async def maybe_snapshot(self, outcome: Outcome, first: int) -> None:
        """Make a snapshot when replaying the journal would take long, or when it is large.

        After operations other than a step that succeeded the journal must have doubled, as a
        snapshot copies the operations that wait.
        """
        kind = outcome.kind if outcome.error is None else None
        is_long = self._work_s >= self._shared.settings.snapshot_after_s
        is_large = self._journal.size >= self._shared.settings.snapshot_after_bytes
        has_doubled = self._journal.size >= 2 * self._size_after_snapshot
        is_due = (is_long or is_large) if kind == "optim_step" else is_large and has_doubled
        if is_due or kind == "load_weights":
            await self.snapshot(first)

    async def snapshot(self, first: int) -> None:
        """Save the state before operation ``first``, unless gradients are accumulated."""
        are_accumulated = self.gradients.kept or self.gradients.voided
        if self._engine is None or self._is_ahead or are_accumulated or not self._journal.outcomes:
            return
        folder: Path | None = None
        try:
            await self._samplers.keep(self._engine, run_id=self._row.id)
            folder = await asyncio.to_thread(self._journal.new_snapshot_folder, first)
            await self._engine.call("save_state", run_id=self._row.id, folder=str(folder))
            answers = await asyncio.to_thread(self._kept_answers)
            await asyncio.to_thread(self._journal.cut, folder, first, answers)
        except Exception as error:  # whatever it was, the journal has what a snapshot would
            is_bug = not isinstance(error, (*EXPLAINED, RuntimeError, JournalDamaged))
            log.warning("no snapshot of %s was made: %s", self._row.id, error, exc_info=is_bug)
            if folder is not None:
                await asyncio.to_thread(self._journal.discard_snapshot, folder)
        else:
            self._work_s = 0.0
            self._size_after_snapshot = self._journal.size

    def _kept_answers(self) -> dict[int, Response]:
        """Return the newest answers that a client may still ask for, within limits."""
        numbers = [*self._journal.kept, *self._journal.done]
        kept: dict[int, Response] = {}
        size = 0
        for number in reversed(numbers[-_KEPT_ANSWERS:]):
            future = self._shared.futures.find(f"{self._row.id}:{number}", self._row.user)
            with contextlib.suppress(ResultExpired):
                if future is not None and (answer := future.read()) is not None:
                    size += len(answer.body)
                    if size > _KEPT_BYTES:
                        break
                    kept[number] = answer
        return dict(reversed(kept.items()))  # the oldest first
