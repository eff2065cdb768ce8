"""Requests that arrive slowly, never, or too many at once hold neither connections nor memory."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mint.service.access.auth import create_key
from tests.reliability.local import Local, with_service
from tests.service_fixture import MODEL, LiveService, RawClient, start_service

POST = b"POST /api/v1/create_session HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: tml-test\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture(scope="module")
def impatient(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    """A service on which a request must arrive within a second, and polls take longer."""
    folder = tmp_path_factory.mktemp("impatient")
    service = start_service(folder, tiny_model, request_limit_s=1.0, long_poll_s=1.5)
    yield service
    service.stop()


def answer_to(service: LiveService, sent: bytes) -> bytes:
    """Send something, and return what comes until the service closes the connection."""
    with socket.create_connection(("127.0.0.1", service.port)) as connection:
        connection.settimeout(60)
        connection.sendall(sent)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize("sent", [b"", GET], ids=["nothing", "half"])
def test_a_connection_without_whole_headers_is_closed(impatient: LiveService, sent: bytes) -> None:
    assert answer_to(impatient, sent) == b""


def test_a_body_that_does_not_arrive_is_refused(impatient: LiveService) -> None:
    unfinished = POST + b"Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{"
    answer = answer_to(impatient, unfinished)
    assert b" 408 " in answer.splitlines()[0]
    assert b"did not arrive" in answer


@pytest.mark.parametrize(
    ("sent", "status"),
    [(GET + b"X-Slow: ", b""), (POST + b"Content-Length: 100\r\n\r\n{", b" 408 ")],
    ids=["headers", "body"],
)
def test_a_request_that_arrives_byte_by_byte_is_refused(
    impatient: LiveService, sent: bytes, status: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", impatient.port)) as connection:
        connection.sendall(sent)
        connection.settimeout(0.2)
        answer = None
        for _ in range(50):
            with contextlib.suppress(TimeoutError):
                answer = connection.recv(65536)
                break
            connection.sendall(b"x")
    assert answer is not None, "the service has waited ten times as long as it may"
    assert status in answer


def test_an_answer_may_take_longer_than_a_request(impatient: LiveService) -> None:
    raw = RawClient(impatient.base_url)
    waiting = raw.operate("optim_step", raw.run(), 2)  # for a number that does not come
    answer = raw.post("/retrieve_future", {"request_id": waiting})
    assert (answer.status_code, answer.json()["type"]) == (408, "try_again")


@pytest.mark.slow
def test_a_service_that_runs_out_of_file_handles_keeps_running(
    tiny_model: Path, tmp_path: Path
) -> None:
    """A crowd of connections takes all of them; an open run trains, and the rest is retried."""
    handles = 160
    within = ("prlimit", f"--nofile={handles}:{handles}")
    service = start_service(tmp_path, tiny_model, within=within, request_limit_s=2.0)
    folder = Path(f"/proc/{service.process.pid}/fd")
    with contextlib.ExitStack() as stack:
        stack.callback(service.stop)
        raw = RawClient(service.base_url)
        run = raw.run()
        assert "metrics" in raw.result(raw.operate("optim_step", run, 1))
        for _ in range(2 * handles):
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
        while len(list(folder.iterdir())) < handles:
            assert raw.http.get("/healthz").status_code == 200
        assert "metrics" in raw.result(raw.operate("optim_step", run, 2))
        answers = [raw.post("/create_session") for _ in range(5)]
        assert {answer.status_code for answer in answers} <= {200, 503}
        while len(list(folder.iterdir())) > handles // 2:  # the crowd is sent away
            assert raw.http.get("/healthz").status_code == 200
        assert "metrics" in raw.result(raw.operate("optim_step", raw.run(), 1))


JSON = {"content-type": "application/json"}


def test_bodies_that_arrive_together_have_a_bound_and_later_ones_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mint.service.api.app.machine_budget", lambda: 1_000_000)
    sent, may_end = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"tags": ["' + b"a" * 800_000
        sent.set()
        await may_end.wait()
        yield b'"]}'

    async def work(local: Local) -> None:
        url = "/api/v1/create_session"
        first = asyncio.create_task(local.http.post(url, content=slowly(), headers=JSON))
        await sent.wait()
        second = b'{"tags": ["' + b"a" * 800_000 + b'"]}'
        refused = await local.http.post(url, content=second, headers=JSON)
        assert refused.status_code == 429, refused.text
        assert await local.session()
        may_end.set()
        expected = (await first).status_code
        assert expected != 429
        assert (await local.http.post(url, content=second, headers=JSON)).status_code == expected

    with_service(tmp_path, work)


def test_json_is_refused_before_all_of_it_is_in_memory(tmp_path: Path) -> None:
    sent = []

    async def large() -> AsyncIterator[bytes]:
        for number in range(100):
            sent.append(number)
            yield b" " * (1 << 20)

    async def work(local: Local) -> int:
        url = "/api/v1/create_session"
        return (await local.http.post(url, content=large(), headers=JSON)).status_code

    assert with_service(tmp_path, work) == 413
    assert len(sent) < 20


@pytest.mark.parametrize("is_full", [False, True], ids=["quota", "disk"])
def test_an_upload_stops_at_the_quota_or_before_the_disk_is_full(
    tmp_path: Path, is_full: bool
) -> None:
    sent = []

    async def form() -> AsyncIterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for number in range(60):
            sent.append(number)
            yield bytes(1 << 20)

    async def work(local: Local) -> httpx.Response:
        key = create_key(local.service.store, "laptop", "ada", quota={"bytes": 1_000_000})
        headers = {"X-API-Key": key, "content-type": "multipart/form-data; boundary=b"}
        return await local.post("/checkpoints/upload", content=form(), headers=headers)

    reserve = 1 << 60 if is_full else 0
    answer = with_service(tmp_path, work, disk_reserve_bytes=reserve)
    assert answer.status_code == 400
    expected = "disk of the service is full" if is_full else "the quota is 1.0MB"
    assert expected in answer.json()["detail"]
    assert len(sent) < 20
    assert not list((tmp_path / "uploads").iterdir())


@pytest.mark.parametrize(
    ("route", "fields", "named"),
    [
        ("completions", {"stop": ["x"] * 101}, "stop: has 101 strings"),
        ("completions", {"logit_bias": {str(n): 1 for n in range(1025)}}, "has 1025 tokens"),
    ],
)
def test_what_costs_time_at_every_token_has_a_limit(
    service: str, route: str, fields: dict[str, Any], named: str
) -> None:
    body = {"model": MODEL, "prompt": "ab", "max_tokens": 1, **fields}
    answer = httpx.post(f"{service}/v1/{route}", json=body)
    assert answer.status_code == 400, answer.text
    assert named in answer.json()["error"]["message"]


def test_the_stop_strings_of_a_sample_have_a_limit(service: str) -> None:
    raw = RawClient(service)
    prompt = {"chunks": [{"tokens": [1, 2], "type": "encoded_text"}]}
    body = {"sampling_session_id": "none", "prompt": prompt}
    answer = raw.post("/asample", {**body, "sampling_params": {"stop": ["x"] * 101}})
    assert answer.status_code == 422
    assert "has 101 strings, and at most 100 are allowed" in answer.json()["detail"]
    answer = raw.post("/asample", {**body, "sampling_params": {"stop": list(range(101))}})
    assert answer.status_code == 404, "token ids are looked up"


def test_the_confirmed_results_of_a_request_have_a_limit(service: str) -> None:
    body = {"target": {"sampling_session_id": "none"}, "retrieved_request_ids": [""] * 100_001}
    answer = RawClient(service).post("/retrieve_futures", body)
    assert answer.status_code == 422
    assert "at most 100000 are confirmed" in answer.json()["detail"]
