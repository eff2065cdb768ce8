"""The runs of this service: created, opened from their journals, and released."""

import asyncio
import contextlib
import logging
import secrets
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from mint.engine.messages import LoraSpec
from mint.service.access.scopes import Caller
from mint.service.background import in_background
from mint.service.checkpoints.peft import OPTIMIZER
from mint.service.checkpoints.storage import require_optimizer, run_folder_name
from mint.service.engines.process import EngineProcess
from mint.service.errors import ApiError, UserError, not_found
from mint.service.futures import Response
from mint.service.idleness import Idleness
from mint.service.runs.journal import Journal, JournalDamaged, RunIsElsewhere
from mint.service.runs.run import UNLOADED, TrainingRun
from mint.service.sampling.samplers import Samplers
from mint.service.shared_components import SharedComponents
from mint.service.store.database import RunRow
from mint.service.wire.requests import CreateByLoad, CreateModel

log = logging.getLogger(__name__)


class RunEnded(ApiError):
    """The run cannot be trained any more: it was unloaded, or its state was deleted."""


class Runs:
    """Creates, finds and releases runs."""

    def __init__(self, shared: SharedComponents, samplers: Samplers) -> None:
        self._shared = shared
        self._settings = shared.settings
        self._store = shared.store
        self._samplers = samplers
        self._runs: dict[str, TrainingRun] = {}
        self._opening: dict[tuple[str, str], asyncio.Task[TrainingRun]] = {}
        self._releasing: dict[str, asyncio.Task[None]] = {}
        self._unloading: dict[str, asyncio.Task[None]] = {}
        self._creating = asyncio.Lock()

    # ---- creating -------------------------------------------------------------------------------

    async def create(self, caller: Caller, request: CreateModel) -> str:
        """Start to create a run; return the request id. The same request gives the same run."""
        await self._shared.sessions.require(request.session_id, caller.user)
        if request.lora_config is None:
            raise UserError("lora_config is missing: this service trains LoRA adapters only.")
        spec = LoraSpec(**request.lora_config.model_dump())
        if spec.seed is None:  # it is chosen now, so that a replay creates the same adapter
            spec = replace(spec, seed=secrets.randbits(31))
        row = RunRow(base_model=request.base_model, lora=asdict(spec))
        return await self._create(caller, request, row)

    async def create_by_load(self, caller: Caller, request: CreateByLoad) -> str:
        """Start to create a run that continues from a checkpoint; return the request id."""
        user = caller.user
        await self._shared.sessions.require(request.session_id, user)
        found = await asyncio.to_thread(self._shared.checkpoints.require, request.path, user)
        if request.base_model not in (None, found.base_model):
            why = f"{found.uri} was trained from {found.base_model}, not from {request.base_model}."
            raise UserError(f"{why} Leave base_model out, or name the right one.")
        if request.optimizer:
            require_optimizer(found)
        row = RunRow(base_model=found.base_model, lora=found.lora)
        wanted = ("adapter_", OPTIMIZER) if request.optimizer else ("adapter_",)
        fill = partial(self._shared.checkpoints.link, found, start=wanted)
        return await self._create(caller, request, row, fill)

    async def _create(
        self,
        caller: Caller,
        request: CreateModel | CreateByLoad,
        row: RunRow,
        fill: Callable[[Path], None] | None = None,
    ) -> str:
        user = row.user = caller.user
        row.key, row.session_id = caller.key, request.session_id
        row.id = f"{request.session_id}:train:{request.model_seq_id}"
        row.user_metadata = request.user_metadata
        run_folder_name(row.id)
        request_id = f"{row.id}:0"
        async with self._creating:
            known = self._shared.futures.find(request_id, user)
            if known is not None and known.answer is not None and known.answer.is_failure:
                # it was undone, so the same request starts it again
                self._shared.futures.forget(request_id, user)
                known = None
            if known is None:
                is_new = await asyncio.to_thread(self._add, row)
                self._folder(row.id).mkdir(parents=True, exist_ok=True)
                run = await self._get(row.id, user)
                try:
                    if fill is not None:
                        await run.begin_from(fill)
                except Exception as error:  # without them it would begin with fresh weights
                    failure = Response.failure(str(error), "server")
                    self._shared.futures.finish(request_id, failure)
                    await self._keep_out(row.id, self._delete(run))
                    raise
                self._shared.futures.compute(
                    request_id, user, "create_model", self._load(run, is_new), run.why_waiting
                )
        return request_id

    def _add(self, row: RunRow) -> bool:
        """Store a run; return whether it is new.

        Raises ApiError 403 if its key has reached its quota of runs.
        """
        quota = self._shared.find_quota(row.key)
        if quota.runs is not None and self._store.get(RunRow, row.id, row.user) is None:
            held = sum(self._can_train(run_id) for run_id in self._store.runs_of_key(row.key))
            quota.refuse_run(row.key, held)
        return self._store.add_once(row, row.id) is row

    def _can_train(self, run_id: str) -> bool:
        folder = self._folder(run_id)
        return folder.exists() and not (folder / UNLOADED).exists()

    async def _load(self, run: TrainingRun, is_new: bool) -> Response:
        """Load a run. If a new one fails it is deleted, so that the same request can create it
        again; one that has accepted an operation never is."""
        try:
            await run.load()
        except Exception:
            if is_new and not run.has_operations:
                await self._keep_out(run.row.id, self._delete(run))
            raise
        finally:
            if not is_new:
                in_background(run.resume())  # the operations left in its journal
        return run.creation_answer()

    async def _delete(self, run: TrainingRun) -> None:
        await run.release()
        await asyncio.to_thread(self._store.delete_run, run.row.id)
        await asyncio.to_thread(shutil.rmtree, self._folder(run.row.id), ignore_errors=True)

    # ---- finding --------------------------------------------------------------------------------

    async def find(self, run_id: str, user: str) -> TrainingRun:
        """Return the run of this id, opened from its journal if needed. Raises ApiError 404."""
        was_open = run_id in self._runs
        run = await self._get(run_id, user)
        if run.row.user != user:
            raise _unknown(run_id)
        if not was_open or run.wants_resuming:
            in_background(run.resume())
        self._shared.sessions.saw(run.row.session_id, user)
        self._store.note_use(RunRow, run_id)
        return run

    async def resume_if_due(self, run_id: str, user: str, is_created: bool) -> None:
        """Retry restoring a run that could not be restored, or was released before it was."""
        if run_id in self._runs or (is_created and run_id not in self._releasing):
            await self.find(run_id, user)

    def row(self, run_id: str, user: str) -> RunRow:
        """Return the row of a run, without opening it. Raises ApiError 404."""
        row = self._store.get(RunRow, run_id, user)
        if row is None:
            raise _unknown(run_id)
        return row

    async def _get(self, run_id: str, user: str) -> TrainingRun:
        if (releasing := self._releasing.get(run_id)) is not None:
            await asyncio.shield(releasing)
        if (run := self._runs.get(run_id)) is not None:
            return run
        key = (run_id, user)
        if key not in self._opening:
            self._opening[key] = asyncio.create_task(self._open(run_id, user))
            self._opening[key].add_done_callback(lambda _: self._opening.pop(key, None))
        return await asyncio.shield(self._opening[key])

    async def _open(self, run_id: str, user: str) -> TrainingRun:
        row = await asyncio.to_thread(self.row, run_id, user)
        if not self._folder(run_id).exists():
            raise RunEnded(
                404,
                f"The run {run_id} cannot be trained: it contains only copied or uploaded "
                "checkpoints, or its state was deleted because it was unused for "
                f"{self._settings.run_kept_s / 86400:.0f} days. Its checkpoints are kept: "
                "create_training_client_from_state() creates a new run from one.",
            )
        if (self._folder(run_id) / UNLOADED).exists():
            raise RunEnded(
                404,
                f"The run {run_id} was unloaded with unload_model and accepts no more operations. "
                "Its checkpoints are kept (`mint checkpoints list --run` shows them): "
                "create_training_client_from_state_with_optimizer() creates a new run from one.",
            )
        try:
            journal = await asyncio.to_thread(Journal, self._folder(run_id))
        except RunIsElsewhere:
            raise ApiError(
                400,
                f"The run {run_id} is in use by another mint service with the same home folder. "
                "Use that service, or stop it first.",
            ) from None
        except JournalDamaged as error:
            log.error("%s: %s", run_id, error)
            raise
        run = TrainingRun(row, journal, self._shared, self._samplers)
        self._runs[run_id] = run
        return run

    def _folder(self, run_id: str) -> Path:
        return self._settings.home / "runs" / run_folder_name(run_id)

    async def restore(self, run_id: str, user: str) -> None:
        """Load a run into its engine, and with it its samplers, unless it has ended."""
        with contextlib.suppress(RunEnded):
            await (await self.find(run_id, user)).load()

    @property
    def waiting(self) -> int:
        """The number of accepted operations that have not begun, of all runs."""
        return sum(run.waiting for run in self._runs.values())

    @property
    def paused(self) -> list[str]:
        """Why runs are waiting for the disk, one reason per run."""
        return [why for run in list(self._runs.values()) if (why := run.why_paused)]

    def status(self, run_id: str) -> dict[str, Any]:
        """Return a run's state, how many operations are waiting, and what for."""
        run = self._runs.get(run_id)
        if run is None:
            is_unloaded = (self._folder(run_id) / UNLOADED).exists()
            kept = "on disk" if self._can_train(run_id) else "checkpoints only"
            return {"state": "unloaded" if is_unloaded else kept, "waiting": 0, "reason": None}
        state = "busy" if run.is_working else "waiting" if run.waiting else "idle"
        state = "paused" if run.why_paused else state
        pending = run.why_waiting() if state != "idle" else None
        reason = pending.reason if pending is not None else None
        return {"state": state, "waiting": run.waiting, "reason": reason}

    # ---- releasing ------------------------------------------------------------------------------

    async def release(self, run_id: str, for_good: bool = False) -> None:
        """Remove a run from memory; the next request for it opens it from its journal."""
        if (run := self._runs.get(run_id)) is not None:
            await self._keep_out(run_id, run.release(for_good))

    async def _keep_out(self, run_id: str, work: Coroutine[Any, Any, None]) -> None:
        """Do the last work on a run; requests for it wait until it is done."""
        self._runs.pop(run_id, None)
        task = self._releasing[run_id] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._releasing.pop(run_id, None))
        await asyncio.shield(task)

    async def unload(self, row: RunRow) -> None:
        """Release a run permanently: later operations are refused. Its checkpoints stay, and so do
        its samplers. Raises EngineDied, OSError or DATABASE_FAILED if those cannot be saved."""
        if row.id not in self._unloading:
            task = self._unloading[row.id] = asyncio.create_task(self._unload(row))
            task.add_done_callback(lambda _: self._unloading.pop(row.id, None))
        await asyncio.shield(self._unloading[row.id])

    async def _unload(self, row: RunRow) -> None:
        while self._can_train(row.id):
            try:
                await self._get(row.id, row.user)  # what its journal has left is done first
                await self.release(row.id, for_good=True)
            except JournalDamaged:  # it cannot restore its samplers
                await asyncio.to_thread((self._folder(row.id) / UNLOADED).touch)

    async def release_session(self, session_id: str) -> bool:
        """Release the runs of a silent session; return False while one of them is working."""
        mine = [run for run in self._runs.values() if run.row.session_id == session_id]
        if any(run.is_working for run in mine):
            return False
        for run in mine:
            await self.release(run.row.id)
        return True

    async def prepare_to_leave(self, engine: EngineProcess) -> None:
        """Save the runs in an engine that is about to be unloaded."""
        for run in list(self._runs.values()):
            await run.prepare_to_leave(engine)

    def delete_forgotten(self, idleness: Idleness) -> None:
        """Delete the journals and snapshots of runs that were unused for ``run_kept_s``."""
        root = self._settings.home / "runs"
        changed = {
            folder.name: str(max(file.lstat().st_mtime_ns for file in (folder, *folder.iterdir())))
            for folder in root.glob("*/")
        }
        for name in idleness.due("run", changed, self._settings.run_kept_s):
            if name not in {run_folder_name(run_id) for run_id in list(self._runs)}:
                with contextlib.suppress(RunIsElsewhere, JournalDamaged, OSError):
                    with contextlib.closing(Journal(root / name)):
                        gone = (root / name).rename(root / f"{name}.deleted")
                    shutil.rmtree(gone, ignore_errors=True)

    def sessions_with_state(self) -> set[str]:
        """Return the ids of the sessions with a run whose journal is on disk."""
        folders = (self._settings.home / "runs").glob("*")
        return {folder.name.partition("_")[0] for folder in folders}

    def open_runs(self) -> set[str]:
        """Return the ids of the runs that are open in this service."""
        return set(self._runs)

    async def close(self) -> None:
        """Stop every run at once: the service is stopping, and the journals have the rest."""
        await asyncio.gather(*(run.close() for run in self._runs.values()))


def _unknown(run_id: str) -> ApiError:
    return not_found("training run", run_id, "`mint runs list` shows yours.")
