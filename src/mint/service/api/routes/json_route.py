"""The route class of everything that accepts JSON."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from mint.service.api.routes.caller import authenticate, find_scope
from mint.service.errors import ApiError, UserError
from mint.service.wire.requests import read_json

_SMALL_BYTES = 64 * 1024


class JsonRequest(Request):
    """A request that reads its JSON with :func:`mint.service.wire.requests.read_json`."""

    async def json(self) -> Any:
        body = await self.body()
        try:
            if len(body) < _SMALL_BYTES:
                return read_json(body)
            return await asyncio.to_thread(read_json, body)
        except UserError as error:
            raise ApiError(400, str(error)) from error  # FastAPI hides other exceptions


class JsonRoute(APIRoute):
    """A route that checks the key before it reads the body, and refuses invalid Unicode.

    Python's own parser accepts half a surrogate pair, which then cannot be encoded: not for the
    tokenizer, not for the database, and not in the error message about it.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        scope = find_scope(self.dependant)

        async def handle_json(request: Request) -> Response:
            if scope is not None:
                await authenticate(request, scope)
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json
