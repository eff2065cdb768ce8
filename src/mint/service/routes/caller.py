"""What every route needs: the service, and who is asking."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

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


async def _user(request: Request, service: TheService, key: Key) -> str:
    user = await service.auth.user_of(key)
    request.state.user = user
    return user


User = Annotated[str, Depends(_user)]


def is_same_machine(request: Request) -> bool:
    """Whether the client runs where the service does."""
    return request.client is not None and request.client.host in ("127.0.0.1", "::1")
