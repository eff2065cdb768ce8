"""Checkpoints between users and over time: published, copied, expiring; sessions in order."""

from __future__ import annotations

from datetime import timedelta

import pytest
import tinker
from tinker import types

from mint.service.store.database import CheckpointRow, Store, now
from tests.service_fixture import MODEL, KeyedService, RawClient


@pytest.fixture
def ada(keyed_service: KeyedService) -> RawClient:
    return keyed_service.client("ada")


@pytest.fixture
def eve(keyed_service: KeyedService) -> RawClient:
    return keyed_service.client("eve")


def saved(user: RawClient, run: str, seq_id: int, name: str) -> str:
    return str(user.result(user.operate("save_weights", run, seq_id, path=name))["path"])


def test_a_published_checkpoint_can_be_read_but_not_changed_by_others(
    ada: RawClient, eve: RawClient
) -> None:
    run = ada.run()
    path, private = saved(ada, run, 1, "shown"), saved(ada, run, 2, "hidden")
    one = f"/training_runs/{run}/checkpoints/weights/shown"
    assert eve.http.get(f"{one}/archive").status_code == 404
    assert eve.http.post(f"{one}/publish").status_code == 404
    assert ada.http.post(f"{one}/publish").json() == {"tinker_path": path, "public": True}

    assert eve.post("/weights_info", {"tinker_path": path}).json()["lora_rank"] == 4
    mine = eve.run()
    assert eve.result(eve.operate("load_weights", mine, 1, path=path, optimizer=True))["path"]
    listed = eve.http.get(f"/training_runs/{run}/checkpoints").json()["checkpoints"]
    assert [checkpoint["tinker_path"] for checkpoint in listed] == [path]
    assert eve.http.get(f"/training_runs/{run}").status_code == 404
    seen = eve.http.get(f"/training_runs/{run}", params={"access_scope": "accessible"}).json()
    assert seen["last_checkpoint"]["tinker_path"] == path
    assert eve.http.get(f"{one}/archive").status_code == 302
    assert eve.post("/weights_info", {"tinker_path": private}).status_code == 404
    for answer in (
        eve.http.delete(one),
        eve.http.put(f"{one}/ttl", json={"ttl_seconds": None}),
        eve.http.delete(f"{one}/publish"),
    ):
        assert answer.status_code == 404

    copy = {"source_path": path, "destination_project_id": "archive"}
    headers = {"x-idempotency-key": "once"}
    copied = eve.post("/copy_weights", copy, headers=headers).json()["tinker_path"]
    assert eve.post("/copy_weights", copy, headers=headers).json()["tinker_path"] == copied
    assert copied != path

    assert ada.http.delete(f"{one}/publish").status_code == 200
    assert eve.post("/weights_info", {"tinker_path": path}).status_code == 404
    assert eve.http.get(f"/training_runs/{run}/checkpoints").status_code == 404
    assert ada.http.delete(one).status_code == 200
    resumed = eve.result(eve.operate("load_weights", mine, 2, path=copied, optimizer=True))
    assert resumed["path"] == copied
    holder = copied.removeprefix("tinker://").partition("/")[0]
    refused = eve.post("/optim_step", {"model_id": holder, "seq_id": 1})
    assert refused.status_code == 404
    assert "contains only copied or uploaded checkpoints" in refused.json()["detail"]
    runs = eve.http.get("/training_runs", params={"project_id": "archive"}).json()
    assert [found["training_run_id"] for found in runs["training_runs"]] == [holder]


def test_a_copy_into_a_session_takes_the_place_it_is_given(ada: RawClient) -> None:
    session = ada.session()
    path = saved(ada, ada.run(session), 1, "source")
    copy = {"source_path": path, "session_id": session, "model_seq_id": 7, "ttl_seconds": 7200}
    copied = ada.post("/copy_weights", copy).json()["tinker_path"]
    assert copied == f"tinker://{session}:train:7/weights/source"
    assert ada.post("/copy_weights", copy).json()["tinker_path"] == copied
    [row] = ada.http.get(f"/training_runs/{session}:train:7/checkpoints").json()["checkpoints"]
    assert row["expires_at"] is not None


def test_expiry_deletes_and_null_keeps(ada: RawClient, keyed_service: KeyedService) -> None:
    home = keyed_service.live.home
    run = ada.run()
    paths = [saved(ada, run, n + 1, f"rolling-{n}") for n in range(2)]
    one = f"/training_runs/{run}/checkpoints/weights"
    for n in range(2):
        answer = ada.http.put(f"{one}/rolling-{n}/ttl", json={"ttl_seconds": 3600})
        assert answer.status_code == 200
    assert ada.http.put(f"{one}/rolling-0/ttl", json={"ttl_seconds": None}).status_code == 200
    kept, expiring = sorted(
        ada.http.get(f"/training_runs/{run}/checkpoints").json()["checkpoints"],
        key=lambda checkpoint: checkpoint["checkpoint_id"],
    )
    assert (kept["expires_at"], expiring["expires_at"] is None) == (None, False)
    store = Store(f"sqlite:///{home / 'mint.db'}", home)
    row = store.checkpoint(run, "weights", "rolling-1")
    assert isinstance(row, CheckpointRow)
    store.change_checkpoint(row, expires_at=now() - timedelta(seconds=1))
    folder = home / "checkpoints" / run.replace(":", "_") / "weights" / "rolling-1"
    assert ada.post("/weights_info", {"tinker_path": paths[1]}).status_code == 404
    while folder.exists() or store.checkpoint(run, "weights", "rolling-1"):
        pass
    assert ada.post("/weights_info", {"tinker_path": paths[0]}).status_code == 200


@pytest.mark.parametrize(
    "body", [{}, {"ttl_seconds": 5}, {"ttl_seconds": "x"}, {"ttl_seconds": 1e30}]
)
def test_an_invalid_time_to_live_is_refused(ada: RawClient, body: dict[str, object]) -> None:
    run = ada.run()
    saved(ada, run, 1, "a")
    answer = ada.http.put(f"/training_runs/{run}/checkpoints/weights/a/ttl", json=body)
    assert answer.status_code == 422
    assert "ttl_seconds" in answer.json()["detail"]


def test_lists_come_in_pages(ada: RawClient) -> None:
    run = ada.run()
    for n in range(3):
        saved(ada, run, n + 1, f"page-{n}")
    names = []
    for offset in range(3):
        page = ada.http.get(
            f"/training_runs/{run}/checkpoints", params={"limit": 1, "offset": offset}
        ).json()
        assert page["cursor"] == {"offset": offset, "limit": 1, "total_count": 3}
        names += [checkpoint["checkpoint_id"] for checkpoint in page["checkpoints"]]
    assert names == ["weights/page-2", "weights/page-1", "weights/page-0"]
    for bad in ({"limit": -1}, {"offset": -1}, {"limit": 10**30}, {"limit": "x"}):
        assert ada.http.get("/checkpoints", params=bad).status_code == 422


# ---- sessions ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::Warning")
def test_sessions_are_found_by_what_they_are(keyed_service: KeyedService) -> None:
    url, key = keyed_service.live.base_url, keyed_service.keys["ada"]
    rest = tinker.RestClient(base_url=url, api_key=key)
    raw = RawClient(url, key)
    ids = {}
    for name in ("nightly math", "nightly code", "weekly math"):
        body = {"display_name": name, "user_metadata": {"team": name.split()[0]}}
        ids[name] = raw.post("/create_session", body).json()["session_id"]
    rest.assign_session_project(ids["nightly code"], "proj-1").result()
    finish = {"reason": {"type": "errored"}, "detail": "out of data"}
    raw.post(f"/sessions/{ids['weekly math']}/finish", finish)

    def found(**wanted: object) -> set[str]:
        request = types.SessionSearchRequest(**wanted)  # type: ignore[arg-type]
        sessions = rest.search_sessions(request).result().sessions
        names = {identifier: name for name, identifier in ids.items()}
        return {names[session.session_id] for session in sessions if session.session_id in names}

    assert found(display_name="MATH night") == {"nightly math"}
    assert found(display_name="math") == {"nightly math", "weekly math"}
    assert found(session_id=ids["nightly code"]) == {"nightly code"}
    assert found(user_metadata={"team": "weekly"}) == {"weekly math"}
    assert found(project_ids=["proj-1"]) == {"nightly code"}
    assert found(statuses=[types.ClientFinishedSessionStatusQuery(reasons=["errored"])]) == {
        "weekly math"
    }
    assert found(statuses=[types.FailedSessionStatusQuery()]) == set()
    assert found(owner=types.UserSearchOwner(owner_urns=["eve"])) == set()
    [session] = (
        rest.search_sessions(types.SessionSearchRequest(session_id=ids["weekly math"]))
        .result()
        .sessions
    )
    assert session.status is not None
    assert session.status.type == "client_finished"
    first = rest.search_sessions(types.SessionSearchRequest(limit=2)).result()
    rest_of = types.SessionSearchRequest(limit=200, cursor=first.next_cursor)
    seen = [
        s.session_id for s in (*first.sessions, *rest.search_sessions(rest_of).result().sessions)
    ]
    assert len(seen) == len(set(seen))
    assert set(ids.values()) <= set(seen)
    assert rest.get_session(ids["nightly math"]).result().display_name == "nightly math"


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        ({"user_metadata": {'a"b': "c"}}, "user_metadata"),
        ({"user_metadata": {str(n): "x" for n in range(2000)}}, "user_metadata"),
        ({"project_ids": ["x"] * 100_000}, "project_ids"),
        ({"display_name": "x " * 5000}, "display_name"),
        ({"statuses": [{"type": "active"}] * 5000}, "statuses"),
        ({"cursor": {"last_created_at": "2026-01-01T00:00:00", "last_session_id": "x"}}, "cursor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_invalid_search_is_refused(
    ada: RawClient, wanted: dict[str, object], named: str
) -> None:
    answer = ada.post("/sessions/search", wanted)
    assert answer.status_code in (400, 422)
    assert named in answer.json()["detail"]
    for odd in ("$.x", "a.b", "[0]", "ü", "\\", "'; --", "\0", ""):
        found = ada.post("/sessions/search", {"user_metadata": {odd: odd}})
        assert found.status_code in (200, 400, 422), odd


def test_a_session_of_another_user_is_unknown(ada: RawClient, eve: RawClient) -> None:
    session = ada.session()
    assert eve.http.put(f"/sessions/{session}/project", json={"project_id": "x"}).status_code == 404
    assert eve.http.get(f"/sessions/{session}/trace_export").status_code == 404
    export = ada.http.get(f"/sessions/{session}/trace_export").json()
    assert export["status"] == "failed"
    found = eve.post("/sessions/search", {"session_id": session}).json()
    assert found == {"sessions": [], "next_cursor": None}


def test_runs_are_listed_by_project(ada: RawClient) -> None:
    sessions = {"default": ada.session(), "p": ada.session()}
    runs = {project: ada.run(session) for project, session in sessions.items()}
    assert ada.http.put(f"/sessions/{sessions['p']}/project", json={"project_id": "p"}).is_success
    for project, own in runs.items():
        answer = ada.http.get("/training_runs", params={"project_id": project, "limit": 1000})
        listed = {run["training_run_id"] for run in answer.json()["training_runs"]}
        assert listed & set(runs.values()) == {own}


def test_a_client_that_was_copied_gets_a_number_of_its_own(ada: RawClient, eve: RawClient) -> None:
    body = {"session_id": ada.session(), "sampling_session_seq_id": 0, "base_model": MODEL}
    sampler = ada.post("/create_sampling_session", body).json()["sampling_session_id"]
    join = {"sampling_session_id": sampler}
    counters = [ada.post("/join_sampling_session", join).json()["client_counter"] for _ in "123"]
    assert counters == [1, 2, 3]
    assert eve.post("/join_sampling_session", join).status_code == 404


def test_a_key_can_show_and_revoke_itself(
    keyed_service: KeyedService,
) -> None:
    from mint.service.access.auth import create_key

    home = keyed_service.live.home
    key = create_key(Store(f"sqlite:///{home / 'mint.db'}", home), "throwaway", "ada")
    url = keyed_service.live.base_url
    raw = RawClient(url, key)
    while raw.http.get("/auth/apikey/me").status_code == 401:
        pass
    assert raw.http.get("/auth/apikey/me").json()["name"] == "throwaway"
    assert raw.http.delete("/auth/apikey/me").status_code == 200
    while raw.http.get("/auth/apikey/me").status_code != 401:
        pass
