"""Training: create a run, and put operations into its stream."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request

from .. import codec, requests
from ..errors import ApiError
from ..futures import Answer
from .caller import TheService, User

router = APIRouter()
OPERATIONS = (
    "forward_backward",
    "forward",
    "optim_step",
    "save_weights",
    "save_weights_for_sampler",
    "load_weights",
)


@router.post("/create_model")
async def create_model(
    service: TheService, user: User, body: requests.CreateModel
) -> dict[str, str]:
    return {"request_id": await service.runs.create(user, body)}


@router.post("/get_info")
async def get_info(
    service: TheService, user: User, body: requests.ModelAddress, request: Request
) -> dict[str, Any]:
    row = await service.runs.row(body.model_id, user)
    folder = await service.engines.locate(row.base_model)
    engine = service.engines.running(row.base_model)
    config = json.loads((folder / "config.json").read_text())
    is_same_machine = request.client is not None and request.client.host in ("127.0.0.1", "::1")
    return {
        "type": "get_info",
        "model_id": row.id,
        "model_name": row.base_model,
        "is_lora": True,
        "lora_rank": row.lora["rank"],
        "optimizer_config": {"type": "adamw"},
        "model_data": {
            "arch": engine.info.arch if engine else config.get("model_type", "unknown"),
            "model_name": row.base_model,
            "tokenizer_id": str(folder) if is_same_machine else row.base_model,
        },
    }


@router.post("/unload_model")
async def unload_model(
    service: TheService, user: User, body: requests.ModelAddress
) -> dict[str, str]:
    run = await service.runs.find(body.model_id, user)
    await service.runs.release(run.row.id)
    request_id = f"{run.row.id}:unload"
    future = service.futures.open(request_id, user)
    answer = Answer.json({"model_id": run.row.id, "type": "unload_model"})
    service.futures.finish(future.request_id, answer)
    return {"request_id": request_id, "model_id": run.row.id}


async def submit(service: TheService, user: User, request: Request) -> dict[str, str]:
    """Accept one operation of a run.

    Only its address is read here. Everything else that may be wrong with it comes back through
    its future, because the client has used up its number either way.
    """
    kind = request.url.path.rsplit("/", 1)[-1]
    content_type = request.headers.get("content-type", codec.JSON).partition(";")[0].strip()
    body, error = await request.body(), None
    try:
        body = codec.open_body(
            body, request.headers.get("content-encoding"), service.settings.max_body_bytes
        )
    except codec.BadBody as bad:
        body, error = bad.readable, str(bad)
    address = codec.read_address(body, is_protobuf=content_type == codec.PROTOBUF)
    if address is None:
        raise ApiError(
            400,
            error or "The request cannot be read: it needs a model_id text and a seq_id number.",
        )
    if address.seq_id is not None and not 1 <= address.seq_id < 2**53:
        raise ApiError(400, f"seq_id is {address.seq_id}; the operations of a run count from 1.")
    if kind == "forward_backward" and address.forward_only:
        kind = "forward"
    run = await service.runs.find(address.run_id, user)
    request_id = await run.submit(address.seq_id, kind, content_type, b"" if error else body, error)
    return {"request_id": request_id, "model_id": run.row.id}


for _kind in OPERATIONS:
    router.add_api_route(f"/{_kind}", submit, methods=["POST"], name=_kind, operation_id=_kind)
