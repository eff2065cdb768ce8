"""Dependencies of every route: the service, and the caller.

They are coroutines, as FastAPI runs plain functions in a thread.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import Body, Depends, Request
from fastapi.dependencies.models import Dependant

from mint.service.access.scopes import Caller, Scope
from mint.service.admin.settings import is_loopback
from mint.service.service import Service


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _key(request: Request) -> str | None:
    """Return the presented key: ``X-API-Key``, or the bearer token of other clients."""
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    return request.headers.get("x-api-key") or bearer or None


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
    inner = [scope for d in dependant.dependencies if (scope := find_scope(d)) is not None]
    own = _SCOPES.get(dependant.call)
    return max([*inner, *([own] if own is not None else [])], default=None)


def is_same_machine(request: Request) -> bool:
    """Return whether the client runs on the same machine as the service."""
    return request.client is not None and is_loopback(request.client.host)
