"""Access control of the dashboard, and the headers of every response."""

import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
    "cache-control": "no-cache",
}
_LOCAL = ("127.0.0.1", "localhost", "::1")
_FOREIGN = ("cross-site", "same-site")


def parse_host(header: str) -> str:
    """Return the name in a ``Host`` header, without its port.

    >>> parse_host("LOCALHOST:8000"), parse_host("[::1]:8000"), parse_host("::1")
    ('localhost', '::1', '::1')
    """
    host = header.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]


class Access:
    """Rejects requests with foreign host names, from other sites, or without the key.

    Without a key, only Host headers that name this machine are accepted, which prevents DNS
    rebinding. With a key, or with ``hosts=None`` for an application that checks keys itself, every
    host name is accepted.
    """

    def __init__(
        self, app: ASGIApp, key: str | None = None, hosts: Iterable[str] | None = ()
    ) -> None:
        self._app = app
        self._key = key
        self._hosts = None if hosts is None else {*_LOCAL, *hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        app = self._app
        if refusal := self._refusal(scope):
            status, detail = refusal
            app = JSONResponse({"detail": detail}, status)
        await app(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        names = None if self._key is not None else self._hosts
        if names is not None and parse_host(headers.get("host", "")) not in names:
            return 421, "mint watch does not serve this host name. Use the address it printed."
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "mint watch is read-only: use GET."
        path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")))
        if not path.startswith("/api/"):  # the page and its parts
            return None
        if headers.get("sec-fetch-site") in _FOREIGN:
            return 403, "mint watch rejects requests from other sites."
        given = headers.get("x-api-key", "").encode()
        if self._key is not None and not hmac.compare_digest(given, self._key.encode()):
            return 401, "This requires the key that mint watch was started with."
        return None
