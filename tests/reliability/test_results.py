"""Results that nobody retrieves are bounded: in memory, then on disk, then the oldest are gone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tinker.proto import tinker_public_pb2 as wire

from mint.service import results
from mint.service.access.auth import create_key
from mint.service.futures import Future, Futures, Response
from tests.reliability.local import Local, with_service
from tests.service_fixture import MODEL

PROMPT = list(range(200))
SIZE = len(PROMPT) * 20 * 8  # of the top 20 logprobs of a prompt, and a bit more


async def ask(local: Local, user: str, count: int) -> list[tuple[str, dict[str, str]]]:
    """Let a new key sample with top-k logprobs; return the request ids once all are done."""
    headers = {"X-API-Key": create_key(local.service.store, user, user)}
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


def test_beyond_the_bound_on_disk_the_oldest_of_who_has_the_most_are_gone(
    tiny_model: Path, tmp_path: Path
) -> None:
    async def work(local: Local) -> None:
        one = await ask(local, "bob", 1)
        many = await ask(local, "ada", 30)
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
