"""Host and Origin checks: protection against web pages in the user's browser.

A service on this machine needs no key, so a web page could use it too: by a cross-site request, or
by a host name of its own that resolves to this machine. Both are refused.
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mint.service.admin.settings import is_loopback
from mint.watch.dashboard.access import parse_host


class OriginCheck:
    """Refuses requests to other host names and from other web pages."""

    def __init__(self, app: ASGIApp, is_loopback: bool, allowed_hosts: Iterable[str]) -> None:
        self._app = app
        self._is_loopback = is_loopback
        self._allowed = {host.lower() for host in allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        why = self._why_not(Headers(scope=scope)) if scope["type"] == "http" else None
        if why is None:
            await self._app(scope, receive, send)
        else:
            await JSONResponse({"detail": why}, 403)(scope, receive, send)

    def _why_not(self, headers: Headers) -> str | None:
        host = headers.get("host", "")
        name = parse_host(host)
        if parse_authority(f"//{host}") != host:
            return f"The Host header {host[:100]!r} is not a name or an address."
        if self._is_loopback and not (name in self._allowed or is_loopback(name)):
            return (
                "This service serves this machine only; the request was addressed to "
                f"{host[:100]!r}. Use http://127.0.0.1 or localhost, or name the host in "
                "allowed_hosts."
            )
        origin = headers.get("origin")
        sender = host if origin is None else parse_authority(origin)
        is_own = sender is not None and sender.lower() == host.lower()
        is_allowed = sender is not None and parse_host(sender) in self._allowed
        if not (is_own or is_allowed) or headers.get("sec-fetch-site") == "cross-site":
            return (
                "This service rejects requests from other web pages. If the page is yours, add "
                "its host to allowed_hosts."
            )
        return None


def parse_authority(url: str) -> str | None:
    """Return the host and port of a URL as they are written, or None if they are not valid.

    >>> parse_authority("http://Gpu:80/x"), parse_authority("null"), parse_authority("http://[")
    ('Gpu:80', '', None)
    """
    try:
        return urlsplit(url).netloc
    except ValueError:
        return None
