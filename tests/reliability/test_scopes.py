"""Every route × every scope: refused below the scope that the route declares, accepted from it on.

The routes come from the application; one without a scope fails unless it is a public one.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from mint.service.access.auth import create_key
from mint.service.access.scopes import Scope
from mint.service.api.app import ROUTERS
from mint.service.api.routes.caller import find_scope
from tests.reliability.local import Local, with_service
from tests.reliability.test_isolation import LISTS, OF_OBJECTS, PUBLIC, ask, fill, routes

# Reading an object of one's own changes nothing, so these methods need no more than `read`; what a
# client does when it starts (sessions, tokens) is open to every key too.
CHANGE = {"post", "put", "delete"}
OF_EVERY_CLIENT = {
    "/api/v1/client/config",
    "/api/v1/client/dynamic_config",
    "/api/v1/auth/token",
    "/api/v1/auth/apikey/me",
    "/api/v1/create_session",
    "/api/v1/session_heartbeat",
    "/api/v1/sessions/{session_id}/finish",
    "/api/v1/sessions/search",
    "/api/v1/telemetry",
    "/api/v1/get_info",
    "/api/v1/weights_info",
}


def declared() -> dict[tuple[str, str], Scope | None]:
    """The scope that each route declares."""
    return {
        (method.lower(), prefix + route.path_format): find_scope(route.dependant)
        for prefix, router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }


def test_every_route_declares_a_scope(tmp_path: Path) -> None:
    async def work(local: Local) -> None:
        table = declared()
        assert table.keys() == routes(local)
        assert {route for route, scope in table.items() if scope is None} == PUBLIC
        for (method, path), scope in table.items():
            if method in CHANGE and path not in OF_EVERY_CLIENT and (method, path) not in PUBLIC:
                assert (scope or Scope.READ) > Scope.READ, (method, path)

    with_service(tmp_path, work)


@pytest.mark.parametrize("scope", list(Scope))
def test_a_route_refuses_keys_of_a_smaller_scope(tmp_path: Path, scope: Scope) -> None:
    async def work(local: Local) -> set[bool]:
        fill(local)
        seen = set()
        store = local.service.store
        for number, ((method, route), needed) in enumerate(sorted(declared().items())):
            if needed is None:
                continue
            # a key each, as one of the routes revokes the key that asks
            key = create_key(store, f"key-{number}", "eve", scope=scope)
            local.service.auth._loaded_at = float("-inf")
            path, body = OF_OBJECTS.get((method, route), (route, LISTS.get((method, route), {})))
            answer = await ask(local, method, path or route, body, {"X-API-Key": key})
            is_refused = scope < needed
            assert (answer.status_code == 403) == is_refused, (method, route, answer.text)
            if is_refused:
                assert f"--user eve --scope {needed.label}" in answer.text, (method, route)
            seen.add(is_refused)
        return seen

    refusals = with_service(tmp_path, work)
    assert False in refusals
    assert (True in refusals) == (scope < Scope.TRAIN)


def test_the_scope_is_checked_before_the_object(tmp_path: Path) -> None:
    """A key that may not delete does not learn which checkpoints exist."""

    async def work(local: Local) -> set[str]:
        fill(local)
        key = create_key(local.service.store, "reader", "ada", scope=Scope.READ)
        texts = set()
        for name in ("a", "nothing"):
            path = f"/api/v1/training_runs/5e:train:0/checkpoints/sampler_weights/{name}"
            answer = await ask(local, "delete", path, None, {"X-API-Key": key})
            assert answer.status_code == 403
            texts.add(answer.text)
        return texts

    assert len(with_service(tmp_path, work)) == 1
