"""The dashboard at ``/watch``."""

import asyncio
import os
from pathlib import Path
from typing import Any

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from mint.service.access.auth import LOCAL_USER
from mint.service.api.gauges import Gauges
from mint.service.api.routes.caller import is_same_machine
from mint.service.checkpoints.storage import SAMPLER, unexpired
from mint.service.errors import ApiError
from mint.service.service import Service
from mint.service.store.database import CheckpointRow, RunRow

_MOST_ROWS = 200


class Dashboard:
    """The dashboard's application, created by the first request: its imports take half a second."""

    def __init__(self, service: Service, gauges: Gauges) -> None:
        self._service = service
        self._gauges = gauges
        self._app: ASGIApp | None = None
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._lock:
            if self._app is None:
                self._app = await asyncio.to_thread(self._create)
        await self._app(scope, receive, send)

    def _create(self) -> ASGIApp:
        from mint.watch.dashboard.run_index import RunIndex
        from mint.watch.dashboard.server import Watch, create_app

        folders = [Path(self._service.settings.runs).expanduser().absolute()]
        index = RunIndex(folders, more=self._trained_here)
        watch = Watch(index, service=self._status, may_read=self._may_read_runs)
        return create_app(watch, hosts=() if self._service.settings.is_loopback else None)

    def _trained_here(self) -> list[Path]:
        """Return the run directories that the local user's newest training runs name."""
        rows, _ = self._service.store.page(RunRow, LOCAL_USER, _MOST_ROWS, 0)
        named = (row.user_metadata.get("run_dir") for row in rows)
        return [Path(each) for each in named if isinstance(each, str) and os.path.isabs(each)]

    async def _may_read_runs(self, request: Request) -> bool:
        """Return whether to show run directories: only to the local user, on this machine."""
        try:
            user = await self._user(request)
        except ApiError:
            if self._service.settings.api_key is not None:
                raise  # the page then asks for the key
            return False
        is_local = self._service.settings.is_loopback and is_same_machine(request)
        return is_local and user == LOCAL_USER

    async def _user(self, request: Request) -> str:
        return (await self._service.auth.caller(request.headers.get("x-api-key"))).user

    async def _status(self, request: Request) -> dict[str, Any]:
        """Return the state of the service, as far as the caller may see it."""
        user = await self._user(request)
        service, page = self._service, self._service.store.page
        runs, _ = await asyncio.to_thread(page, RunRow, user, _MOST_ROWS, 0)
        checkpoints, _ = await asyncio.to_thread(
            page, CheckpointRow, user, _MOST_ROWS, 0, unexpired()
        )
        memory = await self._gauges.memory()
        return {
            "ready": service.is_ready,
            "queues": {"operations": service.runs.waiting, "samples": service.samplers.in_progress},
            "models": [
                {"name": e.name, "calls": e.depth, "memory": memory.get(e, {}), "plan": e.plan}
                for e in service.engines.loaded()
            ],
            "runs": [_run(row) for row in runs],
            "checkpoints": [_checkpoint(row) for row in checkpoints],
        }


def _run(row: RunRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "task": str(row.user_metadata.get("task") or "")[:100],
        "base_model": row.base_model,
        "rank": row.lora["rank"],
        "last_request": row.last_request_at.timestamp(),
    }


def _checkpoint(row: CheckpointRow) -> dict[str, Any]:
    return {
        "path": row.uri,
        "kind": "sampling" if row.kind == SAMPLER else "training",
        "base_model": row.base_model,
        "bytes": row.size_bytes,
        "created": row.created_at.timestamp(),
    }
