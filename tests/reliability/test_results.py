"""Results that are not retrieved are bounded: first in memory, then on disk, then dropped."""

from __future__ import annotations

import asyncio
import itertools
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tinker.proto import tinker_public_pb2 as wire

from mint.service import results
from mint.service.access.auth import LOCAL_USER, create_key
from mint.service.api.app import create_app
from mint.service.api.pieces import PIECE
from mint.service.futures import Future, Futures, Response
from mint.service.results import write_body
from tests.reliability.local import Local, with_service
from tests.service_fixture import MODEL

PROMPT = list(range(200))
SIZE = len(PROMPT) * 20 * 8  # of the top 20 logprobs of a prompt, and a bit more


async def ask(
    local: Local, user: str, count: int, key: str | None = None
) -> list[tuple[str, dict[str, str]]]:
    """Let a key sample with top-k logprobs; return the request ids once all are done."""
    headers = {"X-API-Key": key or create_key(local.service.store, user, user)}
    body: dict[str, Any] = {"session_id": await local.session(headers=headers)}
    body |= {"sampling_session_seq_id": 0, "base_model": MODEL}
    made = await local.post("/create_sampling_session", body, headers=headers)
    sampler = made.json()["sampling_session_id"]
    asked = []
    for number in range(count):
        sample = {
            "sampling_session_id": sampler,
            "seq_id": number,
            "num_samples": 1,
            "prompt": {"chunks": [{"tokens": PROMPT}]},
            "sampling_params": {"max_tokens": 1},
            "prompt_logprobs": True,
            "topk_prompt_logprobs": 20,
        }
        answer = await local.post("/asample", sample, headers=headers)
        asked.append(answer.json()["request_id"])
    for request_id in asked:
        future = local.service.futures.find(request_id, user)
        assert future is None or await future.wait(120) is not None
    if (moving := local.service.futures._moving) is not None:
        await moving
    return [(request_id, headers) for request_id in asked]


async def statuses(local: Local, asked: list[tuple[str, dict[str, str]]]) -> list[int]:
    found = []
    for request_id, headers in asked:
        question = {"request_id": request_id}
        answer = await local.post("/retrieve_future", question, headers=headers)
        found.append(answer.status_code)
        if answer.status_code == 200:
            response = wire.SampleResponse.FromString(answer.content)
            assert response.topk_prompt_logprobs.length == len(PROMPT), "the whole result"
    return found


def files(home: Path) -> list[Path]:
    return [file for file in home.glob("results/*/*") if file.is_file()]


def test_unretrieved_results_move_to_disk_and_come_back_whole(
    tiny_model: Path, tmp_path: Path
) -> None:
    async def work(local: Local) -> None:
        asked = await ask(local, "ada", 30)
        assert 0 < local.service.futures.in_memory.bytes.total <= 4 * SIZE
        assert local.service.futures.on_disk.bytes.total >= 26 * SIZE
        assert len(files(tmp_path)) >= 26
        assert await statuses(local, asked) == [200] * 30
        for request_id, _ in asked:
            local.service.futures.forget(request_id, "ada")
        assert files(tmp_path) == []

    settings = {"max_result_bytes": 5 * SIZE, "aliases": {MODEL: tiny_model}}
    with_service(tmp_path, work, **settings)


def test_beyond_the_bound_on_disk_the_largest_users_oldest_results_are_dropped(
    tiny_model: Path, tmp_path: Path
) -> None:
    async def work(local: Local) -> None:
        bob, ada = (create_key(local.service.store, user, user) for user in ("bob", "ada"))
        one = await ask(local, "bob", 1, bob)  # the service reads the keys now, and then not often
        many = await ask(local, "ada", 30, ada)
        futures = local.service.futures
        assert futures.in_memory.bytes.total + futures.on_disk.bytes.total <= 15 * (SIZE + 2000)
        found = await statuses(local, many)
        assert found == [410] * found.count(410) + [200] * found.count(200)
        assert found.count(200) >= 5
        assert await statuses(local, one) == [200]

    bounds = {"max_result_bytes": 5 * SIZE, "max_stored_result_bytes": 10 * SIZE}
    with_service(tmp_path, work, aliases={MODEL: tiny_model}, **bounds)


def test_the_number_of_results_is_bounded_and_retrieved_ones_go_first(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("mint.service.futures.MAX_RESULTS", 10)
    assert results.MAX_RESULTS >= 20_000, "more than may be in progress"

    async def work() -> list[Future | None]:
        futures = Futures(3600, 2**20, 2**20, tmp_path)
        for number in range(8):
            futures.open(f"s:{number}", "ada")
            futures.finish(f"s:{number}", Response.json({}))
        seventh = futures.find("s:7", "ada")
        assert seventh is not None
        futures.retrieved(seventh)
        futures.open("s:8", "ada")
        futures.finish("s:8", Response.json({}))
        return [futures.find(f"s:{number}", "ada") for number in range(9)]

    assert [found is not None for found in asyncio.run(work())] == [True] * 7 + [False, True]


@pytest.mark.parametrize("memory", [0, 2**30], ids=["on disk", "in memory"])
def test_a_client_that_does_not_read_holds_one_piece_of_a_large_result(
    tmp_path: Path, memory: int
) -> None:
    """The server copies what it is given, for each of the connections that ask for a result."""
    body = bytes(range(256)) * (5 * PIECE // 256) + b"end"

    async def work(local: Local) -> None:
        futures = local.service.futures
        future = futures.open("s:sample:1:0", LOCAL_USER)
        futures.finish(future.request_id, Response(body, "application/x-protobuf"))
        if futures._moving is not None:
            await futures._moving
        assert (future.file is None) == (memory > 0)
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        question = iter([{"type": "http.request", "body": b'{"request_id": "s:sample:1:0"}'}])

        async def receive() -> Any:
            return next(question)

        path = "/api/v1/retrieve_future"
        scope: dict[str, Any] = {"type": "http", "method": "POST", "query_string": b""}
        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope |= {"path": path, "raw_path": path.encode(), "headers": headers, "client": None}
        await create_app(local.service)(scope, receive, send)
        start, *pieces = sent
        assert start["status"] == 200
        assert (b"content-length", str(len(body)).encode()) in start["headers"]
        assert max(len(piece["body"]) for piece in pieces) == PIECE
        assert b"".join(piece["body"] for piece in pieces) == body
        assert [piece["more_body"] for piece in pieces] == [True] * 5 + [False]

    with_service(tmp_path, work, max_result_bytes=memory)


@pytest.mark.parametrize("line", range(4))
def test_a_result_that_moves_to_disk_while_it_is_read_is_whole(tmp_path: Path, line: int) -> None:
    """Snapshots read results in a thread. The body moves before a line of the reader."""
    whole = Response(b"body")
    moved = replace(whole, body=b"")
    future = Future("run:1", "ada", answer=whole)
    lines = itertools.count()

    def move(frame: FrameType, kind: str, _: Any) -> Any:
        if frame.f_code is Future.read.__code__ and kind == "line" and next(lines) == line:
            future.file, future.answer = write_body(tmp_path, whole.body), moved
        return move

    before = sys.gettrace()
    sys.settrace(move)
    try:
        found = future.read()
    finally:
        sys.settrace(before)
    assert found == whole
