"""Start-up, sessions, heartbeats, telemetry."""

import asyncio
import re
from functools import partial
from typing import Any

from fastapi import APIRouter, Request

from mint.service.api.routes.caller import (
    JsonRoute,
    Key,
    OneField,
    ReadCaller,
    TheService,
    is_same_machine,
)
from mint.service.errors import ApiError
from mint.service.wire import requests

router = APIRouter(route_class=JsonRoute)


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}


@router.post("/client/config")
async def client_config(request: Request, _: ReadCaller, key: Key) -> dict[str, Any]:
    """Return feature flags. MinT's ``sk-`` keys work only with a token, so it is on for them.

    Bodies from other machines are compressed. ``sample_use_retrieve_futures`` is off: after a
    restart, a client that waits for a list of finished samples would wait for lost ones forever,
    while a client that polls each sample gets an error and resends it.
    ``create_model_via_load_weights`` is off: every client can send the requests that it replaces.
    """
    return {
        "pjwt_auth_enabled": (key or "").startswith("sk-"),
        "parallel_fwdbwd_chunks": True,
        "proto_compress_fwdbwd": not is_same_machine(request),
        "use_pyqwest_transport": not _always_follows_redirects(request),
        "sample_join_sampling_session": True,
    }


def _always_follows_redirects(request: Request) -> bool:
    """Return whether the client's default transport follows the redirect to an archive.

    Clients before 0.23.4 do, although they need its address; their other transport does not.
    """
    version = request.headers.get("x-stainless-package-version", "")
    numbers = re.match(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", version)
    return numbers is not None and tuple(map(int, numbers.groups())) < (0, 23, 4)


@router.post("/client/dynamic_config")
async def dynamic_config(_: ReadCaller) -> dict[str, Any]:
    return {"refresh_interval_sec": 300, "sample_cancel_enabled": True}


@router.post("/auth/token")
async def token(service: TheService, _: ReadCaller, key: Key) -> dict[str, str]:
    return {"jwt": await service.auth.token_for(key)}


@router.get("/auth/apikey/me")
async def get_key(service: TheService, caller: ReadCaller, key: Key) -> dict[str, Any]:
    """Return the name of the presented key."""
    found = service.auth.find_key(key)
    number, name = (0, caller.user) if found is None else (int(found.hash[:12], 16), found.name)
    return {
        "key_id": number,
        "name": name,
        "note": "",
        "details": {"org_details": {"name": "mint"}, "user_details": {"email": caller.user}},
    }


@router.delete("/auth/apikey/me")
async def delete_key(service: TheService, _: ReadCaller, key: Key) -> dict[str, str]:
    """Revoke the presented key."""
    found = service.auth.find_key(key)
    if found is None:
        raise ApiError(400, "This key is not one of `mint keys list`, so it cannot be revoked.")
    await asyncio.to_thread(service.store.revoke_key, found.name)
    return {"revoked": found.name}


@router.post("/create_session")
async def create_session(
    service: TheService, caller: ReadCaller, body: requests.CreateSession
) -> dict[str, str]:
    quota, check = service.find_quota(caller.key), None
    if quota.sessions is not None:
        check = partial(quota.refuse_session, caller.key, service.settings.run_kept_s)
    session_id = await service.sessions.create(caller.user, caller.key, body, check)
    return {"session_id": session_id, "type": "create_session"}


@router.post("/session_heartbeat")
async def heartbeat(
    service: TheService, caller: ReadCaller, session_id: OneField
) -> dict[str, str]:
    await service.sessions.require(session_id, caller.user)
    return {"type": "session_heartbeat"}


@router.post("/sessions/{session_id}/finish")
async def finish(
    service: TheService, caller: ReadCaller, session_id: str, body: requests.FinishSession
) -> dict[str, str]:
    await service.sessions.finish(session_id, caller.user, body.reason.type, body.detail)
    return {"session_id": session_id}


@router.post("/telemetry")
async def telemetry(_: ReadCaller) -> dict[str, str]:
    """Accept telemetry and drop it: its bodies may contain keys."""
    return {"status": "accepted"}


@router.get("/get_server_capabilities")
async def capabilities(service: TheService, _: ReadCaller) -> dict[str, Any]:
    models = []
    for name in service.engines.names():
        model: dict[str, Any] = {"model_name": name, "trainable": True, "sampleable": True}
        if (engine := service.engines.running(name)) is not None:
            model["max_context_length"] = engine.info.context_length
        models.append(model)
    return {"supported_models": models}
