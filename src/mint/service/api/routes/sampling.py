"""Samplers and samples."""

from typing import Any

from fastapi import APIRouter

from mint.service.api.routes.caller import JsonRoute, OneField, ReadCaller, SampleCaller, TheService
from mint.service.wire import requests

router = APIRouter(route_class=JsonRoute)


@router.post("/create_sampling_session")
async def create_sampling_session(
    service: TheService, caller: SampleCaller, body: requests.CreateSamplingSession
) -> dict[str, str]:
    sampler_id = await service.samplers.create(caller, body)
    return {"sampling_session_id": sampler_id, "type": "create_sampling_session"}


@router.post("/asample")
async def asample(
    service: TheService, caller: SampleCaller, body: requests.SampleBody
) -> dict[str, Any]:
    request_id, sequence_ids = await service.samplers.submit(caller.user, body)
    return {"request_id": request_id, "sample_sequence_ids": sequence_ids}


@router.post("/join_sampling_session")
async def join_sampling_session(
    service: TheService, caller: SampleCaller, sampling_session_id: OneField
) -> dict[str, Any]:
    """Return a number for a copy of a sampling client."""
    counter = await service.samplers.join(sampling_session_id, caller.user)
    return {"client_counter": counter, "type": "join_sampling_session"}


@router.get("/samplers/{sampler_id}")
async def get_sampler(service: TheService, caller: ReadCaller, sampler_id: str) -> dict[str, Any]:
    """Return what a sampler was created from; ``weights_digest`` is known once it is loaded."""
    row = (await service.samplers.find(sampler_id, caller.user)).row
    return {
        "sampler_id": row.id,
        "base_model": row.base_model,
        "model_path": row.model_path,
        "weights_digest": row.digest,
    }
