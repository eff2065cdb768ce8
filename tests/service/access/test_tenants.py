"""Ownership: to a user, objects of other users do not exist."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.service_fixture import MODEL, KeyedService, RawClient


def test_foreign_objects_are_unknown(keyed_service: KeyedService) -> None:
    bob, mallory = keyed_service.client("bob"), keyed_service.client("mallory")
    session = bob.session()
    run = bob.run(session)
    saving = bob.operate("save_weights", run, 1, path="a")
    path = bob.result(saving)["path"]
    sampler = bob.result(
        bob.operate("save_weights_for_sampler", run, 2, sampling_session_seq_id=0)
    )["sampling_session_id"]

    prompt = {"chunks": [{"tokens": [1]}]}
    for answer in (
        mallory.post("/session_heartbeat", {"session_id": session}),
        mallory.post(
            "/create_model", {"session_id": session, "model_seq_id": 5, "base_model": MODEL}
        ),
        mallory.post("/get_info", {"model_id": run}),
        mallory.post("/optim_step", {"model_id": run, "seq_id": 3}),
        mallory.post("/unload_model", {"model_id": run}),
        mallory.post("/retrieve_future", {"request_id": saving}),
        mallory.post("/asample", {"sampling_session_id": sampler, "prompt": prompt}),
        mallory.post("/weights_info", {"tinker_path": path}),
        mallory.http.get(f"/samplers/{sampler}"),
        mallory.http.get(f"/training_runs/{run}"),
        mallory.http.get(f"/training_runs/{run}/checkpoints"),
        mallory.http.get(f"/sessions/{session}"),
        mallory.http.delete(f"/training_runs/{run}/checkpoints/weights/a"),
    ):
        assert answer.status_code == 404, answer.request.url
    own = mallory.run()
    loaded = mallory.result(mallory.operate("load_weights", own, 1, path=path, optimizer=True))
    assert "There is no checkpoint" in loaded["error"]
    body = {"session_id": mallory.session(), "sampling_session_seq_id": 0, "model_path": path}
    refused = mallory.post("/create_sampling_session", body)
    assert refused.status_code == 404
    assert "There is no checkpoint" in refused.json()["detail"]
    assert mallory.http.get("/checkpoints").json()["checkpoints"] == []
    assert bob.result(saving)["path"] == path, "and the owner's result is untouched"
    assert bob.http.get("/checkpoints").json()["cursor"]["total_count"] == 1


def test_without_a_good_key_nothing_answers(keyed_service: KeyedService) -> None:
    url = keyed_service.live.base_url
    for key in ("tml-guess", "", "eyJh.eyJz.x"):
        answer = RawClient(url, key).post("/client/config", {})
        assert answer.status_code == 401
        assert "mint keys create" in answer.json()["detail"]
    assert RawClient(url, "").http.get("/healthz").status_code == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_of_a_key_may_be_in_any_case(keyed_service: KeyedService, scheme: str) -> None:
    url = f"{keyed_service.live.base_url}/api/v1/auth/apikey/me"
    headers = {"Authorization": f"{scheme} {keyed_service.keys['bob']}"}
    assert httpx.get(url, headers=headers).status_code == 200


def test_beyond_loopback_the_service_does_not_start_without_a_key(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mint.cli", "serve", "--host", "0.0.0.0", "--port", "0"]
    result = subprocess.run(
        [*command, "--home", str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert result.returncode != 0
    assert "mint keys create" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_port_in_use_is_reported(service: str, tmp_path: Path) -> None:
    port = service.rsplit(":", 1)[1]
    command = [sys.executable, "-m", "mint.cli", "serve", "--port", port, "--home", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode != 0
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", ["no/such-model"])
def test_a_missing_model_stops_the_start(tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-m", "mint.cli", "serve", "--port", "0", "--model", name]
    result = subprocess.run(
        [*command, "--home", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert result.returncode != 0
    assert name in result.stderr
    assert "Traceback" not in result.stderr
