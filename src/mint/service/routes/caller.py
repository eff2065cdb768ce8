"""What every route needs: the service, and who is asking."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant

from ..service import Service


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _key(request: Request) -> str | None:
    """The presented key: ``X-API-Key``, or the bearer token of other clients."""
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    return request.headers.get("x-api-key") or bearer or None


TheService = Annotated[Service, Depends(_service)]
Key = Annotated[str | None, Depends(_key)]


async def authenticate(request: Request) -> str:
    """Return who is asking. Raises ApiError 401."""
    user = await _service(request).auth.user_of(_key(request))
    request.state.user = user
    return user


async def _user(request: Request) -> str:
    return await authenticate(request)


User = Annotated[str, Depends(_user)]


def wants_user(dependant: Dependant) -> bool:
    """Whether a route needs to know who is asking, itself or through what it depends on."""
    return any(d.call is _user or wants_user(d) for d in dependant.dependencies)


def is_same_machine(request: Request) -> bool:
    """Whether the client runs where the service does."""
    return request.client is not None and request.client.host in ("127.0.0.1", "::1")
