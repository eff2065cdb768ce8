"""The HTTP application: routes, who is asking, and how errors look."""

from __future__ import annotations

import logging
import uuid
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, UserError, log_hint
from .requests import describe
from .routes import futures, rest, sampling, sessions, tokenizers, training, weights
from .service import Service

log = logging.getLogger(__name__)


def create_app(service: Service) -> FastAPI:
    """The application of a service that is already put together."""
    app = FastAPI(title="mint", docs_url=None, redoc_url=None)
    app.state.service = service
    for routes in (sessions, training, sampling, futures, weights, rest, tokenizers):
        app.include_router(routes.router, prefix="/api/v1")
    app.add_middleware(BodyLimit, limit=service.settings.max_body_bytes)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(UserError, _user_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(Exception, _unexpected_error)
    return app


async def _api_error(_: Request, error: Any) -> JSONResponse:
    return JSONResponse({"detail": error.detail}, error.status)


async def _user_error(_: Request, error: Any) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 400)


async def _validation_error(_: Request, error: Any) -> JSONResponse:
    return JSONResponse({"detail": describe(error.errors())}, 422)


async def _unexpected_error(request: Request, error: Exception) -> JSONResponse:
    error_id = uuid.uuid4().hex[:8]
    log.error("error %s in %s", error_id, request.url.path, exc_info=error)
    return JSONResponse({"detail": f"The service failed (error {error_id}). {log_hint()}"}, 500)


class BodyLimit:
    """Refuses request bodies above a limit, while they arrive."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                raise ApiError(413, f"The request has more than {self._limit} bytes. Send less.")
            return message

        await self._app(scope, counted, send)
