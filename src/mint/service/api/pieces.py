"""Large answers, sent piece by piece."""

import mmap
from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PIECE = 256 * 1024
"""The most bytes of an answer that wait for a client to read them."""


class PiecewiseResponse(Response):
    """A response that is sent piece by piece, each when the client has read the one before.

    The server buffers whatever it is given: clients that request one large result over many
    connections, and do not read it, would otherwise fill the memory.
    """

    def __init__(
        self, content: bytes | mmap.mmap, media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(b"", 200, headers, media_type)
        self._content = content
        self.headers["content-length"] = str(len(content))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        for at in range(0, max(len(self._content), 1), PIECE):
            piece, is_last = self._content[at : at + PIECE], at + PIECE >= len(self._content)
            await send({"type": "http.response.body", "body": piece, "more_body": not is_last})
