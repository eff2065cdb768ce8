"""The dashboard's server: its responses, and who may read them."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from benchmarks.watch.generate import append, generate
from mint.watch.dashboard.run_index import RunIndex, RunPlace
from mint.watch.dashboard.server import Watch, create_app

SECRET = "the word in a file outside"


def client_of(folder: Path, **options: Any) -> TestClient:
    app = create_app(Watch(RunIndex([folder])), **options)
    return TestClient(app, base_url="http://127.0.0.1:8265")


def test_the_list_of_runs_has_verdicts_and_curves(client: TestClient) -> None:
    found = client.get("/api/runs").json()["runs"]
    assert {run["name"] for run in found} == {"first", "second"}
    run = found[0]
    assert run["verdict"]["verdict"]
    assert run["verdict"]["evidence"]
    assert len(run["spark"]["reward/success"]) == 12
    assert (run["step"], run["steps"]) == (12, 12)


def test_a_run_has_its_settings_and_components(client: TestClient, first: RunPlace) -> None:
    run = client.get(f"/api/runs/{first.id}").json()
    assert run["config"]["group_size"] == 4
    assert run["components"] == ["close", "exact"]


def test_metrics_come_whole_and_then_by_increments(tmp_path: Path) -> None:
    path = generate(tmp_path / "r", steps=3, planned=6, status="running")
    client = client_of(tmp_path)
    run = client.get("/api/runs").json()["runs"][0]["id"]
    whole = client.get(f"/api/runs/{run}/metrics").json()
    assert whole["steps"] == [1, 2, 3]
    assert whole["reset"]
    nothing = client.get(f"/api/runs/{run}/metrics", params={"cursor": whole["cursor"]}).json()
    assert nothing["steps"] == []
    append(path, 4, 6)
    more = client.get(f"/api/runs/{run}/metrics", params={"cursor": whole["cursor"]}).json()
    assert more["steps"] == [4]
    assert not more["reset"]
    assert more["columns"]["reward/mean"]


def test_a_truncated_run_is_sent_again_in_full(tmp_path: Path) -> None:
    path = generate(tmp_path / "r", steps=4)
    client = client_of(tmp_path)
    run = client.get("/api/runs").json()["runs"][0]["id"]
    cursor = client.get(f"/api/runs/{run}/metrics").json()["cursor"]
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[:2]))
    found = client.get(f"/api/runs/{run}/metrics", params={"cursor": cursor}).json()
    assert found["reset"]
    assert found["steps"] == [1, 2]


def test_long_runs_are_sent_in_few_points_and_zoomed_in_full(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    rows = [json.dumps({"step": step, "reward/mean": step / 10}) for step in range(9_000)]
    (tmp_path / "r" / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    client = client_of(tmp_path)
    run = client.get("/api/runs").json()["runs"][0]["id"]
    whole = client.get(f"/api/runs/{run}/metrics").json()
    assert len(whole["steps"]) == 1_800
    assert whole["bucket"] == 5
    part = client.get(f"/api/runs/{run}/metrics", params={"from": 100, "to": 199}).json()
    assert part["steps"] == list(range(100, 200))
    wrong = client.get(f"/api/runs/{run}/metrics", params={"from": "ten", "to": 199})
    assert wrong.status_code == 400


def test_events_come_by_increments(client: TestClient, first: RunPlace) -> None:
    found = client.get(f"/api/runs/{first.id}/events").json()
    assert {event["event"] for event in found["events"]} >= {"finding", "evaluation", "finished"}
    again = client.get(f"/api/runs/{first.id}/events", params={"cursor": found["cursor"]}).json()
    assert again["events"] == []


@pytest.mark.parametrize("form", ["jsonl", "parquet", "csv"])
def test_hits_are_exported(client: TestClient, first: RunPlace, form: str) -> None:
    parameters = {"format": form, "step_max": "2", "reward_min": "0.5"}
    answer = client.get(f"/api/runs/{first.id}/export", params=parameters)
    assert answer.headers["content-disposition"].endswith(f'.{form}"')
    hits = client.get(f"/api/runs/{first.id}/search", params=parameters).json()["rows"]
    if form == "jsonl":
        rows: list[Any] = [json.loads(line) for line in answer.text.splitlines()]
        assert rows[0]["components"] == hits[0]["components"]
    elif form == "parquet":
        rows = pq.read_table(io.BytesIO(answer.content)).to_pylist()
    else:
        rows = list(csv.DictReader(io.StringIO(answer.text)))
        assert json.loads(rows[0]["components"]) == hits[0]["components"]
    assert len(rows) == len(hits) > 0


def test_a_table_for_spreadsheets_has_no_formulas(tmp_path: Path) -> None:
    generate(tmp_path / "r", steps=1, extra=[{"response": "=HYPERLINK(evil)"}])
    client = client_of(tmp_path)
    run = client.get("/api/runs").json()["runs"][0]["id"]
    text = client.get(f"/api/runs/{run}/export", params={"format": "csv", "text": "HYPERLINK"}).text
    assert "'=HYPERLINK" in text


@pytest.mark.parametrize(
    "parameters",
    [
        {"reward_min": "much"},
        {"reward_min": "nan"},
        {"stop": "never"},
        {"component_min": "1"},
        {"regex": "("},
        {"text": "x" * 1001},
        {"after": "1,2"},
    ],
)
def test_searches_that_make_no_sense_say_why(
    client: TestClient, first: RunPlace, parameters: dict[str, str]
) -> None:
    answer = client.get(f"/api/runs/{first.id}/search", params=parameters)
    assert answer.status_code == 400
    assert len(answer.json()["detail"]) > 10


# ---- who may read ----


def test_other_names_for_this_machine_are_refused(client: TestClient) -> None:
    for host in ("evil.example", "evil.example:8265", "127.0.0.1.evil.example", ""):
        answer = client.get("/api/runs", headers={"host": host})
        assert answer.status_code == 421, host
    for host in ("127.0.0.1:1", "localhost", "[::1]:8265"):
        assert client.get("/api/runs", headers={"host": host}).status_code == 200, host


def test_pages_of_other_sites_are_refused(client: TestClient) -> None:
    answer = client.get("/api/runs", headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 403


def test_nothing_can_be_written(client: TestClient) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.request(method, "/api/runs").status_code == 405


def test_with_a_key_data_needs_it_and_the_page_does_not(runs: Path) -> None:
    client = client_of(runs, key="word")
    assert client.get("/").status_code == 200
    assert client.get("/api/runs").status_code == 401
    assert client.get("/api/runs", headers={"x-api-key": "other"}).status_code == 401
    assert client.get("/api/runs", headers={"x-api-key": "word"}).status_code == 200


def test_every_answer_has_a_strict_policy(client: TestClient) -> None:
    for path in ("/", "/assets/app.js", "/api/runs", "/nothing"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_files_outside_are_not_to_be_had(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text(SECRET)
    run = generate(tmp_path / "runs" / "r", steps=1, groups=1, answers=1)
    (run / "config.yaml").unlink()
    (run / "config.yaml").symlink_to(tmp_path / "secret.txt")
    (run / "summary.json").unlink()
    (run / "summary.json").symlink_to(tmp_path / "secret.txt")
    client = client_of(tmp_path / "runs")
    name = client.get("/api/runs").json()["runs"][0]["id"]
    paths = [
        "/assets/../../../../secret.txt",
        "/assets/%2e%2e/%2e%2e/pyproject.toml",
        "/assets//etc/passwd",
        "/assets/__init__.py",
        f"/api/runs/{name}",
        "/api/runs/..%2f..%2fsecret.txt",
        "/api/runs",
    ]
    for path in paths:
        answer = client.get(path)
        assert SECRET not in answer.text, path
        assert "root:" not in answer.text, path


def test_files_that_block_or_never_end_are_not_opened(tmp_path: Path) -> None:
    run = generate(tmp_path / "r", steps=1, groups=1, answers=1)
    for name in ("events.jsonl", "config.yaml"):
        (run / name).unlink()
        os.mkfifo(run / name)
    client = client_of(tmp_path)
    name = client.get("/api/runs").json()["runs"][0]["id"]
    assert client.get(f"/api/runs/{name}/events").json()["events"] == []


def test_settings_that_unfold_into_gigabytes_are_shown_as_text(tmp_path: Path) -> None:
    run = generate(tmp_path / "r", steps=1, groups=1, answers=1)
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{k}: &{k} [{', '.join([f'*{j}'] * 9)}]"
        for j, k in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    (run / "config.yaml").write_text("\n".join(lines))
    client = client_of(tmp_path)
    name = client.get("/api/runs").json()["runs"][0]["id"]
    answer = client.get(f"/api/runs/{name}").json()
    assert answer["config"] == {}
    assert answer["config_text"].startswith("a: &a")


def test_numbers_that_json_does_not_have_are_null(tmp_path: Path) -> None:
    generate(tmp_path / "r", steps=1, groups=1, answers=1, extra=[{"reward": float("nan")}])
    client = client_of(tmp_path)
    name = client.get("/api/runs").json()["runs"][0]["id"]
    rows = client.get(f"/api/runs/{name}/steps/1").json()["rollouts"]
    assert rows[-1]["reward"] is None


def test_a_dashboard_without_a_service_says_so(client: TestClient) -> None:
    assert client.get("/api/about").json() == {"service": False, "demo": False, "bundle": False}
    assert client.get("/api/service").status_code == 404
