"""One training run: its ordered stream of operations, its journal, and its state in an engine.

Every operation is accepted, written to the journal, acknowledged and executed in order; then its
outcome is written and its future finished. After a crash of the engine or the service, the run is
loaded from its snapshot and the journal is replayed.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from mint.service.engines.process import EngineProcess
from mint.service.errors import ApiError, EngineDied, UserError, explain
from mint.service.futures import Response, WaitReason
from mint.service.runs.disk_space import DiskSpace
from mint.service.runs.in_engine import RunInEngine
from mint.service.runs.journal import Journal, Outcome
from mint.service.runs.stream import Operation, Stream
from mint.service.sampling.samplers import Samplers
from mint.service.shared_components import SharedComponents
from mint.service.store.database import RunRow
from mint.service.wire.bodies import negative_number

log = logging.getLogger(__name__)
UNLOADED = "unloaded"
"""A file in the folder of a run that unload_model has ended."""
MAX_WAITING = 10_000
MAX_JOURNAL_BYTES = 64 * 1024**3
"""How large a journal may grow that cannot be cut, because no optim_step ends its gradients."""
RETRY_RESTORE_S = 30.0
_JOURNAL_FULL = (
    f"The journal of this run has more than {MAX_JOURNAL_BYTES >> 30} GiB, as it keeps every "
    "operation since the last optim_step. Send optim_step, or unload the run, before sending more."
)
ACCEPTED_WITHIN_S = 25.0
"""How long a request is held open until its operation is in the journal."""


class TrainingRun:
    """A run that is open in this service."""

    def __init__(
        self, row: RunRow, journal: Journal, shared: SharedComponents, samplers: Samplers
    ) -> None:
        self.row = row
        self._journal = journal
        self._settings = shared.settings
        self._futures = shared.futures
        self._usage = shared.usage
        self._in_engine = RunInEngine(row, journal, shared, samplers)
        self._stream = Stream(journal.next, [*journal.taken, *journal.done])
        home, reserve = self._settings.home, self._settings.disk_reserve_bytes
        self._space = DiskSpace(home, reserve, self._settings.disk_wait_s)
        self._journal_space = DiskSpace(home, 0, self._settings.disk_wait_s)
        self._outcome_space = DiskSpace(home, 0, limit_s=None)
        self._spaces = (self._outcome_space, self._journal_space, self._space)
        self._turn = asyncio.Lock()
        self._arrived = asyncio.Event()
        self._entering: dict[int, asyncio.Task[None]] = {}
        self._worker: asyncio.Task[None] | None = None
        self._is_released = False
        self._trouble: str | None = None
        self._retry_at = 0.0
        self._reopen()

    def request_id(self, seq_id: int) -> str:
        return f"{self.row.id}:{seq_id}"

    @property
    def is_working(self) -> bool:
        """Whether an operation runs or can run. Waiting for a missing number is not work."""
        return (
            self._turn.locked()
            or bool(self._entering)
            or (len(self._stream) > 0 and self._stream.gap is None)
        )

    @property
    def waiting(self) -> int:
        """The number of accepted operations that have not started."""
        return len(self._stream)

    @property
    def has_operations(self) -> bool:
        """Whether an operation was ever accepted."""
        journal = self._journal
        return bool(self._entering or journal.entries or journal.taken) or journal.first > 1

    @property
    def why_paused(self) -> str | None:
        """What an operation waits for on the disk; None while none does."""
        return next(filter(None, (space.why_waiting() for space in self._spaces)), None)

    def was_taken(self, seq_id: int) -> bool:
        """Return whether this number has run or is waiting to; one that is too late never does."""
        journal = self._journal
        return self._stream.knows(seq_id) and (
            seq_id < journal.first
            or seq_id in journal.entries
            or self._futures.find(self.request_id(seq_id), self.row.user) is not None
            or seq_id in journal.done
        )

    def _reopen(self) -> None:
        """Open the futures of the run's creation and of the operations in the journal."""
        self._open_future(0)
        for seq_id, kept in self._journal.answers().items():
            self._open_future(seq_id)
            self._finish(seq_id, kept)
        for seq_id, entry in self._journal.entries.items():
            self._open_future(seq_id)
            self._stream.accept(Operation(seq_id, entry.kind, entry.size, is_ready=True))
        for outcome in self._journal.outcomes:
            self._answer(outcome)

    # ---- accepting ------------------------------------------------------------------------------

    async def submit(
        self,
        seq_id: int | None,
        kind: str,
        content_type: str,
        body: bytes,
        error: str | None = None,
        key: str | None = None,
    ) -> str:
        """Accept an operation and return its request id once it is in the journal.

        A repeated number gets the same request id and changes nothing; so does a repeated ``key``,
        if there is no number. ``error`` marks a body that could not be read: it uses up its number
        and fails.
        """
        if self._is_too_large_for(kind):
            await self._wait_for_turn()  # the journal is cut after the answer to an optim_step
        self._refuse_if_released()
        number = negative_number(key or uuid.uuid4().hex) if seq_id is None else seq_id
        if not self._stream.knows(number):
            if self._journal_space.why_waiting():
                raise self._journal_full()  # operations that wait for it are held in memory
            if len(self._stream) > MAX_WAITING and number != self._stream.next:
                raise ApiError(429, "Too many operations of this run are waiting. Try again later.")
            if self._is_too_large_for(kind):
                body, error = b"", _JOURNAL_FULL
            operation = Operation(number, kind, len(body), error)
            self._stream.accept(operation)
            self._open_future(number)
            self._entering[number] = asyncio.create_task(self._enter(operation, content_type, body))
        elif not self.was_taken(number):
            raise ApiError(
                400,
                f"Operation {number} came too late: those after it waited for it and were aborted. "
                "It was not carried out. Send it again with a new number.",
            )
        if (entering := self._entering.get(number)) is not None:
            await asyncio.wait([entering], timeout=ACCEPTED_WITHIN_S)
            self._refuse_if_released()
            if not entering.done():
                raise self._journal_full()
            entering.result()
        return self.request_id(number)

    def _is_too_large_for(self, kind: str) -> bool:
        return kind != "optim_step" and self._journal.size > MAX_JOURNAL_BYTES

    async def _wait_for_turn(self) -> None:
        """Wait until what is running has ended. Raises ApiError when that takes long."""
        try:
            async with asyncio.timeout(ACCEPTED_WITHIN_S), self._turn:
                pass
        except TimeoutError:
            raise self._journal_full() from None

    def _refuse_if_released(self) -> None:
        if self._is_released:
            raise ApiError(503, "The run is being unloaded; retry.")

    def _journal_full(self) -> ApiError:
        why = self._journal_space.why_waiting() or "the operation is still being written to disk"
        return ApiError(503, f"Not accepted yet; send it again: {why}.")

    async def _enter(self, operation: Operation, content_type: str, body: bytes) -> None:
        record = (operation.seq_id, operation.kind, content_type, body)
        try:
            await self._journal_space.use(
                lambda: asyncio.to_thread(self._journal.append_operation, *record)
            )
        except Exception as error:
            if self._is_released:
                return  # it was not acknowledged, so the client sends it again
            operation.error, _ = explain(error, "writing the operation to the journal")
        finally:
            del self._entering[operation.seq_id]
        operation.is_ready = True
        self.wake()

    def _open_future(self, seq_id: int) -> None:
        self._futures.open(self.request_id(seq_id), self.row.user, lambda: self.why_waiting(seq_id))

    def _finish(self, seq_id: int, answer: Response) -> None:
        self._futures.finish(self.request_id(seq_id), answer)

    def _answer(self, outcome: Outcome) -> None:
        for seq_id, answer in outcome.answers.items():
            self._finish(seq_id, answer)

    def why_waiting(self, seq_id: int = 0) -> WaitReason | None:
        """Return what an unfinished operation of this run waits for; None while it runs."""
        if (why := self.why_paused) is not None:
            return WaitReason(why)
        if (gap := self._stream.gap) is not None:
            return WaitReason(f"waiting for operation {gap} of this run, which has not arrived")
        if self._trouble is not None:
            return WaitReason(f"the run could not be restored; retrying: {self._trouble}")
        if (why := self._in_engine.why_waiting()) is not None:
            return WaitReason(why)
        before = seq_id - self._stream.next + self._turn.locked()
        if seq_id < self._stream.next or before <= 0:
            return None
        return WaitReason(f"queued behind {before} operations of this run", "active")

    # ---- running --------------------------------------------------------------------------------

    def wake(self) -> None:
        """Start the worker task, if there is something to run."""
        self._arrived.set()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while True:
            async with self._turn:  # what was taken is not in a snapshot before it has run
                if group := self._stream.take():
                    await self._run(group)
            if not group and self._stream.gap is None:
                return
            if not group:
                await self._wait_for_gap()

    async def _wait_for_gap(self) -> None:
        self._arrived.clear()
        try:
            await asyncio.wait_for(self._arrived.wait(), self._settings.gap_limit_s)
        except TimeoutError:
            await self._abandon(
                f"operation {self._stream.gap} of this run did not arrive within "
                f"{self._settings.gap_limit_s:.0f} s, so this one was aborted. Send it again."
            )

    async def _abandon(self, why: str) -> None:
        """Fail all operations that wait for a missing number, unless it has arrived by now."""
        async with self._turn:
            waiting = self._stream.drop_waiting() if self._stream.gap is not None else []
            for operation in waiting:
                await self._close(Outcome(operation.kind, [operation.seq_id], why, "user"))

    async def _run(self, group: list[Operation]) -> None:
        kind, seq_ids = group[0].kind, [operation.seq_id for operation in group]
        try:
            for operation in group:
                if operation.error is not None:
                    raise UserError(operation.error)
            if kind == "optim_step" and (why := self._in_engine.gradients.why_not_step()):
                raise UserError(why)
            outcome = await self._space.use(lambda: self._in_engine.perform(kind, seq_ids))
        except Exception as error:
            doing = f"{kind} of {self.row.id}"
            why, category = explain(error, doing, self._in_engine.log_hint)
            if category == "user" and len(group) > 1:
                why += (
                    f" (Operations {seq_ids[0]} to {seq_ids[-1]} arrived together as parts of one "
                    "batch, so none of their gradients were kept.)"
                )
            outcome = Outcome(kind, seq_ids, why, category)
        outcome = await self._close(outcome)
        if outcome.error is None:
            self._trouble = None
            counted = "prompt_tokens" if kind == "forward" else "tokens_trained"
            self._usage.add(self.row.key, self.row.id, **{counted: outcome.tokens})
        await self._in_engine.maybe_snapshot(outcome, self._stream.next)

    async def _close(self, outcome: Outcome) -> Outcome:
        """Record an outcome, and report it when a kill cannot change it. (If the run is released
        before that, the operation may be executed again.) Return what was recorded: an outcome
        without memory for its record is a failure."""
        try:
            is_final = await asyncio.to_thread(self._journal.append_outcome, outcome)
        except MemoryError as error:
            why, category = explain(error, f"recording the outcome of {outcome.kind}")
            outcome = Outcome(outcome.kind, outcome.seq_ids, why, category)
            is_final = await asyncio.to_thread(self._journal.append_outcome, outcome)
        self._in_engine.note(outcome)
        with suppress(OSError):  # as the run is released
            if not is_final:
                await self._outcome_space.use(lambda: asyncio.to_thread(self._journal.flush))
            self._answer(outcome)
        return outcome

    # ---- in the engine --------------------------------------------------------------------------

    async def load(self) -> None:
        """Load the run into its engine, if it is not there, unless it was released meanwhile."""
        async with self._turn:
            if not self._is_released:
                await self._in_engine.enter()

    async def begin_from(self, fill: Callable[[Path], None]) -> None:
        """Start a new run from the files that ``fill`` puts into a folder, unless it has begun."""
        async with self._turn:
            await asyncio.to_thread(self._journal.begin_from, fill)

    async def prepare_to_leave(self, engine: EngineProcess) -> None:
        """Snapshot the run before its engine is unloaded, to restore it without a replay."""
        if self._in_engine.is_in(engine) and not self.is_working:
            async with self._turn:
                await self._in_engine.snapshot(self._stream.next)

    # ---- restoring and releasing ----------------------------------------------------------------

    async def resume(self) -> None:
        """Restore the run after a restart of the service, and finish what is in its journal."""
        self._retry_at = float("inf")
        try:
            await self.load()
            self._finish(0, self.creation_answer())
        except EngineDied as died:
            # The answers of executed operations stay pending, and polls report the reason. The next
            # operation, or the next poll after a while, restores the run.
            log.error("%s could not be restored: %s", self.row.id, died)
            self._trouble = str(died)
            self._retry_at = time.monotonic() + RETRY_RESTORE_S
        except Exception as error:
            text = (
                f"The run could not be restored: {error} (This operation was already executed. Do "
                "not send it again.)"
            )
            log.exception("%s could not be restored", self.row.id)
            for seq_id in [0, *self._journal.done]:
                self._finish(seq_id, Response.failure(text, "server"))
        else:
            self._trouble = None
        self.wake()

    @property
    def wants_resuming(self) -> bool:
        """Whether restoring failed and may be retried now."""
        return self._trouble is not None and time.monotonic() >= self._retry_at

    def creation_answer(self) -> Response:
        """Return the answer to the request that created the run."""
        is_loaded = self._journal.snapshot_folder is not None and self._journal.first == 1
        kind = "load_weights" if is_loaded else "create_model"
        return Response.json({"model_id": self.row.id, "type": kind})

    async def close(self) -> None:
        """Stop at once, as the service is stopping. The journal has what has not run."""
        self._is_released = True
        self._journal_space.end()
        await asyncio.gather(*self._entering.values(), return_exceptions=True)
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        await asyncio.to_thread(self._journal.close)

    async def release(self, for_good: bool = False) -> None:
        """Free the memory in the engine and the lock; the journal stays on disk.

        ``for_good`` marks the run as unloaded, after saving the samplers that could otherwise be
        restored only from the journal. Raises what :meth:`RunInEngine.keep_samplers` does.
        """
        self._is_released = True
        self._journal_space.end()
        self._space.end()
        if not for_good:  # otherwise nothing would execute again what was not reported
            self._outcome_space.end()
        await asyncio.gather(*self._entering.values())
        await self._abandon("The session of this run ended before the operation could run.")
        self.wake()
        if self._worker is not None:
            await self._worker
        async with self._turn, AsyncExitStack() as afterwards:
            afterwards.push_async_callback(asyncio.to_thread, self._journal.close)
            afterwards.push_async_callback(self._in_engine.leave)
            if for_good:
                await self._in_engine.keep_samplers()
                await asyncio.to_thread((self._journal.folder / UNLOADED).touch)
                self._finish(0, self.creation_answer())
