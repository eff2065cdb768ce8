"""Training runs and sessions: list, show, search, assign to a project."""

from typing import Any, Literal

from fastapi import APIRouter
from sqlalchemy import func, select

from mint.service.access.ownership import find_readable_run, readable_checkpoints
from mint.service.api.routes.caller import JsonRoute, ReadCaller, TheService, TrainCaller
from mint.service.api.routes.weights import EVERYTHING, Limit, Offset, describe_checkpoint
from mint.service.checkpoints.storage import SAMPLER, TRAINING, unexpired
from mint.service.errors import not_found
from mint.service.store.database import CheckpointRow, Condition, RunRow, SamplerRow, SessionRow
from mint.service.store.search import NO_PROJECT, SessionSearch, search
from mint.service.wire import requests

router = APIRouter(route_class=JsonRoute)
RunScope = Literal["owned", "accessible"]


@router.get("/training_runs")
def list_runs(
    service: TheService,
    caller: ReadCaller,
    limit: Limit = 20,
    offset: Offset = 0,
    access_scope: RunScope = "owned",
    project_id: str | None = None,
) -> dict[str, Any]:
    """List the caller's runs. Others' runs with public checkpoints are found by their ids."""
    conditions: list[Condition] = []
    if project_id is not None:
        is_in = func.coalesce(SessionRow.project_id, NO_PROJECT) == project_id
        conditions.append(RunRow.session_id.in_(select(SessionRow.id).where(is_in)))
    rows, total = service.store.page(RunRow, caller.user, limit, offset, *conditions)
    return {
        "training_runs": [_describe_run(service, row, caller.user) for row in rows],
        "cursor": {"offset": offset, "limit": limit, "total_count": total},
    }


@router.get("/training_runs/{run_id}")
def get_run(
    service: TheService, caller: ReadCaller, run_id: str, access_scope: RunScope = "owned"
) -> dict[str, Any]:
    if access_scope == "accessible":
        row = find_readable_run(service.store, run_id, caller.user)
        if row is None:
            raise not_found("training run", run_id, "Its owner can publish one of its checkpoints.")
    else:
        row = service.runs.row(run_id, caller.user)
    return _describe_run(service, row, caller.user)


def _describe_run(service: TheService, row: RunRow, reader: str) -> dict[str, Any]:
    return {
        "training_run_id": row.id,
        "base_model": row.base_model,
        "model_owner": row.user,
        "is_lora": True,
        "corrupted": False,
        "lora_rank": row.lora["rank"],
        "last_request_time": row.last_request_at.isoformat(),
        "last_checkpoint": _newest(service, row, TRAINING, reader),
        "last_sampler_checkpoint": _newest(service, row, SAMPLER, reader),
        "user_metadata": row.user_metadata or None,
        "mint_status": service.runs.status(row.id) if row.user == reader else None,
    }


def _newest(service: TheService, run: RunRow, kind: str, reader: str) -> dict[str, Any] | None:
    newest = [*readable_checkpoints(run, reader), CheckpointRow.kind == kind, unexpired()]
    rows, _ = service.store.page(CheckpointRow, run.user, 1, 0, *newest)
    return describe_checkpoint(rows[0]) if rows else None


@router.get("/sessions")
def list_sessions(
    service: TheService,
    caller: ReadCaller,
    limit: Limit = 20,
    offset: Offset = 0,
    access_scope: RunScope = "owned",
) -> dict[str, Any]:
    rows, _ = service.store.page(SessionRow, caller.user, limit, offset)
    return {"sessions": [row.id for row in rows]}


@router.post("/sessions/search")
def search_sessions(service: TheService, caller: ReadCaller, body: SessionSearch) -> dict[str, Any]:
    return search(service.store, caller.user, body, service.settings.session_idle_s)


@router.get("/sessions/{session_id}")
def get_session(
    service: TheService, caller: ReadCaller, session_id: str, access_scope: RunScope = "owned"
) -> dict[str, Any]:
    row = _session(service, caller.user, session_id)
    runs, _ = service.store.page(
        RunRow, caller.user, EVERYTHING, 0, RunRow.session_id == session_id
    )
    samplers, _ = service.store.page(
        SamplerRow, caller.user, EVERYTHING, 0, SamplerRow.session_id == session_id
    )
    return {
        "training_run_ids": [run.id for run in runs],
        "sampler_ids": [sampler.id for sampler in samplers],
        "user_metadata": row.user_metadata or None,
        "display_name": row.display_name,
    }


@router.put("/sessions/{session_id}/project")
def set_project(
    service: TheService, caller: TrainCaller, session_id: str, body: requests.SessionProject
) -> dict[str, str]:
    _session(service, caller.user, session_id)
    service.store.set_project(session_id, body.project_id)
    return {"session_id": session_id, "project_id": body.project_id}


@router.get("/sessions/{session_id}/trace_export")
def export_trace(service: TheService, caller: ReadCaller, session_id: str) -> dict[str, str]:
    _session(service, caller.user, session_id)
    return {
        "status": "failed",
        "error": "This service records no traces. /metrics shows how long operations take.",
    }


def _session(service: TheService, user: str, session_id: str) -> SessionRow:
    row = service.store.get(SessionRow, session_id, user)
    if row is None:
        raise not_found("session", session_id, "List yours with the REST client.")
    return row
