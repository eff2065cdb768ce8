"""Checkpoints: what one holds, list, delete."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter

from .. import requests
from ..checkpoints import SAMPLER, TRAINING, CheckpointPath
from ..errors import ApiError, UserError, not_found
from ..store import CheckpointRow
from .caller import TheService, User

router = APIRouter()
_TYPE_OF_KIND = {TRAINING: "training", SAMPLER: "sampler"}


def describe_checkpoint(row: CheckpointRow) -> dict[str, Any]:
    """A checkpoint as clients see it."""
    path = CheckpointPath(row.run_id, row.kind, row.name)
    return {
        "checkpoint_id": path.checkpoint_id,
        "checkpoint_type": _TYPE_OF_KIND[row.kind],
        "time": row.created_at.isoformat(),
        "tinker_path": path.uri,
        "size_bytes": row.size_bytes,
        "public": row.public,
        "user_metadata": row.user_metadata or None,
        "expires_at": row.expires_at.isoformat() if row.expires_at else None,
    }


@router.post("/weights_info")
async def weights_info(
    service: TheService, user: User, body: requests.WeightsInfo
) -> dict[str, Any]:
    path = CheckpointPath.parse(body.tinker_path)
    row = await asyncio.to_thread(service.checkpoints.find, path, user)
    if row is None:
        raise not_found("checkpoint", path.uri, "List yours with the REST client.")
    return {
        "base_model": row.base_model,
        "is_lora": True,
        "lora_rank": row.lora["rank"],
        "train_unembed": row.lora["train_unembed"],
        "train_mlp": row.lora["train_mlp"],
        "train_attn": row.lora["train_attn"],
        "optimizer_config": {"type": "adamw"},
    }


@router.get("/checkpoints")
async def list_checkpoints(
    service: TheService, user: User, limit: int = 100, offset: int = 0
) -> dict[str, Any]:
    return await _page(service, user, limit, offset)


@router.get("/training_runs/{run_id}/checkpoints")
async def list_run_checkpoints(service: TheService, user: User, run_id: str) -> dict[str, Any]:
    await service.runs.row(run_id, user)
    return await _page(service, user, 10_000, 0, run_id=run_id)


async def _page(
    service: TheService, user: str, limit: int, offset: int, **equal: str
) -> dict[str, Any]:
    if not (0 <= limit <= 10_000 and offset >= 0):
        raise ApiError(422, "limit must be from 0 to 10000, and offset 0 or more.")
    rows, total = await asyncio.to_thread(
        lambda: service.store.page(CheckpointRow, user, limit, offset, **equal)
    )
    return {
        "checkpoints": [describe_checkpoint(row) for row in rows],
        "cursor": {"offset": offset, "limit": limit, "total_count": total},
    }


@router.delete("/training_runs/{run_id}/checkpoints/{checkpoint_id:path}")
async def delete_checkpoint(
    service: TheService, user: User, run_id: str, checkpoint_id: str
) -> dict[str, str]:
    try:
        path = CheckpointPath.parse(f"tinker://{run_id}/{checkpoint_id}")
    except UserError as error:
        raise ApiError(400, str(error)) from error
    row = await asyncio.to_thread(service.checkpoints.find, path, user)
    if row is None or row.user != user:
        raise not_found("checkpoint", path.uri, "List yours with the REST client.")
    await asyncio.to_thread(service.checkpoints.delete, row)
    return {"deleted": path.uri}
