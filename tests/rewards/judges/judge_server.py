"""A small server that speaks OpenAI's chat protocol and judges by a rule."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Judge = Callable[[dict[str, Any]], str | dict[str, Any]]
"""Returns the content of its message, or the message."""


@dataclass
class JudgeServer:
    """What the server was asked, how it answers, and which statuses it answers first."""

    judge: Judge
    statuses: list[int] = field(default_factory=list)
    refused: str | None = None  # a parameter that is answered with 400, as OpenAI's server does
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reply(self, path: str, key: str | None, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self.lock:
            self.requests.append(body)
            self.keys.append(key)
            if path != "/v1/chat/completions":
                return 404, {"error": {"message": f"no {path}"}}
            if self.statuses:
                status = self.statuses.pop(0)
                return status, {"error": {"message": f"status {status}"}}
            if self.refused in body:
                said = f"Unsupported parameter: '{self.refused}' is not supported with this model."
                return 400, {"error": {"message": said, "code": "unsupported_parameter"}}
        said = self.judge(body)
        message = {"role": "assistant", **(said if isinstance(said, dict) else {"content": said})}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}
        return 200, {"object": "chat.completion", "choices": [choice], "usage": usage}


@contextmanager
def judge_server(
    judge: Judge, statuses: list[int] | None = None, refused: str | None = None
) -> Iterator[JudgeServer]:
    """A running server."""
    state = JudgeServer(judge, statuses or [], refused)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = state.reply(self.path, self.headers.get("Authorization"), body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


def part(body: dict[str, Any], name: str) -> str:
    """What stands between the markers of a name in the last message."""
    found = re.search(
        rf"<<<{name}>>>\n(.*?)\n<<<end of {name}>>>", body["messages"][1]["content"], re.DOTALL
    )
    assert found is not None
    return found[1]
