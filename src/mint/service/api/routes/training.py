"""Training: create runs, and submit their operations."""

import asyncio
import json
from typing import Any

from fastapi import APIRouter, Request

from mint.service.api.routes.caller import (
    JsonRoute,
    OneField,
    ReadCaller,
    TheService,
    TrainCaller,
    is_same_machine,
)
from mint.service.errors import ApiError
from mint.service.futures import Response
from mint.service.wire import codec, requests
from mint.service.wire.bodies import BadBody

router = APIRouter(route_class=JsonRoute)
OPERATIONS = (
    "forward_backward",
    "forward",
    "optim_step",
    "save_weights",
    "save_weights_for_sampler",
    "save_weights_external",
    "load_weights",
    "mint/forward_backward_reverse_kl",
)


@router.post("/create_model")
async def create_model(
    service: TheService, caller: TrainCaller, body: requests.CreateModel
) -> dict[str, str]:
    return {"request_id": await service.runs.create(caller, body)}


@router.post("/get_info")
async def get_info(
    service: TheService, caller: ReadCaller, model_id: OneField, request: Request
) -> dict[str, Any]:
    row = await asyncio.to_thread(service.runs.row, model_id, caller.user)
    folder = await service.engines.locate(row.base_model)
    engine = service.engines.running(row.base_model)
    config = json.loads((folder / "config.json").read_text())
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
            "tokenizer_id": str(folder) if is_same_machine(request) else row.base_model,
        },
    }


@router.post("/unload_model")
async def unload_model(
    service: TheService, caller: TrainCaller, model_id: OneField
) -> dict[str, str]:
    row = await asyncio.to_thread(service.runs.row, model_id, caller.user)
    await service.runs.unload(row)
    request_id = f"{row.id}:unload"
    service.futures.open(request_id, caller.user)
    answer = Response.json({"model_id": row.id, "type": "unload_model"})
    service.futures.finish(request_id, answer)
    return {"request_id": request_id, "model_id": row.id}


async def submit(service: TheService, caller: TrainCaller, request: Request) -> dict[str, str]:
    """Accept one operation of a run.

    Only the run and the number are read here. All other errors are returned through the future,
    because the client has used up the number either way.
    """
    content_type = request.headers.get("content-type", codec.JSON).partition(";")[0].strip()
    encoding, is_protobuf = request.headers.get("content-encoding"), content_type == codec.PROTOBUF
    body, error = b"".join([piece async for piece in request.stream()]), None
    with service.decoder.holding() as grow:
        try:
            body = await service.decoder.open(body, encoding, is_protobuf, grow)
        except BadBody as bad:
            body, error = bad.readable, str(bad)
        kind = request.url.path.rsplit("/", 1)[-1]
        address = await service.decoder.address(body, is_protobuf)
        is_creating = address is not None and address.run_id is None and kind == "load_weights"
        if is_creating and error is None:
            request_id = await service.runs.create_by_load(
                caller, requests.parse(requests.CreateByLoad, body)
            )
            return {"request_id": request_id, "model_id": request_id.rpartition(":")[0]}
        if address is None or address.run_id is None:
            wanted = "The request needs model_id (a string) and seq_id (a number)."
            raise ApiError(400, error or wanted)
        if address.seq_id is not None and not 1 <= address.seq_id < 2**53:
            raise ApiError(
                400, f"seq_id is {address.seq_id}; the operations of a run are numbered from 1."
            )
        if kind == "forward_backward" and address.forward_only:
            kind = "forward"
        run = await service.runs.find(address.run_id, caller.user)
        key = request.headers.get("x-idempotency-key")
        body = b"" if error else body
        request_id = await run.submit(address.seq_id, kind, content_type, body, error, key)
        return {"request_id": request_id, "model_id": run.row.id}


for _kind in OPERATIONS:
    _name = _kind.rpartition("/")[2]
    router.add_api_route(f"/{_kind}", submit, methods=["POST"], name=_name, operation_id=_name)


@router.post("/create_custom_loss")
async def create_custom_loss(_: TrainCaller) -> dict[str, str]:
    raise ApiError(
        400,
        "This service does not run custom losses. forward_backward_custom() computes them in the "
        "client, without this route.",
    )
