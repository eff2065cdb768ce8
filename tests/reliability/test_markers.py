"""Marked keys, prompts and queries through every route: neither the log nor an error has them.

The routes and bodies are those of the isolation matrix, which fails for a route that it lacks.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mint.service.access.auth import create_key
from mint.service.errors import EngineDied
from tests.reliability.local import Local, with_service
from tests.reliability.test_isolation import CHECKPOINT, LISTS, OF_OBJECTS, PATH, fill, routes
from tests.service_fixture import MODEL

KEY, QUERY, PROMPT = "k3y-m4rk", "qu3ry-m4rk", "pr0mpt-m4rk"
VALUE = "v4lue-m4rk"  # of another field, such as a name, which an error may repeat
EXTRA = {
    "prompt": PROMPT,
    "messages": [{"role": "user", "content": PROMPT}],
    "tags": [PROMPT],
    "user_metadata": {"a": PROMPT},
    "stop": [PROMPT],
    "detail": PROMPT,
    "forward_backward_input": {"data": [{"model_input": PROMPT}], "loss_fn": "cross_entropy"},
    "data": [{"student_input": PROMPT}],
}
"""Fields with content, some of the wrong type; each is added to a body that lacks it or has it."""


def bodies(body: Any) -> Iterator[Any]:
    """A body with each field of content, and with each of its own values of a wrong type."""
    yield body
    yield PROMPT
    yield {PROMPT: PROMPT}
    for field, content in EXTRA.items():
        for wrong in (content, PROMPT, {"chunks": PROMPT}, [[PROMPT]]):
            yield {**(body or {}), field: wrong}
    for field in body or {}:
        yield {**body, field: [VALUE]}
        yield {**body, field: {"a": VALUE}}


async def send(local: Local, method: str, url: str, body: Any, key: str) -> httpx.Response:
    headers = {"X-API-Key": key, "Authorization": f"Bearer {KEY}"}
    options = {"params": {"q": QUERY, "limit": QUERY}} if method == "get" else {"json": body}
    return await local.http.request(method.upper(), url, headers=headers, **options)


@pytest.mark.slow
def test_no_marker_reaches_the_log_or_an_error(
    tmp_path: Path, tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(local: Local) -> list[tuple[int, str]]:
        fill(local)
        answers = []
        own = create_key(local.service.store, "own", "ada")
        for method, route in sorted(routes(local)):
            if method == "delete":
                continue  # has no body, and would take the objects of the others away
            url, body = OF_OBJECTS.get((method, route), (route, LISTS.get((method, route), {})))
            for sent in bodies(body):
                for key in (KEY, own):
                    answer = await send(local, method, url or route, sent, key)
                    answers.append((answer.status_code, answer.text))
        base = {"model": MODEL, "max_tokens": 2}
        for route, sent in (
            ("/v1/completions", {**base, "prompt": f"{PROMPT} a"}),
            ("/v1/chat/completions", {**base, "messages": EXTRA["messages"], "stop": [PROMPT]}),
        ):
            answer = await send(local, "post", route, sent, own)
            assert answer.status_code == 200, answer.text
        await send(local, "delete", CHECKPOINT, None, KEY)
        return answers

    with caplog.at_level(logging.DEBUG):
        answers = with_service(tmp_path, work, aliases={MODEL: tiny_model}, precision="exact")
    errors = [text for status, text in answers if status >= 400]
    assert len(errors) > 1000
    lines = [
        caplog.handler.format(record)
        for record in caplog.records
        if not record.name.startswith("http")  # the client's own
    ]
    logged = "\n".join([*lines, *(file.read_text() for file in tmp_path.glob("logs/*"))])
    assert "/v1/completions" in logged
    for marker in (KEY, QUERY, PROMPT, VALUE):
        assert [line for line in logged.splitlines() if marker in line] == []
    for marker in (KEY, PROMPT):
        assert [text for text in errors if marker in text] == []


def test_no_folder_of_the_machine_is_in_an_error_beyond_it(
    tmp_path: Path, tiny_model: Path
) -> None:
    """An unknown model, a folder that is gone, a disk that fails, an engine that dies."""

    async def work(local: Local) -> list[str]:
        key = {"X-API-Key": create_key(local.service.store, "ada", "ada")}
        texts = []
        for model in ("gone/model", "no/such-model", str(tiny_model), PATH):
            body = {"model": model, "prompt": "a"}
            answer = await local.http.post("/v1/completions", json=body, headers=key)
            assert answer.status_code == 404
            texts.append(answer.text)
        body = {"model": MODEL, "prompt": "a", "max_tokens": 1}
        assert (await local.http.post("/v1/completions", json=body, headers=key)).status_code == 200
        [engine] = local.service.engines.loaded()
        engine.kill()
        await asyncio.wait([engine._read_task])
        with pytest.raises(EngineDied) as died:
            await engine.call("memory")
        texts.append(str(died.value))
        uploads = tmp_path / "home" / "uploads"
        uploads.write_text("a file where a folder belongs")
        answer = await local.http.post(
            "/api/v1/checkpoints/upload", files={"file": b"x"}, headers=key
        )
        assert answer.status_code == 503, answer.text
        return [*texts, answer.text]

    aliases = {MODEL: tiny_model, "gone/model": tmp_path / "gone"}
    texts = with_service(
        tmp_path / "home", work, host="0.0.0.0", aliases=aliases, precision="exact"
    )
    for text in texts:
        assert str(tmp_path) not in text, text
        assert str(Path.home()) not in text, text
    assert "logs/engine-tiny--llama.log in the home folder" in texts[4]
    assert json.loads(texts[5])["detail"].endswith("(uploads).")
