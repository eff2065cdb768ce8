"""Logging as text or JSON: one line per request, and other events.

Neither keys nor bodies are logged. Every request has an id, which is returned in ``x-request-id``
and is part of every log line that the request causes.
"""

import json
import logging
import re
import time
import uuid
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mint.service.admin.metrics import HTTP_REQUESTS
from mint.service.admin.settings import Settings

REQUEST_ID = "x-request-id"
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_ACCEPTABLE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TOKEN = re.compile(r"(/mint/downloads/)[^/]+")
_LONGEST_PATH = 500
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
_current_request: ContextVar[str | None] = ContextVar("request_id", default=None)
_requests_log = logging.getLogger("mint.service.requests")


def configure(settings: Settings) -> None:
    """Log to standard error, in the configured format."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if settings.log_format == "json" else TextLines(_TEXT))
    handler.addFilter(_name_uvicorn)
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    for library in ("alembic", "httpx", "httpcore"):
        logging.getLogger(library).setLevel(logging.WARNING)


def _name_uvicorn(record: logging.LogRecord) -> bool:
    """Rename uvicorn's general logger, whose name ``uvicorn.error`` says that something failed."""
    if record.name == "uvicorn.error":
        record.name = "uvicorn"
    return True


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, message, request_id, fields of a request."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (identifier := _current_request.get()) is not None:
            line["request_id"] = identifier
        line |= getattr(record, "request", {})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextLines(logging.Formatter):
    """The same as text."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = super().formatMessage(record)
        identifier = _current_request.get()
        return f"{text} [{identifier}]" if identifier is not None else text


class RequestLog:
    """Gives each request an id, and logs and counts it when it is answered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = Headers(scope=scope).get(REQUEST_ID, "")
        identifier = sent if _ACCEPTABLE_ID.fullmatch(sent) else uuid.uuid4().hex[:16]
        scope.setdefault("state", {})["request_id"] = identifier
        token = _current_request.set(identifier)
        start, status = time.monotonic(), 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = identifier
            await send(message)

        try:
            await self._app(scope, receive, answer)
        finally:
            _note(scope, status, time.monotonic() - start)
            _current_request.reset(token)


def _read_path(scope: Scope) -> str:
    """Return the path as it was sent, shortened, without the token of a signed link."""
    path: str = scope.get("raw_path", b"").decode("ascii", "replace")
    return _TOKEN.sub(r"\1TOKEN", path)[:_LONGEST_PATH]


def _note(scope: Scope, status: int, seconds: float) -> None:
    route = getattr(scope.get("route"), "path", "unknown")
    known_method = scope["method"] if scope["method"] in _METHODS else "other"
    HTTP_REQUESTS.labels(known_method, route, str(status)).inc()
    method, path, ms = scope["method"], _read_path(scope), round(seconds * 1000, 1)
    user = scope.get("state", {}).get("user")
    fields = {"method": method, "path": path, "status": status, "user": user, "ms": ms}
    level = logging.DEBUG if path.startswith("/watch/") else logging.INFO  # it polls every second
    text = f"{method} {path} {status} {ms:.0f} ms"
    _requests_log.log(level, text, extra={"request": fields})
