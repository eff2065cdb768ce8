"""Checkpoints created without an engine: copied, uploaded or interpolated.

A checkpoint that was not trained here gets a new run, which is only there to hold it.
"""

import asyncio
import errno
import json
import os
import shutil
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from mint.service.access.scopes import Caller
from mint.service.checkpoints.archives import unpack
from mint.service.checkpoints.peft import OPTIMIZER, AdapterFiles, mix
from mint.service.checkpoints.storage import (
    DESCRIPTION,
    SAMPLER,
    TRAINING,
    CheckpointPath,
    Description,
    NewCheckpoint,
    check_name,
    run_folder_name,
)
from mint.service.errors import NotFound, UserError, readable_os_error
from mint.service.files import free_bytes, link_files
from mint.service.futures import Response
from mint.service.shared_components import SharedComponents
from mint.service.store.database import CheckpointRow, RunRow, SessionRow
from mint.service.wire.bodies import negative_number
from mint.service.wire.requests import CopyWeights, Interpolate, describe

INTERPOLATION = "interpolation-"
_MAX_DESCRIPTION_BYTES = 1024 * 1024
_MOST_AT_ONCE, _MOST_OF_USER = 4, 2
"""How many checkpoints are unpacked, checked, copied or mixed at once, in all and of one user."""
T = TypeVar("T")


class Transfers:
    """Copies, uploads and interpolates checkpoints."""

    def __init__(self, shared: SharedComponents) -> None:
        self._shared = shared
        self._checkpoints = shared.checkpoints
        self._threads = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="mint-transfers")
        self._turns = defaultdict[str, asyncio.Semaphore](partial(asyncio.Semaphore, _MOST_OF_USER))

    def close(self) -> None:
        """Start no more transfers."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, user: str, work: Callable[..., T], *arguments: Any) -> T:
        """Run long work on files in threads of their own, which users share."""
        loop = asyncio.get_running_loop()
        async with self._turns[user]:
            return await loop.run_in_executor(self._threads, work, *arguments)

    async def copy(
        self, caller: Caller, request: CopyWeights, identifier: str | None
    ) -> CheckpointRow:
        """Copy a checkpoint to the caller. The same identifier gives the same copy."""
        user = caller.user
        source = await asyncio.to_thread(self._checkpoints.require, request.source_path, user)
        session_id = request.session_id or _session_id(user, identifier)
        run_id = f"{session_id}:train:{request.model_seq_id or 0}"
        run_folder_name(run_id)
        if request.session_id is not None:
            await self._shared.sessions.require(session_id, user)
        new = NewCheckpoint(
            CheckpointPath(run_id, source.kind, source.name),
            negative_number(f"{source.uri} {source.version}"),
            ttl_seconds=request.ttl_seconds,
            user_metadata={k: str(v) for k, v in source.user_metadata.items()},
        )
        run = _holder(caller, run_id, source.base_model, source.lora)

        def fill(draft: Path) -> None:
            self._checkpoints.link(source, draft)

        return await self._in_thread(
            user, self._write, new, run, fill, request.destination_project_id
        )

    def _write(
        self,
        new: NewCheckpoint,
        run: RunRow,
        fill: Callable[[Path], None],
        project_id: str | None = None,
    ) -> CheckpointRow:
        """Create a checkpoint, and the run that holds it unless it exists. Raises UserError."""
        session = SessionRow(id=run.session_id, user=run.user, project_id=project_id)
        self._shared.store.add_once(session, run.session_id)
        existing = self._shared.store.add_once(run, run.id)
        if existing.user != run.user:
            raise UserError(f"The run {run.id} belongs to another user. Use your own session.")
        run.key = existing.key
        self._checkpoints.check_quota(run, new.path)
        draft = self._checkpoints.begin(new)
        try:
            fill(draft)
            return self._checkpoints.publish(new, draft, run)
        except OSError as error:
            raise UserError(readable_os_error(error, "writing the checkpoint")) from error
        finally:
            self._checkpoints.discard(draft)

    def inbox(self) -> Path:
        """Create a folder for an upload; the caller deletes it."""
        folder = self._shared.settings.home / "uploads"
        folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=folder))

    def upload_check(self, caller: Caller) -> Callable[[int], None]:
        """Return a check that raises UserError beyond the caller's quota or the disk's reserve."""
        quota = self._shared.find_quota(caller.key)
        held = self._shared.store.storage_of_key(caller.key)

        def check(received: int) -> None:
            quota.refuse_checkpoint(caller.key, *held, received)
            self._keep_reserve()

        return check

    def _keep_reserve(self, size: int = 0) -> None:
        """Raise UserError unless ``size`` bytes fit beside the reserve of the disk.

        It is asked before each piece, so that writers who share the disk see each other's.
        """
        settings = self._shared.settings
        if free_bytes(settings.home) - size < settings.disk_reserve_bytes:
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise UserError(readable_os_error(full, "writing the checkpoint"))

    async def take_in(
        self, caller: Caller, archive: Path, name: str | None, base_model: str | None
    ) -> CheckpointRow:
        """Create a checkpoint from an uploaded archive. Raises UserError if it is not valid."""
        folder = archive.parent / "unpacked"
        folder.mkdir()
        limit = self._shared.settings.max_upload_bytes
        await self._in_thread(caller.user, unpack, archive, folder, limit, self._keep_reserve)
        adapter, origin = await self._in_thread(caller.user, _read, folder)
        base = base_model or (origin and origin.base_model) or adapter.base_model
        model = await self._shared.engines.locate(base)
        await self._in_thread(caller.user, _check, adapter, model, base)
        holder = _holder(caller, f"{uuid.uuid4()}:train:0", base, asdict(adapter.lora))
        name = name or (CheckpointPath.parse(origin.path).name if origin else "uploaded")
        kind = TRAINING if (folder / OPTIMIZER).exists() else SAMPLER
        path = CheckpointPath(holder.id, kind, check_name(name))
        new = NewCheckpoint(path, seq_id=0, user_metadata=origin.user_metadata if origin else {})
        return await self._in_thread(
            caller.user, self._write, new, holder, lambda draft: link_files(folder.iterdir(), draft)
        )

    async def interpolate(self, caller: Caller, request: Interpolate) -> str:
        """Start to interpolate checkpoints; return the request id. A repeated request runs once."""
        user = caller.user
        sources = [
            await asyncio.to_thread(self._checkpoints.require, path, user)
            for path in request.source_paths
        ]
        bases = sorted({source.base_model for source in sources})
        if len(bases) > 1:
            raise UserError(f"source_paths have different base models: {', '.join(bases)}.")
        versions = [source.version for source in sources]
        number = negative_number(json.dumps([user, versions, request.model_dump()]))
        request_id = f"{INTERPOLATION}{-number:x}"
        path = await self._output(user, request, sources[0], number)
        if self._shared.futures.find(request_id, user) is None:
            arguments = caller, request, sources, path, number
            work = self._in_thread(user, self._interpolate, *arguments)
            self._shared.futures.compute(request_id, user, "interpolation", work)
        return request_id

    async def _output(
        self, user: str, request: Interpolate, first: CheckpointRow, number: int
    ) -> CheckpointPath:
        """Return the path of the result: in the run of the first source if that is the caller's."""
        run_id = first.run_id if first.user == user else f"{_session_id(user, str(number))}:train:0"
        wanted = request.output_path
        if wanted is None:
            return CheckpointPath(run_id, SAMPLER, f"interpolated-{-number:x}")
        if "://" not in wanted:
            return CheckpointPath(run_id, SAMPLER, check_name(wanted))
        path = CheckpointPath.parse(wanted)
        if path.kind != SAMPLER:
            raise UserError(f"output_path must be a tinker://…/{SAMPLER}/… path, not {path.uri}.")
        if await asyncio.to_thread(self._shared.store.get, RunRow, path.run_id, user) is None:
            raise NotFound(f"There is no run {path.run_id} of output_path for this API key.")
        return path

    def _interpolate(
        self,
        caller: Caller,
        request: Interpolate,
        sources: list[CheckpointRow],
        path: CheckpointPath,
        number: int,
    ) -> Response:
        run = _holder(caller, path.run_id, sources[0].base_model, sources[0].lora)

        def fill(draft: Path) -> None:
            adapters = []
            self._keep_reserve(sum(row.size_bytes for row in sources))
            for index, row in enumerate(sources):
                folder = inbox / str(index)
                folder.mkdir()
                self._checkpoints.link(row, folder, "adapter_")
                adapters.append(AdapterFiles.read(folder))
            run.lora = asdict(mix(adapters, request.coefficients, draft, run.base_model))

        inbox = self.inbox()
        try:
            self._write(NewCheckpoint(path, number), run, fill)
        finally:
            shutil.rmtree(inbox, ignore_errors=True)
        return Response.json(
            {
                "path": path.uri,
                "checkpoint_type": "sampler",
                "source_paths": request.source_paths,
                "coefficients": request.coefficients,
                "has_rank_shards": False,
                "type": "mint_interpolate_checkpoints",
            }
        )


def _holder(caller: Caller, run_id: str, base_model: str, lora: dict[str, Any]) -> RunRow:
    """Return the row of a run that only holds checkpoints."""
    return RunRow(
        id=run_id,
        session_id=run_id.partition(":")[0],
        user=caller.user,
        key=caller.key,
        base_model=base_model,
        lora=lora,
    )


def _session_id(user: str, key: str | None) -> str:
    """Return the id of a new session; the same for the same key, so that a retry finds it."""
    if key is None:
        return str(uuid.uuid4())
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{user}\0{key}"))


def _read(folder: Path) -> tuple[AdapterFiles, Description | None]:
    """Read an upload's headers and its description, which is deleted. Raises UserError."""
    adapter = AdapterFiles.read(folder)
    has_optimizer = (folder / OPTIMIZER).exists()
    origin = _description(folder / DESCRIPTION)
    kind = CheckpointPath.parse(origin.path).kind if origin is not None else None
    if kind is not None and (kind == TRAINING) != has_optimizer:
        raise UserError(
            f"{DESCRIPTION} says {kind}, and the archive has "
            f"{'an' if has_optimizer else 'no'} {OPTIMIZER}. Pack the whole checkpoint again."
        )
    return adapter, origin


def _check(adapter: AdapterFiles, model: Path, base_model: str) -> None:
    """Check an upload's sizes, then its values. Raises UserError."""
    adapter.require_fit(model, base_model)
    adapter.require_finite()
    if (adapter.folder / OPTIMIZER).exists():
        adapter.check_optimizer()


def _description(file: Path) -> Description | None:
    if not file.exists():
        return None
    if file.stat().st_size > _MAX_DESCRIPTION_BYTES:
        raise UserError(f"{file.name} has more than {_MAX_DESCRIPTION_BYTES} bytes.")
    try:
        return Description.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise UserError(f"{file.name}: {describe(error.errors())}") from error
    finally:
        file.unlink()
