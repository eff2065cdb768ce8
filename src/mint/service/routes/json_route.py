"""The route class of everything that takes JSON."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute

from ..errors import UserError
from ..requests import read_json


class JsonRequest(Request):
    """A request that reads its JSON with :func:`mint.service.requests.read_json`."""

    async def json(self) -> Any:
        try:
            return read_json(await self.body())
        except UserError as error:
            raise HTTPException(400, str(error)) from error  # FastAPI hides any other exception


class JsonRoute(APIRoute):
    """A route that refuses bodies with text that is no Unicode.

    Python's own parser lets half a surrogate pair through, which then cannot be encoded: not for
    the tokenizer, not for the database, and not in the answer that complains about it.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json
