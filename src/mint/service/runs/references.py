"""Checkpoints that a run depends on: weights that it loads, and references for distillation.

Their files are kept with the journal until the next snapshot, so that a replay finds them even if
the checkpoint was deleted or overwritten since.
"""

import asyncio
import os
import shutil
import uuid
from pathlib import Path

from mint.service.checkpoints.storage import CheckpointStore, require_optimizer
from mint.service.engines.process import EngineProcess
from mint.service.errors import UserError
from mint.service.files import sync, sync_folder
from mint.service.runs.journal import Journal
from mint.service.store.database import CheckpointRow, RunRow
from mint.service.wire.requests import LoadWeights

MAX_RESIDENT = 4


class References:
    """Loads the checkpoints that a run's operations name."""

    def __init__(self, run: RunRow, journal: Journal, checkpoints: CheckpointStore) -> None:
        self._run = run
        self._journal = journal
        self._checkpoints = checkpoints
        self._engine: EngineProcess | None = None
        self._resident: list[str] = []

    async def load(self, engine: EngineProcess, path: str, seq_id: int) -> str:
        """Return the sampler of the reference that operation ``seq_id`` names, also in a replay."""
        folder = await asyncio.to_thread(self._kept, path, seq_id)
        sampler_id = f"{self._run.id}:reference:{folder.name if folder else 'base'}"
        if self._engine is not engine:
            self._engine, self._resident = engine, []
        if sampler_id not in self._resident:
            source = str(folder) if folder else None
            await engine.call("create_sampler", sampler_id=sampler_id, folder=source)
        self._resident = [*(known for known in self._resident if known != sampler_id), sampler_id]
        while len(self._resident) > MAX_RESIDENT:
            await engine.call("drop_sampler", sampler_id=self._resident.pop(0))
        return sampler_id

    async def drop(self) -> None:
        """Free the memory in the engine."""
        resident, self._resident = self._resident, []
        for sampler_id in resident:
            if self._engine is not None and self._engine.is_alive:
                await self._engine.call("drop_sampler", sampler_id=sampler_id)

    def to_load(self, request: LoadWeights, seq_id: int) -> Path:
        """Return a folder with the files to load, as they were when the operation first ran."""
        folder = self._journal.folder / f"reference-loaded-by-{seq_id}"
        if folder.exists():
            return folder
        row = self._require(request.path)
        if request.optimizer:
            require_optimizer(row)
        self._link(row, folder)
        return folder

    def _require(self, path: str) -> CheckpointRow:
        """Return a checkpoint of the run's base model. Raises UserError."""
        row = self._checkpoints.require(path, self._run.user)
        if row.base_model != self._run.base_model:
            raise UserError(
                f"{row.uri} was trained from {row.base_model}, and this run trains "
                f"{self._run.base_model}. Use a checkpoint of the same base model, or create the "
                f"run with base_model={row.base_model!r}."
            )
        return row

    def _link(self, row: CheckpointRow, folder: Path, start: str = "") -> None:
        """Link files into a new folder that is durable, and appears complete or not at all."""
        draft = folder.with_name(f"reference-draft-{uuid.uuid4().hex}")
        draft.mkdir()
        try:
            self._checkpoints.link(row, draft, start)
            sync_folder(draft)
            draft.rename(folder)
        except Exception:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        sync(folder.parent)

    def _kept(self, path: str, seq_id: int) -> Path | None:
        """Return the folder with the reference's files; None for the base model."""
        if path == self._run.base_model:
            return None
        mark = self._journal.folder / f"reference-of-{seq_id}"
        if not mark.exists():
            row = self._require(path)
            folder = self._journal.folder / f"reference-{row.version}"
            if not folder.exists():
                self._link(row, folder, "adapter_")
            draft = mark.with_name(f"reference-draft-{uuid.uuid4().hex}")
            os.symlink(folder.name, draft)
            os.replace(draft, mark)
        return mark.resolve()
