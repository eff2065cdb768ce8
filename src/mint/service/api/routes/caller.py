"""What every route uses: the service, the caller, and the class of routes that accept JSON.

Dependencies are coroutines, as FastAPI runs plain functions in a thread.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any

from fastapi import Body, Depends, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from mint.service.access.scopes import Caller, Scope
from mint.service.admin.settings import is_loopback
from mint.service.errors import ApiError, UserError
from mint.service.service import Service
from mint.service.wire.requests import read_json

_SMALL_BYTES = 64 * 1024
_BEARER = "bearer "  # in any case


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _key(request: Request) -> str | None:
    """Return the presented key: ``X-API-Key``, or the bearer token of other clients."""
    sent = request.headers.get("authorization", "")
    bearer = sent[len(_BEARER) :] if sent.lower().startswith(_BEARER) else sent
    return request.headers.get("x-api-key") or bearer.strip() or None


OneField = Annotated[str, Body(embed=True)]
"""A body with one field, named as the parameter."""
TheService = Annotated[Service, Depends(_service)]
Key = Annotated[str | None, Depends(_key)]


async def authenticate(request: Request, needed: Scope) -> Caller:
    """Return the caller, looked up once per request. Raises ApiError 401, or 403 for a scope."""
    caller: Caller | None = getattr(request.state, "caller", None)
    if caller is None:
        service = await _service(request)
        caller = await service.auth.caller(await _key(request))
        request.state.caller, request.state.user = caller, caller.user
    caller.require(needed)
    return caller


def _needs(scope: Scope) -> Callable[[Request], Awaitable[Caller]]:
    async def caller(request: Request) -> Caller:
        return await authenticate(request, scope)

    _SCOPES[caller] = scope
    return caller


_SCOPES: dict[Any, Scope] = {}

# A route declares the scope it needs by the type of its parameter for the caller.
ReadCaller = Annotated[Caller, Depends(_needs(Scope.READ))]
SampleCaller = Annotated[Caller, Depends(_needs(Scope.SAMPLE))]
TrainCaller = Annotated[Caller, Depends(_needs(Scope.TRAIN))]


def find_scope(dependant: Dependant) -> Scope | None:
    """Return the largest scope that a route and its dependencies need; None if no key is needed."""
    found = [_SCOPES.get(dependant.call), *map(find_scope, dependant.dependencies)]
    return max(filter(None, found), default=None)


def is_same_machine(request: Request) -> bool:
    """Return whether the client runs on the same machine as the service."""
    return request.client is not None and is_loopback(request.client.host)


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

    Python's parser accepts a lone surrogate, which cannot be encoded afterwards: neither for the
    tokenizer, nor for the database, nor in the error message about it.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        scope = find_scope(self.dependant)

        async def handle_json(request: Request) -> Response:
            if scope is not None:
                await authenticate(request, scope)
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json
