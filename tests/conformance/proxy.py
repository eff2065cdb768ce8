"""An HTTP proxy between a client and the service.

It writes down what passes, may lose answers, and may turn on flags of the client.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


@dataclass(frozen=True)
class Exchange:
    """One request and the service's answer to it. ``lost``: the client never saw the answer."""

    method: str
    path: str
    request_headers: dict[str, str]
    request: bytes
    status: int
    content_type: str
    answer: bytes
    lost: bool

    @property
    def endpoint(self) -> str:
        """The path after ``/api/v1``, without its query."""
        return self.path.partition("?")[0].removeprefix("/api/v1")

    @property
    def asked(self) -> Any:
        return json.loads(self.request)

    @property
    def answered(self) -> Any:
        return json.loads(self.answer)


Loses = Callable[[Exchange, list[Exchange]], bool]


def nothing(_: Exchange, __: list[Exchange]) -> bool:
    """Every answer arrives."""
    return False


def first_answer_of_each_endpoint(exchange: Exchange, before: list[Exchange]) -> bool:
    """The first answer of every endpoint a client posts to is lost on its way."""
    return exchange.method == "POST" and exchange.endpoint not in {e.endpoint for e in before}


@dataclass
class Proxy:
    """Where a client connects, and everything it has said there, in order of the answers."""

    base_url: str
    exchanges: list[Exchange] = field(default_factory=list)

    def to(self, *endpoints: str) -> list[Exchange]:
        return [e for e in self.exchanges if e.endpoint in endpoints]


@contextlib.contextmanager
def proxy_to(
    service_url: str, loses: Loses = nothing, flags: dict[str, Any] | None = None
) -> Iterator[Proxy]:
    """A proxy in front of a service, for as long as the block runs.

    ``flags`` overrule those that the service gives its clients in ``/client/config``.
    """
    server = _Server(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.upstream = service_url.removeprefix("http://")
    server.proxy = Proxy(f"http://127.0.0.1:{server.server_address[1]}")
    server.loses = loses
    server.flags = flags or {}
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    upstream: str
    proxy: Proxy
    loses: Loses
    flags: dict[str, Any]
    lock = threading.Lock()
    request_queue_size = 512

    def handle_error(self, *_: Any) -> None:
        """Do not report clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server
    _connection: http.client.HTTPConnection | None = None

    def _pass_on(self) -> None:
        body = self._read_body()
        status, headers, answer = self._ask_upstream(body)
        exchange = self._write_down(body, status, headers, answer)
        if exchange.lost:
            self.close_connection = True
            self.connection.close()
            return
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_PUT = do_DELETE = _pass_on

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = bytearray()
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return bytes(body)

    def _ask_upstream(self, body: bytes) -> tuple[int, http.client.HTTPMessage, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self.server.upstream)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP_BY_HOP}
        self._connection.request(self.command, self.path, body or None, headers)
        response = self._connection.getresponse()
        answer = response.read()
        if self.path.endswith("/client/config") and self.server.flags:
            answer = json.dumps({**json.loads(answer), **self.server.flags}).encode()
        return response.status, response.headers, answer

    def _write_down(
        self, body: bytes, status: int, headers: http.client.HTTPMessage, answer: bytes
    ) -> Exchange:
        asked = {name.lower(): value for name, value in self.headers.items()}
        content_type = cast(str, headers.get("content-type", ""))
        with self.server.lock:
            exchanges = self.server.proxy.exchanges
            exchange = Exchange(
                self.command, self.path, asked, body, status, content_type, answer, False
            )
            if self.server.loses(exchange, exchanges):
                exchange = Exchange(**{**vars(exchange), "lost": True})
            exchanges.append(exchange)
        return exchange

    def log_message(self, *_: Any) -> None:
        """Nothing on standard error."""

    def finish(self) -> None:
        super().finish()
        if self._connection is not None:
            self._connection.close()
