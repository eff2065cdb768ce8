"""What keys and runs used."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query

from ..scopes import Scope
from ..store import now
from ..usage import Group
from .caller import ReadUser, TheCaller, TheService
from .json_route import JsonRoute

router = APIRouter(route_class=JsonRoute)
Since = Annotated[int, Query(ge=1, le=10**9)]


@router.get("/mint/usage")
async def usage(
    service: TheService,
    _: ReadUser,
    caller: TheCaller,
    by: Group = "key",
    since_s: Since | None = None,
) -> dict[str, Any]:
    """Tokens of the last ``since_s`` seconds, and checkpoints now: the key's own, or all of them
    for a key with the scope ``admin``."""
    await service.auth.save_last_used()
    since = None if since_s is None else now() - timedelta(seconds=since_s)
    key = None if caller.scope >= Scope.ADMIN else caller.key
    return {"by": by, "usage": await service.usage.read(by, since, key)}
