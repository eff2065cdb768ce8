"""Reading about runs and sessions."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter

from ..errors import ApiError, not_found
from ..store import CheckpointRow, RunRow, SamplerRow, SessionRow
from .caller import TheService, User
from .weights import describe_checkpoint

router = APIRouter()
_EVERYTHING = 10_000


@router.get("/training_runs")
async def list_runs(
    service: TheService, user: User, limit: int = 20, offset: int = 0
) -> dict[str, Any]:
    _check_page(limit, offset)
    rows, total = await asyncio.to_thread(service.store.page, RunRow, user, limit, offset)
    return {
        "training_runs": [await _describe_run(service, row) for row in rows],
        "cursor": {"offset": offset, "limit": limit, "total_count": total},
    }


@router.get("/training_runs/{run_id}")
async def get_run(service: TheService, user: User, run_id: str) -> dict[str, Any]:
    return await _describe_run(service, await service.runs.row(run_id, user))


async def _describe_run(service: TheService, row: RunRow) -> dict[str, Any]:
    return {
        "training_run_id": row.id,
        "base_model": row.base_model,
        "model_owner": row.user,
        "is_lora": True,
        "corrupted": False,
        "lora_rank": row.lora["rank"],
        "last_request_time": row.last_request_at.isoformat(),
        "last_checkpoint": await _newest(service, row, "weights"),
        "last_sampler_checkpoint": await _newest(service, row, "sampler_weights"),
        "user_metadata": row.user_metadata or None,
    }


async def _newest(service: TheService, run: RunRow, kind: str) -> dict[str, Any] | None:
    rows, _ = await asyncio.to_thread(
        lambda: service.store.page(CheckpointRow, run.user, 1, 0, run_id=run.id, kind=kind)
    )
    return describe_checkpoint(rows[0]) if rows else None


@router.get("/sessions")
async def list_sessions(
    service: TheService, user: User, limit: int = 20, offset: int = 0
) -> dict[str, Any]:
    _check_page(limit, offset)
    rows, _ = await asyncio.to_thread(service.store.page, SessionRow, user, limit, offset)
    return {"sessions": [row.id for row in rows]}


@router.get("/sessions/{session_id}")
async def get_session(service: TheService, user: User, session_id: str) -> dict[str, Any]:
    row = await asyncio.to_thread(service.store.get, SessionRow, session_id, user)
    if row is None:
        raise not_found("session", session_id, "List yours with the REST client.")
    ids: dict[str, list[str]] = {}
    for table in (RunRow, SamplerRow):
        rows, _ = await asyncio.to_thread(
            lambda table=table: service.store.page(  # type: ignore[misc]
                table, user, _EVERYTHING, 0, session_id=session_id
            )
        )
        ids[table.__tablename__] = [found.id for found in rows]
    return {
        "training_run_ids": ids["runs"],
        "sampler_ids": ids["samplers"],
        "user_metadata": row.user_metadata or None,
        "display_name": row.display_name,
    }


def _check_page(limit: int, offset: int) -> None:
    if not (0 <= limit <= _EVERYTHING and offset >= 0):
        raise ApiError(422, f"limit must be from 0 to {_EVERYTHING}, and offset 0 or more.")
