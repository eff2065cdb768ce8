"""The status and the text for whatever a route raised."""

import logging

from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DataError, OperationalError

from mint.service.errors import (
    ApiError,
    EngineDied,
    UserError,
    log_hint,
    readable_database_error,
    readable_os_error,
)
from mint.service.wire.requests import describe

log = logging.getLogger(__name__)
HANDLED = (ApiError, UserError, RequestValidationError, OSError, OperationalError, DataError)
"""Failures that are no bug of the service."""


def describe_failure(error: Exception, request: Request) -> tuple[int, str]:
    """Return the status and the text for a failure; what the caller did not cause is logged."""
    match error:
        case ApiError():
            return error.status, error.detail
        case UserError():
            return 400, str(error)
        case RequestValidationError():
            return 422, describe(list(error.errors()))
        case HTTPException():
            return error.status_code, str(error.detail)
        case EngineDied():
            return 503, str(error)
        case OSError():
            log.error("request %s failed: %s", request.url.path, error)
            return 503, readable_os_error(error, "this request")
        case OperationalError():
            log.error("request %s failed in the database: %s", request.url.path, error.orig)
            return 503, readable_database_error(error)
        case DataError():  # PostgreSQL does not store or compare a text with a NUL, for example
            why = f"A value of this request cannot be stored: {error.orig}."
            return 400, f"{why} Correct it and send it again."
    identifier = getattr(request.state, "request_id", "unknown")
    log.error("request %s failed: %s", identifier, request.url.path, exc_info=error)
    return 500, f"The service failed in request {identifier}. {log_hint()}"
