"""The HTTP application: routes, who is asking, and how errors look."""

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DataError, OperationalError

from mint.service.admin.logs import REQUEST_ID, RequestLog
from mint.service.api.dashboard import mount_dashboard
from mint.service.api.gauges import Gauges
from mint.service.api.limits import BodyLimit
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
from mint.service.api.visitors import Visitors
from mint.service.errors import (
    ApiError,
    UserError,
    log_hint,
    readable_database_error,
    readable_os_error,
)
from mint.service.service import Service
from mint.service.wire.decoding import machine_budget
from mint.service.wire.requests import describe

log = logging.getLogger(__name__)
_TINKER = (sessions, training, sampling, futures, transfers, weights, rest, tokenizers, usage)
ROUTERS = (
    ("", health.router),
    ("/v1", openai.router),
    ("/oai/api/v1", openai.router),
    *(("/api/v1", routes.router) for routes in _TINKER),
)
"""Every router of the application, after the prefix of its paths."""


def create_app(service: Service) -> FastAPI:
    """The application of a service that is already put together."""
    app = FastAPI(title="mint", docs_url=None, redoc_url=None)
    app.state.service = service
    app.state.gauges = Gauges(service)
    for prefix, router in ROUTERS:
        app.include_router(router, prefix=prefix)
    mount_dashboard(app, service, app.state.gauges)
    app.add_middleware(
        BodyLimit,
        limit=service.settings.max_body_bytes,
        limit_s=service.settings.request_limit_s,
        memory=machine_budget(),
        on_disk={"/api/v1/checkpoints/upload": service.settings.max_upload_bytes},
    )
    app.add_middleware(
        Visitors,
        is_loopback=service.settings.is_loopback,
        allowed_hosts=service.settings.allowed_hosts,
    )
    app.add_middleware(RequestLog)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(UserError, _user_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(OSError, _disk_error)
    app.add_exception_handler(OperationalError, _database_error)
    app.add_exception_handler(DataError, _unstorable)
    app.add_exception_handler(Exception, _unexpected_error)
    return app


async def _api_error(_: Request, error: Any) -> JSONResponse:
    return JSONResponse({"detail": error.detail}, error.status)


async def _user_error(_: Request, error: Any) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 400)


async def _validation_error(_: Request, error: Any) -> JSONResponse:
    return JSONResponse({"detail": describe(error.errors())}, 422)


async def _disk_error(request: Request, error: Any) -> JSONResponse:
    log.error("request %s failed: %s", request.url.path, error)
    return JSONResponse({"detail": readable_os_error(error, "this request")}, 503)


async def _database_error(request: Request, error: Any) -> JSONResponse:
    log.error("request %s failed in the database: %s", request.url.path, error.orig)
    return JSONResponse({"detail": readable_database_error(error)}, 503)


async def _unstorable(_: Request, error: Any) -> JSONResponse:
    """A value that PostgreSQL does not store or compare, such as a text with a NUL in it."""
    text = f"A value of this request cannot be stored: {error.orig}. Correct it and send it again."
    return JSONResponse({"detail": text}, 400)


async def _unexpected_error(request: Request, error: Exception) -> JSONResponse:
    identifier = getattr(request.state, "request_id", "unknown")
    log.error("request %s failed: %s", identifier, request.url.path, exc_info=error)
    text = f"The service failed in request {identifier}. {log_hint()}"
    return JSONResponse({"detail": text}, 500, {REQUEST_ID: identifier})
