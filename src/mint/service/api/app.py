"""The HTTP application: routes, middleware and error responses."""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from mint.service.admin.logs import REQUEST_ID, RequestLog
from mint.service.api.dashboard import Dashboard
from mint.service.api.failures import HANDLED, describe_failure
from mint.service.api.gauges import Gauges
from mint.service.api.limits import BodyLimit
from mint.service.api.origins import OriginCheck
from mint.service.api.routes import (
    futures,
    health,
    openai,
    rest,
    sampling,
    sessions,
    tokenizers,
    training,
    transfers,
    usage,
    weights,
)
from mint.service.service import Service
from mint.service.wire.decoding import machine_budget

_MAX_JSON_BYTES = 16 * 1024 * 1024  # for all requests except the operations of a run
_UPLOAD = "/api/v1/checkpoints/upload"
_TINKER = (sessions, training, sampling, futures, transfers, weights, rest, tokenizers, usage)
ROUTERS = (
    ("", health.router),
    ("/v1", openai.router),
    ("/oai/api/v1", openai.router),
    *(("/api/v1", routes.router) for routes in _TINKER),
)
"""Every router of the application, with the prefix of its paths."""


def create_app(service: Service) -> FastAPI:
    """Create the application of a service."""
    app = FastAPI(title="mint", docs_url=None, redoc_url=None)
    app.state.service = service
    app.state.gauges = Gauges(service)
    for prefix, router in ROUTERS:
        app.include_router(router, prefix=prefix)
    app.mount("/watch", Dashboard(service, app.state.gauges), name="watch")
    largest = service.settings.max_body_bytes
    limits = dict.fromkeys((f"/api/v1/{kind}" for kind in training.OPERATIONS), largest)
    app.add_middleware(
        BodyLimit,
        limit=min(largest, _MAX_JSON_BYTES),
        limits={**limits, _UPLOAD: service.settings.max_upload_bytes},
        limit_s=service.settings.request_limit_s,
        memory=machine_budget(),
        on_disk=(_UPLOAD,),
    )
    app.add_middleware(
        OriginCheck,
        is_loopback=service.settings.is_loopback,
        allowed_hosts=service.settings.allowed_hosts,
    )
    app.add_middleware(RequestLog)
    for kind in (*HANDLED, Exception):
        app.add_exception_handler(kind, _failed)
    return app


async def _failed(request: Request, error: Exception) -> JSONResponse:
    status, text = describe_failure(error, request)
    identifier = getattr(request.state, "request_id", "unknown")
    # the log adds the id to other answers
    headers = {REQUEST_ID: identifier} if status == 500 else None
    return JSONResponse({"detail": text}, status, headers)
