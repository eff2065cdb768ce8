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
    """Answer while the process is running."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(service: TheService) -> Response:
    """Answer 200 once the configured base models are loaded, and 503 until then.

    ``paused`` is the reason why training is paused; sampling is not.
    """
    if service.is_ready:
        why = await asyncio.to_thread(service.why_paused)
        return JSONResponse({"status": "ready"} | ({"paused": why} if why else {}))
    return JSONResponse({"status": "loading", "models": list(service.settings.models)}, 503)


@router.get("/metrics")
async def metrics(request: Request, service: TheService, key: Key) -> Response:
    """Return metrics for Prometheus. A service that other machines can reach requires a key."""
    if not service.settings.is_loopback:
        await service.auth.caller(key)
    gauges: Gauges = request.app.state.gauges
    return Response(await gauges.render(), media_type=CONTENT_TYPE_PLAIN_0_0_4)
