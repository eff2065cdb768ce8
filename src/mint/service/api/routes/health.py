"""Routes for operators: liveness, readiness, metrics."""

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from mint.service.api.gauges import Gauges
from mint.service.api.routes.caller import Key, TheService

router = APIRouter()


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process is up and answers."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(service: TheService) -> Response:
    """200 once the base models of the configuration are loaded; 503 until then.

    ``paused`` says why training waits. Sampling does not.
    """
    if service.is_ready:
        why = await asyncio.to_thread(service.why_paused)
        return JSONResponse({"status": "ready"} | ({"paused": why} if why else {}))
    return JSONResponse({"status": "loading", "models": list(service.settings.models)}, 503)


@router.get("/metrics")
async def metrics(request: Request, service: TheService, key: Key) -> Response:
    """Prometheus text. Beyond this machine it needs a key, as everything does."""
    if not service.settings.is_loopback:
        await service.auth.user_of(key)
    gauges: Gauges = request.app.state.gauges
    return Response(await gauges.render(), media_type=CONTENT_TYPE_PLAIN_0_0_4)
