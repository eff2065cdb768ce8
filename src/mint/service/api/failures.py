"""The status and the message for an exception in a route."""

import logging

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from mint.service.errors import EXPLAINED, ApiError, explain, log_hint
from mint.service.wire.requests import describe

log = logging.getLogger(__name__)
HANDLED = (ApiError, RequestValidationError, *EXPLAINED)
"""Failures that are not bugs of the service."""


def describe_failure(error: Exception, request: Request) -> tuple[int, str]:
    """Return the status and the message for a failure; log it if the caller did not cause it."""
    match error:
        case RequestValidationError():
            return 422, describe(list(error.errors()))
        case HTTPException():
            return error.status_code, str(error.detail)
    if isinstance(error, EXPLAINED):
        text, category = explain(error, "this request")
        if category == "user":
            return 400, text
        log.error("request %s failed: %s", request.url.path, getattr(error, "orig", error))
        return 503, text
    identifier = getattr(request.state, "request_id", "unknown")
    log.error("request %s failed: %s", identifier, request.url.path, exc_info=error)
    return 500, f"The service failed in request {identifier}. {log_hint()}"
