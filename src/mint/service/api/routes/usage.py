"""Token usage of keys and runs, and the load of the service."""

from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from mint.service.access.scopes import Scope
from mint.service.access.usage import Group
from mint.service.api.routes.caller import JsonRoute, ReadCaller, TheService
from mint.service.store.database import now

router = APIRouter(route_class=JsonRoute)
Since = Annotated[int, Query(ge=1, le=10**9)]


@router.get("/mint/usage")
async def usage(
    service: TheService, caller: ReadCaller, by: Group = "key", since_s: Since | None = None
) -> dict[str, Any]:
    """Return the tokens of the last ``since_s`` seconds and the current checkpoints: those of the
    caller's key, or of all keys for a key with the scope ``admin``."""
    await service.store.save_uses()
    since = None if since_s is None else now() - timedelta(seconds=since_s)
    key = None if caller.scope >= Scope.ADMIN else caller.key
    return {"by": by, "usage": await service.usage.read(by, since, key)}


@router.get("/mint/load")
async def load(service: TheService, _: ReadCaller, request: Request) -> dict[str, Any]:
    """Return queue lengths, and the KV tokens, adapters and memory of each engine."""
    memory = await request.app.state.gauges.memory()
    return {
        "ready": service.is_ready,
        "operations_waiting": service.runs.waiting,
        "samples_in_progress": service.samplers.in_progress,
        "engines": [
            {"model": engine.name, "calls": engine.depth, **memory.get(engine, {})}
            for engine in service.engines.loaded()
        ],
    }
