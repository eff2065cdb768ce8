"""Checkpoints: show, list, publish, set a TTL, copy, delete, prune."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from mint.service.access.ownership import find_readable_run, readable_checkpoints
from mint.service.api.routes.caller import JsonRoute, OneField, ReadCaller, TheService, TrainCaller
from mint.service.checkpoints.retention import Rule
from mint.service.checkpoints.storage import EXTERNAL, SAMPLER, TRAINING, CheckpointPath, unexpired
from mint.service.errors import ApiError, UserError, not_found
from mint.service.service import Service
from mint.service.store.database import CheckpointRow, Condition
from mint.service.wire import requests

router = APIRouter(route_class=JsonRoute)
_TYPE_OF_KIND = {TRAINING: "training", SAMPLER: "sampler", EXTERNAL: "external"}
EVERYTHING = 10_000
Limit = Annotated[int, Query(ge=0, le=EVERYTHING)]
Offset = Annotated[int, Query(ge=0, le=2**53)]
ONE = "/training_runs/{run_id}/checkpoints/{checkpoint_id:path}"


def describe_checkpoint(row: CheckpointRow) -> dict[str, Any]:
    """Return a checkpoint as clients see it."""
    return {
        "checkpoint_id": f"{row.kind}/{row.name}",
        "checkpoint_type": _TYPE_OF_KIND[row.kind],
        "time": row.created_at.isoformat(),
        "tinker_path": row.uri,
        "size_bytes": row.size_bytes,
        "public": row.public,
        "user_metadata": row.user_metadata or None,
        "expires_at": row.expires_at.isoformat() if row.expires_at else None,
    }


async def _path(run_id: str, checkpoint_id: str) -> CheckpointPath:
    """Return the path of the checkpoint in a URL. Raises ApiError 400 if it is not valid."""
    try:
        return CheckpointPath.parse(f"tinker://{run_id}/{checkpoint_id}")
    except UserError as error:
        raise ApiError(400, str(error)) from error


Path = Annotated[CheckpointPath, Depends(_path)]


def _readable(service: TheService, caller: ReadCaller, path: Path) -> CheckpointRow:
    return _find(service, path, caller.user)


def _owned(service: TheService, caller: TrainCaller, path: Path) -> CheckpointRow:
    return _find(service, path, caller.user, to_change=True)


def _find(
    service: Service, path: CheckpointPath, user: str, to_change: bool = False
) -> CheckpointRow:
    row = service.checkpoints.find(path, user)
    if row is None or (to_change and row.user != user):
        raise not_found("checkpoint", path.uri, "`mint checkpoints list` shows yours.")
    return row


Readable = Annotated[CheckpointRow, Depends(_readable)]
Owned = Annotated[CheckpointRow, Depends(_owned)]


@router.post("/weights_info")
def weights_info(service: TheService, caller: ReadCaller, tinker_path: OneField) -> dict[str, Any]:
    row = _find(service, CheckpointPath.parse(tinker_path), caller.user)
    return {
        "base_model": row.base_model,
        "is_lora": True,
        "lora_rank": row.lora["rank"],
        **{name: row.lora[name] for name in ("train_unembed", "train_mlp", "train_attn")},
        "optimizer_config": {"type": "adamw"},
    }


@router.get("/checkpoints")
def list_checkpoints(
    service: TheService, caller: ReadCaller, limit: Limit = 100, offset: Offset = 0
) -> dict[str, Any]:
    return _page(service, caller.user, limit, offset)


@router.get("/training_runs/{run_id}/checkpoints")
def list_run_checkpoints(
    service: TheService,
    caller: ReadCaller,
    run_id: str,
    limit: Limit = EVERYTHING,
    offset: Offset = 0,
) -> dict[str, Any]:
    """List the checkpoints of a run; of another user's run, only the public ones."""
    run = find_readable_run(service.store, run_id, caller.user)
    if run is None:
        raise not_found("training run", run_id, "`mint runs list` shows yours.")
    return _page(service, run.user, limit, offset, *readable_checkpoints(run, caller.user))


def _page(
    service: TheService, owner: str, limit: int, offset: int, *conditions: Condition
) -> dict[str, Any]:
    rows, total = service.store.page(CheckpointRow, owner, limit, offset, unexpired(), *conditions)
    return {
        "checkpoints": [describe_checkpoint(row) for row in rows],
        "cursor": {"offset": offset, "limit": limit, "total_count": total},
    }


# Routes with a suffix come first, as a checkpoint's id contains a slash.
@router.post(f"{ONE}/publish")
def publish(service: TheService, row: Owned) -> dict[str, Any]:
    """Let every user of this service read a checkpoint."""
    service.store.change_checkpoint(row, public=True)
    return {"tinker_path": row.uri, "public": True}


@router.delete(f"{ONE}/publish")
def unpublish(service: TheService, row: Owned) -> dict[str, Any]:
    service.store.change_checkpoint(row, public=False)
    return {"tinker_path": row.uri, "public": False}


@router.put(f"{ONE}/ttl")
def set_ttl(service: TheService, row: Owned, body: requests.SetTtl) -> dict[str, Any]:
    """Let a checkpoint expire after some seconds; null keeps it."""
    service.checkpoints.set_ttl(row, body.ttl_seconds)
    return {"tinker_path": row.uri, "ttl_seconds": body.ttl_seconds}


@router.delete(ONE)
def delete_checkpoint(service: TheService, row: Owned) -> dict[str, str]:
    service.checkpoints.delete(row)
    return {"deleted": row.uri}


@router.post("/mint/checkpoints/prune")
def prune(service: TheService, caller: TrainCaller, body: requests.Prune) -> dict[str, Any]:
    """Delete the caller's checkpoints that a rule selects, or only list them with ``dry_run``."""
    conditions = [CheckpointRow.user == caller.user]
    if body.run_id is not None:
        conditions.append(CheckpointRow.run_id == service.runs.row(body.run_id, caller.user).id)
    rule = Rule(body.older_than_s, body.keep_last, tuple(body.keep))
    rows = service.old_checkpoints(rule, *conditions)
    for row in rows if not body.dry_run else ():
        service.checkpoints.delete(row)
    return {"checkpoints": [describe_checkpoint(row) for row in rows], "dry_run": body.dry_run}


@router.post("/copy_weights")
async def copy_weights(
    service: TheService, caller: TrainCaller, body: requests.CopyWeights, request: Request
) -> dict[str, str]:
    if request.headers.get("x-tinker-weights-access-token") is not None:
        raise ApiError(
            400,
            "weights_access_token is not supported. Use the owner's API key, or ask the owner to "
            "publish the checkpoint.",
        )
    row = await service.transfers.copy(caller, body, request.headers.get("x-idempotency-key"))
    return {"tinker_path": row.uri}
