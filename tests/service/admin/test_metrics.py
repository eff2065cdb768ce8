"""Health, readiness, metrics, request ids and logs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mint.service.admin.settings import Settings
from mint.service.api.app import create_app
from mint.service.service import Service
from tests.service.samples import TOKENS, batch
from tests.service_fixture import MODEL, LiveService, RawClient


def metrics(base_url: str, **headers: str) -> dict[tuple[str, str], float]:
    """Every sample by its name and the first of its labels that says something."""
    answer = httpx.get(f"{base_url}/metrics", headers=headers)
    assert answer.status_code == 200
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            label = sample.labels.get("operation") or sample.labels.get("kind") or ""
            found[sample.name, label] = sample.value
    return found


def test_health_and_readiness_need_no_key(service: str) -> None:
    assert httpx.get(f"{service}/healthz").json() == {"status": "ok"}
    assert httpx.get(f"{service}/readyz").json() == {"status": "ready"}


def test_work_shows_in_the_metrics(service: str, raw: RawClient) -> None:
    before = metrics(service)
    run = raw.run()
    raw.retrieve(raw.operate("forward_backward", run, 1, **batch()))
    raw.result(raw.operate("optim_step", run, 2))
    raw.retrieve(raw.operate("forward_backward", run, 3, **batch(loss_fn="no_such_loss")))
    completion = {"model": MODEL, "prompt": "ab", "max_tokens": 3, "stop": []}
    answer = httpx.post(f"{service}/v1/completions", json=completion, timeout=60)
    after = metrics(service)

    def rose(name: str, label: str = "") -> float:
        return after[name, label] - before.get((name, label), 0.0)

    assert rose("mint_tokens_trained_total") == len(TOKENS) - 1
    assert rose("mint_tokens_sampled_total") == answer.json()["usage"]["completion_tokens"]
    assert rose("mint_operation_seconds_count", "optim_step") == 1
    assert rose("mint_operation_seconds_count", "sample") == 1
    assert rose("mint_errors_total", "forward_backward") == 1
    assert after["mint_queue_depth", "operations"] == 0
    assert after["mint_queue_depth", "samples"] == 0
    assert after["mint_ready", ""] == 1
    assert after["mint_models_loaded", ""] >= 1
    assert after["mint_cache_tokens_capacity", ""] > 0
    assert after["mint_process_bytes", ""] > 2**20
    assert after["mint_runs_resident", ""] >= 1


def test_beyond_this_machine_metrics_need_a_key(own_service: Callable[..., LiveService]) -> None:
    port = own_service(host="0.0.0.0", api_key="tml-operator").port
    url = f"http://127.0.0.1:{port}"
    assert httpx.get(f"{url}/metrics").status_code == 401
    assert httpx.get(f"{url}/healthz").status_code == 200
    assert metrics(url, authorization="Bearer tml-operator")["mint_ready", ""] == 1


def test_a_request_has_an_id_its_own_or_the_clients(service: str) -> None:
    def identifier(**headers: str) -> str:
        return httpx.get(f"{service}/healthz", headers=headers).headers["x-request-id"]

    assert identifier() != identifier()
    assert identifier(**{"x-request-id": "trace-17"}) == "trace-17"
    assert identifier(**{"x-request-id": "not an id"}) != "not an id"
    assert httpx.get(f"{service}/nowhere").headers["x-request-id"]


def test_the_log_has_one_json_line_a_request_and_no_secrets(
    own_service: Callable[..., LiveService],
) -> None:
    service = own_service(log_format="json")
    httpx.post(
        f"{service.base_url}/v1/completions?token=s3cret-query",
        json={"model": "no/model", "prompt": "s3cret-prompt"},
        headers={"authorization": "Bearer s3cret-key", "x-request-id": "trace-18"},
    )
    service.stop()
    text = (service.home / "service.log").read_text()
    assert "s3cret" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    (line,) = [line for line in lines if line.get("request_id") == "trace-18"]
    assert {"mint.service.requests", "uvicorn"} <= {each["logger"] for each in lines}
    assert "uvicorn.error" not in text
    assert line["method"] == "POST"
    assert line["path"] == "/v1/completions"
    assert line["status"] == 404
    assert line["user"] == "local"
    assert line["level"] == "info"
    assert line["ms"] >= 0


def in_process(settings: Settings, work: Callable[[Any, httpx.AsyncClient], Any]) -> Any:
    """Use an application that is not served."""

    async def run() -> Any:
        service = Service(settings)
        service.store.migrate()
        app = create_app(service)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            try:
                return await work(app, client)
            finally:
                await service.stop()

    return asyncio.run(run())


@pytest.mark.parametrize("path", ["/broken", "/v1/broken"])
def test_an_unexpected_failure_names_the_request(tmp_path: Path, path: str) -> None:
    async def broken() -> None:
        raise RuntimeError("private details")

    async def ask(app: Any, client: httpx.AsyncClient) -> httpx.Response:
        from mint.service.api.routes.openai import OpenAIRoute

        app.router.add_api_route("/broken", broken)
        app.router.add_api_route("/v1/broken", broken, route_class_override=OpenAIRoute)
        return await client.get(path, headers={"x-request-id": "trace-19"})

    answer = in_process(Settings(home=tmp_path), ask)
    assert answer.status_code == 500
    assert answer.headers["x-request-id"] == "trace-19"
    assert "trace-19" in answer.text
    assert "private details" not in answer.text


def test_ready_means_that_the_models_are_loaded(tmp_path: Path, tiny_model: Path) -> None:
    async def ask(app: Any, client: httpx.AsyncClient) -> list[tuple[int, str]]:
        answers = [await client.get("/readyz")]
        await app.state.service.preload()
        answers.append(await client.get("/readyz"))
        return [(answer.status_code, answer.json()["status"]) for answer in answers]

    settings = Settings(home=tmp_path, models=(MODEL,), aliases={MODEL: tiny_model})
    assert in_process(settings, ask) == [(503, "loading"), (200, "ready")]
