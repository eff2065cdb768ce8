"""Start-up, sessions, heartbeats, telemetry."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from .. import requests
from .caller import Key, TheService, User

router = APIRouter()


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}


@router.post("/client/config")
async def client_config(_: User, key: Key) -> dict[str, Any]:
    """Feature flags. MinT's ``sk-`` keys work only by way of a token, so it is on for them."""
    return {
        "pjwt_auth_enabled": (key or "").startswith("sk-"),
        "parallel_fwdbwd_chunks": True,
    }


@router.post("/client/dynamic_config")
async def dynamic_config(_: User) -> dict[str, Any]:
    return {"refresh_interval_sec": 300}


@router.post("/auth/token")
async def token(service: TheService, key: Key) -> dict[str, str]:
    return {"jwt": await service.auth.token_for(key)}


@router.post("/create_session")
async def create_session(
    service: TheService, user: User, body: requests.CreateSession
) -> dict[str, str]:
    return {"session_id": await service.sessions.create(user, body), "type": "create_session"}


@router.post("/session_heartbeat")
async def heartbeat(service: TheService, user: User, body: requests.Heartbeat) -> dict[str, str]:
    await service.sessions.require(body.session_id, user)
    return {"type": "session_heartbeat"}


@router.post("/sessions/{session_id}/finish")
async def finish(
    service: TheService, user: User, session_id: str, body: requests.FinishSession
) -> dict[str, str]:
    await service.sessions.finish(session_id, user, body.reason.type, body.detail)
    return {"session_id": session_id}


@router.post("/telemetry")
async def telemetry(_: User) -> dict[str, str]:
    """Accepted and dropped: its bodies may hold keys, and nobody reads them here."""
    return {"status": "accepted"}


@router.get("/get_server_capabilities")
async def capabilities(service: TheService, _: User) -> dict[str, Any]:
    models = []
    for name in service.engines.names():
        model: dict[str, Any] = {"model_name": name, "trainable": True, "sampleable": True}
        if (engine := service.engines.running(name)) is not None:
            model["max_context_length"] = engine.info.context_length
        models.append(model)
    return {"supported_models": models}
