"""The route class of everything that takes JSON."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute

from mint.service.api.routes.caller import authenticate, find_scope
from mint.service.errors import ApiError, UserError
from mint.service.wire.requests import read_json

_SMALL_BYTES = 64 * 1024
MAX_JSON_BYTES = 16 * 1024 * 1024
"""The largest JSON body but for training data, which :mod:`mint.service.wire.decoding` reads."""


class JsonRequest(Request):
    """A request that reads its JSON with :func:`mint.service.wire.requests.read_json`.

    FastAPI hides every exception but HTTPException.
    """

    async def body(self) -> bytes:
        """Return the body. Raises HTTPException as soon as it is too large."""
        if not hasattr(self, "_body"):
            body = bytearray()
            try:
                async for piece in self.stream():
                    body += piece
                    if len(body) > MAX_JSON_BYTES:
                        text = f"The request has more than {MAX_JSON_BYTES} bytes."
                        raise HTTPException(413, text)
            except ApiError as error:
                raise HTTPException(error.status, error.detail) from error
            self._body = bytes(body)
        return self._body

    async def json(self) -> Any:
        body = await self.body()
        try:
            if len(body) < _SMALL_BYTES:
                return read_json(body)
            return await asyncio.to_thread(read_json, body)
        except UserError as error:
            raise HTTPException(400, str(error)) from error


class JsonRoute(APIRoute):
    """A route that looks at the key before the body, and refuses text that is no Unicode.

    Python's own parser lets half a surrogate pair through, which then cannot be encoded: not for
    the tokenizer, not for the database, and not in the answer that complains about it.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        scope = find_scope(self.dependant)

        async def handle_json(request: Request) -> Response:
            if scope is not None:
                await authenticate(request, scope)
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json
