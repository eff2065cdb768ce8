"""Every route × every object × the key of another user: 404, and the object is unchanged.

The routes come from the application itself: one that is in none of the tables below fails a test.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from mint.service.access.auth import create_key
from mint.service.checkpoints.storage import CheckpointPath, NewCheckpoint
from mint.service.futures import Response
from mint.service.store.database import RunRow, SamplerRow, SessionRow, Store
from mint.watch.dashboard.run_index import RunIndex
from mint.watch.dashboard.server import Watch, create_app
from mint.watch.directory.recorder import RunDirectory
from tests.reliability.local import Local, with_service

SESSION = "5e551011-0000-0000-0000-000000000000"
RUN, SAMPLER = f"{SESSION}:train:0", f"{SESSION}:sample:0"
PATH = f"tinker://{RUN}/sampler_weights/a"
OPERATION = {"model_id": RUN, "seq_id": 1}
PROMPT = {"chunks": [{"tokens": [1]}]}
CHECKPOINT = f"/api/v1/training_runs/{RUN}/checkpoints/sampler_weights/a"
NEW_RUN = {"session_id": SESSION, "model_seq_id": 5}

PUBLIC = {
    ("get", "/healthz"),
    ("get", "/readyz"),
    ("get", "/metrics"),  # with a key beyond loopback
    ("get", "/api/v1/healthz"),
    ("get", "/api/v1/mint/downloads/{token}/{name}"),  # the signed link is the key
}
OF_NO_OBJECT = {
    ("post", "/api/v1/client/config"),
    ("post", "/api/v1/client/dynamic_config"),
    ("post", "/api/v1/auth/token"),
    ("get", "/api/v1/auth/apikey/me"),
    ("delete", "/api/v1/auth/apikey/me"),
    ("post", "/api/v1/create_session"),
    ("post", "/api/v1/telemetry"),
    ("get", "/api/v1/get_server_capabilities"),
    ("post", "/api/v1/create_custom_loss"),
    ("post", "/api/v1/checkpoints/upload"),
    ("get", "/api/v1/mint/tokenizers/{name}"),
    ("get", "/api/v1/mint/load"),
}
LISTS = {
    ("get", "/v1/models"): None,
    ("get", "/oai/api/v1/models"): None,
    ("get", "/api/v1/checkpoints"): None,
    ("get", "/api/v1/training_runs"): None,
    ("get", "/api/v1/sessions"): None,
    ("post", "/api/v1/sessions/search"): {},
    ("get", "/api/v1/mint/usage"): None,
    ("post", "/api/v1/mint/checkpoints/prune"): {"keep_last": 0},
}
"""Routes that list the caller's own objects, with their bodies: nothing foreign may be in them."""
Example = tuple[str, Any]
OF_OBJECTS: dict[tuple[str, str], Example] = {
    ("post", "/api/v1/session_heartbeat"): ("", {"session_id": SESSION}),
    ("post", "/api/v1/sessions/{session_id}/finish"): (
        f"/api/v1/sessions/{SESSION}/finish",
        {"reason": {"type": "success"}},
    ),
    ("get", "/api/v1/sessions/{session_id}"): (f"/api/v1/sessions/{SESSION}", None),
    ("put", "/api/v1/sessions/{session_id}/project"): (
        f"/api/v1/sessions/{SESSION}/project",
        {"project_id": "p"},
    ),
    ("get", "/api/v1/sessions/{session_id}/trace_export"): (
        f"/api/v1/sessions/{SESSION}/trace_export",
        None,
    ),
    ("post", "/api/v1/create_model"): (
        "",
        {**NEW_RUN, "base_model": "m", "lora_config": {"rank": 4}},
    ),
    ("post", "/api/v1/get_info"): ("", {"model_id": RUN}),
    ("post", "/api/v1/unload_model"): ("", {"model_id": RUN}),
    ("post", "/api/v1/forward_backward"): ("", OPERATION),
    ("post", "/api/v1/forward"): ("", OPERATION),
    ("post", "/api/v1/optim_step"): ("", OPERATION),
    ("post", "/api/v1/save_weights"): ("", {**OPERATION, "path": "x"}),
    ("post", "/api/v1/save_weights_for_sampler"): ("", {**OPERATION, "path": "x"}),
    ("post", "/api/v1/save_weights_external"): ("", {**OPERATION, "path": "x"}),
    ("post", "/api/v1/load_weights"): ("", {**OPERATION, "path": PATH}),
    ("post", "/api/v1/mint/forward_backward_reverse_kl"): ("", OPERATION),
    ("post", "/api/v1/create_sampling_session"): (
        "",
        {"session_id": SESSION, "sampling_session_seq_id": 3, "model_path": PATH},
    ),
    ("post", "/api/v1/asample"): ("", {"sampling_session_id": SAMPLER, "prompt": PROMPT}),
    ("post", "/api/v1/join_sampling_session"): ("", {"sampling_session_id": SAMPLER}),
    ("get", "/api/v1/samplers/{sampler_id}"): (f"/api/v1/samplers/{SAMPLER}", None),
    ("post", "/api/v1/retrieve_future"): ("", {"request_id": f"{RUN}:1"}),
    ("post", "/api/v1/retrieve_futures"): ("", {"target": {"sampling_session_id": SAMPLER}}),
    ("post", "/api/v1/cancel_future"): ("", {"request_id": f"{SAMPLER}:1"}),
    ("get", "/api/v1/training_runs/{run_id}"): (f"/api/v1/training_runs/{RUN}", None),
    ("get", "/api/v1/training_runs/{run_id}/checkpoints"): (
        f"/api/v1/training_runs/{RUN}/checkpoints",
        None,
    ),
    ("delete", "/api/v1/training_runs/{run_id}/checkpoints/{checkpoint_id}"): (CHECKPOINT, None),
    ("put", "/api/v1/training_runs/{run_id}/checkpoints/{checkpoint_id}/ttl"): (
        f"{CHECKPOINT}/ttl",
        {"ttl_seconds": 7200},
    ),
    ("get", "/v1/models/{name}"): (f"/v1/models/{PATH}", None),
    ("get", "/oai/api/v1/models/{name}"): (f"/oai/api/v1/models/{PATH}", None),
    ("post", "/api/v1/weights_info"): ("", {"tinker_path": PATH}),
    ("post", "/api/v1/copy_weights"): ("", {"source_path": PATH, "destination_project_id": "p"}),
    ("post", "/api/v1/mint/checkpoints/interpolate"): (
        "",
        {"source_paths": [PATH], "coefficients": [1.0]},
    ),
}
for _prefix in ("/v1", "/oai/api/v1"):
    OF_OBJECTS["post", f"{_prefix}/completions"] = ("", {"model": PATH, "prompt": "a"})
    _chat = {"model": PATH, "messages": [{"role": "user", "content": "a"}]}
    OF_OBJECTS["post", f"{_prefix}/chat/completions"] = ("", _chat)
for _method, _end in (
    ("get", "archive"),
    ("get", "external_weights_urls"),
    ("post", "publish"),
    ("delete", "publish"),
):
    _route = f"/api/v1/training_runs/{{run_id}}/checkpoints/{{checkpoint_id}}/{_end}"
    OF_OBJECTS[_method, _route] = (f"{CHECKPOINT}/{_end}", None)


OWN_SESSION = "0e7e0000-0000-0000-0000-000000000000"
OWN_RUN = f"{OWN_SESSION}:train:0"
OWN_PATH = f"tinker://{OWN_RUN}/sampler_weights/b"
MIXED: list[tuple[str, Any]] = [
    (
        "/api/v1/create_sampling_session",
        {"session_id": OWN_SESSION, "sampling_session_seq_id": 3, "model_path": PATH},
    ),
    (
        "/api/v1/load_weights",
        {"session_id": OWN_SESSION, "model_seq_id": 5, "path": PATH, "optimizer": False},
    ),
    (
        "/api/v1/copy_weights",
        {**NEW_RUN, "source_path": OWN_PATH},
    ),
    (
        "/api/v1/mint/checkpoints/interpolate",
        {"source_paths": [OWN_PATH, PATH], "coefficients": [0.5, 0.5]},
    ),
    (
        "/api/v1/mint/checkpoints/interpolate",
        {"source_paths": [OWN_PATH], "coefficients": [1.0], "output_path": PATH},
    ),
    ("/api/v1/mint/checkpoints/prune", {"keep_last": 0, "run_id": RUN}),
]
"""Requests of eve's that name her own objects and one of ada's.

Operations on her own run that name a foreign checkpoint are not here: they are accepted, and their
result is the error (``tests/service/access/test_tenants.py``).
"""


def routes(local: Local) -> set[tuple[str, str]]:
    transport: Any = local.http._transport
    paths: dict[str, dict[str, Any]] = transport.app.openapi()["paths"]
    return {(method, path) for path, methods in paths.items() for method in methods}


async def ask(
    local: Local, method: str, path: str, body: Any, headers: dict[str, str]
) -> httpx.Response:
    options: dict[str, Any] = {} if body is None else {"json": body}
    return await local.http.request(method.upper(), path, headers=headers, **options)


def fill(local: Local) -> dict[str, str]:
    """Create one of each object of ada's, and results; return the headers of eve."""
    store = local.service.store
    create_key(store, "ada", "ada")
    key = create_key(store, "eve", "eve")
    add_checkpoint(local, SESSION, "ada", PATH)
    add_checkpoint(local, OWN_SESSION, "eve", OWN_PATH)
    store.add(SamplerRow(id=SAMPLER, session_id=SESSION, user="ada", base_model="m"))
    for request_id in (f"{RUN}:1", f"{SAMPLER}:1"):
        local.service.futures.open(request_id, "ada")
        local.service.futures.finish(request_id, Response.json({"type": "of ada"}))
    (local.service.settings.home / "runs" / RUN.replace(":", "_")).mkdir(parents=True)
    return {"X-API-Key": key}


def add_checkpoint(local: Local, session: str, user: str, uri: str) -> None:
    """Create a checkpoint with its session and its run."""
    path = CheckpointPath.parse(uri)
    lora = {"rank": 4, "seed": 1, "train_attn": True, "train_mlp": True, "train_unembed": True}
    run = RunRow(id=path.run_id, session_id=session, user=user, base_model="m", lora=lora)
    local.service.store.add(SessionRow(id=session, user=user))
    local.service.store.add_once(run, path.run_id)
    new = NewCheckpoint(path, 1, False, None, {})
    draft = local.service.checkpoints.begin(new)
    (draft / "adapter_config.json").write_text("{}")
    local.service.checkpoints.publish(new, draft, run)


def content(store: Store, home: Path) -> str:
    """Everything that the service keeps, but for when it was seen."""
    with store._engine.connect() as connection:
        rows = [
            dict(row)
            for table in ("sessions", "runs", "samplers", "checkpoints", "api_keys")
            for row in connection.exec_driver_sql(f"select * from {table}").mappings()
        ]
    files = {str(p): p.read_bytes().hex() for p in home.glob("checkpoints/**/*") if p.is_file()}
    return json.dumps([rows, files], default=str, sort_keys=True)


def test_no_route_is_forgotten(tmp_path: Path) -> None:
    async def work(local: Local) -> set[tuple[str, str]]:
        return routes(local)

    known = PUBLIC | OF_NO_OBJECT | LISTS.keys() | OF_OBJECTS.keys()
    assert with_service(tmp_path, work) == known


def test_without_a_good_key_only_public_routes_answer(tmp_path: Path) -> None:
    async def work(local: Local) -> None:
        fill(local)
        for method, route in sorted(routes(local) - PUBLIC):
            path, body = OF_OBJECTS.get((method, route), (route, LISTS.get((method, route), {})))
            for headers in ({}, {"X-API-Key": "tml-guess"}, {"Authorization": "Bearer eyJ.a.b"}):
                answer = await ask(local, method, path or route, body, headers)
                assert answer.status_code == 401, (method, route, answer.text)

    with_service(tmp_path, work)


def test_every_object_is_unknown_to_another_user(tmp_path: Path) -> None:
    async def work(local: Local) -> None:
        headers = fill(local)
        before = content(local.service.store, tmp_path)
        requests = [
            (method, path or route, body) for (method, route), (path, body) in OF_OBJECTS.items()
        ]
        for method, path, body in [*requests, *(("post", *mixed) for mixed in MIXED)]:
            answer = await ask(local, method, path, body, headers)
            assert answer.status_code == 404, (method, path, answer.text)
            assert "There is no" in answer.text, (method, path, answer.text)
            assert content(local.service.store, tmp_path) == before, (method, path)
        for (method, route), body in LISTS.items():
            answer = await ask(local, method, route, body, headers)
            assert answer.status_code == 200, (method, route, answer.text)
            assert SESSION not in answer.text, (method, route)

    with_service(tmp_path, work)


def test_keys_of_one_user_share_its_objects(tmp_path: Path) -> None:
    async def work(local: Local) -> list[int]:
        foreign = fill(local)
        own = {"X-API-Key": create_key(local.service.store, "second", "ada")}
        path = f"/api/v1/training_runs/{RUN}"
        return [(await ask(local, "get", path, None, key)).status_code for key in (own, foreign)]

    assert with_service(tmp_path, work) == [200, 404]


@pytest.mark.parametrize("is_public", [True, False])
def test_a_link_ends_when_the_checkpoint_is_private_again(tmp_path: Path, is_public: bool) -> None:
    async def work(local: Local) -> int:
        headers = fill(local)
        path = CheckpointPath.parse(PATH)
        row = local.service.checkpoints.find(path, "ada")
        assert row is not None
        local.service.store.change_checkpoint(row, public=True)
        archive = await local.http.get(f"{CHECKPOINT}/archive", headers=headers)
        assert archive.status_code == 302
        local.service.store.change_checkpoint(row, public=is_public)
        return (await local.http.get(archive.headers["location"])).status_code

    assert with_service(tmp_path, work) == (200 if is_public else 404)


def test_a_link_ends_after_its_time(tmp_path: Path) -> None:
    async def work(local: Local) -> None:
        fill(local)
        headers = {"X-API-Key": create_key(local.service.store, "second", "ada")}
        for what in ("archive", "external_weights_urls"):
            answer = await local.http.get(f"{CHECKPOINT}/{what}", headers=headers)
            urls = answer.json()["urls"].values() if answer.content else ()
            for link in urls or (answer.headers["location"],):
                ended = await local.http.get(link)
                assert (ended.status_code, "has expired" in ended.text) == (403, True)

    with_service(tmp_path, work, link_kept_s=0.0)


def test_no_route_of_the_dashboard_shows_another_user_anything(tmp_path: Path) -> None:
    """The routes are those of its application; the runs are directories of the local user."""
    folder = tmp_path / "directories"
    with RunDirectory(folder / "mine") as directory:
        directory.write_config({"task": "SECRET"})
        directory.metrics({"step": 1, "SECRET": 1.0})
        directory.rollouts([{"step": 1, "prompt": "SECRET", "response": "SECRET"}])
    index = RunIndex([folder])
    [place] = index.runs()
    parts = {"{run}": place.id, "{step:int}": "1", "{group:int}": "0", "{index:int}": "0"}
    paths = [route.path for route in create_app(Watch(index)).routes if isinstance(route, Route)]

    async def work(local: Local) -> list[tuple[str, str]]:
        foreign = fill(local)
        shown = []
        for path in (path for path in paths if path.startswith("/api/")):
            for name, value in parts.items():
                path = path.replace(name, value)
            for headers in ({}, foreign):
                answer = await local.http.get(f"/watch{path}", headers=headers)
                shown.append((path, answer.text))
                if "/runs/" in path:
                    assert answer.status_code == 404, (path, answer.text)
        return shown

    async def look(local: Local) -> str:
        return (await local.http.get(f"/watch/api/runs/{place.id}/steps/1")).text

    own = with_service(tmp_path / "without keys", look, runs=folder)
    assert "SECRET" in own, "without keys, the local user reads them"
    shown = with_service(tmp_path / "home", work, runs=folder)
    assert len(shown) >= 20
    assert not [path for path, text in shown if "SECRET" in text or SESSION in text]
