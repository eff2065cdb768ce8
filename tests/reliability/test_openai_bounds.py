"""Answers of the OpenAI API are bounded, and so is output that clients have not read."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from mint.engine.messages import SampledToken
from mint.service.access.auth import create_key
from mint.service.api.app import create_app
from mint.service.errors import ApiError
from mint.service.results import Share
from tests.reliability.local import Local, with_service
from tests.service_fixture import MODEL

LIMIT = 1_000_000
LARGE = {"model": MODEL, "prompt": "ab", "n": 32, "max_tokens": 200, "logprobs": 5}


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        ("completions", {"prompt": ["ab"] * 32, "n": 128, "max_tokens": 100, "logprobs": 5}),
        ("completions", {"prompt": ["a" * 200] * 32, "n": 128, "logprobs": 1, "echo": True}),
        (
            "chat/completions",
            {"n": 128, "logprobs": True, "top_logprobs": 20}
            | {"messages": [{"role": "user", "content": "Hello"}]},
        ),
    ],
    ids=["completions", "echo", "chat"],
)
def test_an_answer_with_too_many_logprobs_is_refused_at_once(
    service: str, route: str, fields: dict[str, Any]
) -> None:
    answer = httpx.post(f"{service}/v1/{route}", json={"model": MODEL, **fields}, timeout=60)
    assert answer.status_code == 400
    assert "an answer has at most 524,288" in answer.json()["error"]["message"]
    assert "Lower max_tokens, n or the number of logprobs" in answer.json()["error"]["message"]


class StalledClient:
    """A client that reads the beginning of an answer, and the rest on request."""

    def __init__(self, local: Local, key: str) -> None:
        self.began, self.may_read, self.chunks = asyncio.Event(), asyncio.Event(), list[bytes]()
        self.leaves = asyncio.Event()
        body = json.dumps({**LARGE, "stream": True}).encode()
        path = "/v1/completions"
        scope: dict[str, Any] = {"type": "http", "method": "POST", "query_string": b""}
        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        headers.append((b"x-api-key", key.encode()))
        scope |= {"path": path, "raw_path": path.encode(), "headers": headers, "client": None}
        sent = [{"type": "http.request", "body": body}]

        async def receive() -> Any:
            if sent:
                return sent.pop()
            await self.leaves.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.began.set()
            await self.may_read.wait()
            self.chunks.append(message.get("body", b""))

        self.task = asyncio.create_task(create_app(local.service)(scope, receive, send))


def test_a_stream_that_is_not_read_ends_and_others_continue(
    tmp_path: Path, tiny_model: Path
) -> None:
    async def work(local: Local) -> None:
        service = local.service
        service.unsent = unsent = Share(LIMIT)
        ada, bob = (create_key(service.store, name, name) for name in ("ada", "bob"))
        stalled = StalledClient(local, ada)
        await stalled.began.wait()
        answer = await local.http.post(
            "/v1/completions",
            json={**LARGE, "n": 2, "stream": True},
            headers={"X-API-Key": bob},
            timeout=60,
        )
        assert '"error"' not in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")
        while service.samplers.in_progress:
            assert unsent.total < LIMIT
            await asyncio.sleep(0)
        assert unsent.of("bob") == 0
        stalled.may_read.set()
        await stalled.task
        *_, error, done = [line for line in b"".join(stalled.chunks).split(b"\n\n") if line]
        assert b"Read streams without pauses" in error
        assert done == b"data: [DONE]"
        assert unsent.total == 0

    with_service(tmp_path, work, aliases={MODEL: tiny_model}, precision="exact")


def test_a_stream_whose_client_leaves_holds_nothing(tmp_path: Path, tiny_model: Path) -> None:
    async def work(local: Local) -> None:
        service = local.service
        stalled = StalledClient(local, "tml-test")
        await stalled.began.wait()
        while service.unsent.total < LIMIT:
            await asyncio.sleep(0)
        stalled.leaves.set()
        await stalled.task
        while service.samplers.in_progress or service.unsent.total:
            await asyncio.sleep(0)

    with_service(tmp_path, work, aliases={MODEL: tiny_model}, precision="exact")


def test_tokens_that_arrive_after_a_stream_has_ended_are_not_counted(
    tmp_path: Path, tiny_model: Path
) -> None:
    """The engine may have reported them before the sample was cancelled."""

    async def work(local: Local) -> None:
        samplers, listening = local.service.samplers, []
        sample = samplers.sample

        async def sample_and_note(sampler: Any, request: Any, on_tokens: Any = None) -> Any:
            listening.append(on_tokens)
            return await sample(sampler, request, on_tokens)

        samplers.sample = sample_and_note  # type: ignore[method-assign]
        stalled = StalledClient(local, "tml-test")
        await stalled.began.wait()
        stalled.leaves.set()
        await stalled.task
        while samplers.in_progress or local.service.unsent.total:
            await asyncio.sleep(0)
        with pytest.raises(ApiError):
            listening[0]([SampledToken(0, 97, -1.0, [])] * 100)  # more than an incomplete character
        assert local.service.unsent.total == 0

    with_service(tmp_path, work, aliases={MODEL: tiny_model}, precision="exact")


def test_answers_that_are_not_read_have_a_bound(tmp_path: Path, tiny_model: Path) -> None:
    async def work(local: Local) -> None:
        service = local.service
        service.unsent = unsent = Share(LIMIT)
        unsent.add("local", LIMIT)
        refused = await local.http.post("/v1/completions", json=LARGE)
        assert refused.status_code == 429
        unsent.add("local", -LIMIT)
        answer = await local.http.post("/v1/completions", json={**LARGE, "n": 2}, timeout=60)
        assert len(answer.json()["choices"]) == 2
        assert unsent.total == 0

    with_service(tmp_path, work, aliases={MODEL: tiny_model}, precision="exact")
