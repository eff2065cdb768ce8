"""Sessions of unmodified clients as they went over the wire, in ``recorded/``, to be replayed.

``make recordings`` records them again. That is needed only for a new client: the replay must find a
service that answers an old client differently than before. A recording is a file of JSON lines,
each a request and its answer. Bodies that are not JSON are base64. Keys, tokens, addresses and
folders of the machine are replaced; telemetry and polls without a result are left out.
"""

from __future__ import annotations

import base64
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from tinker.proto import response_conv

from mint.service.access.auth import create_key
from mint.service.store.database import Store
from mint.service.wire.codec import JSON, PROTOBUF
from tests.service_fixture import LiveService, start_service
from tests.tiny import build_model

from .environments import CLIENTS, Client
from .proxy import Exchange, proxy_to

FOLDER = Path(__file__).parent / "recorded"
PUBLIC_NAME = "Qwen/Qwen3-8B"
KEY, TOKEN, SERVICE = "KEY", "TOKEN", "http://service"
SCENARIOS = (
    *("models", "samples", "a_bad_batch", "a_taken_name", "an_unknown_model", "resume"),
    *("frozen_samplers", "scores_of_a_prompt", "book_keeping", "mint_extras"),
)
LEFT_OUT = ("/telemetry", "/session_heartbeat")
KEPT_HEADERS = {
    *("content-type", "content-encoding", "x-api-key", "x-idempotency-key"),
    "x-stainless-package-version",
}
PENDING = 408
ERRORS = {"detail", "error"}
NAMES = {"session_id", "model_id", "request_id", "sampling_session_id", "path", "jwt"}
"""Fields whose values the service chooses: those of a replay stand for the recorded ones."""
CHANGING = {
    *("created_at", "expires_at", "last_request_time", "checkpoint_time", "last_seen", "time"),
    *("size_bytes", "tokenizer_id", "sample_sequence_ids", "cursor", "sequences"),
    *("detail", "error"),  # texts are for people, who want better ones
}
"""Fields whose values may differ; they must be of the same type."""


@dataclass(frozen=True)
class Step:
    """One request of a client and the answer that it got."""

    method: str
    path: str
    headers: dict[str, str]
    request: Any
    status: int
    type: str
    answer: Any

    @property
    def endpoint(self) -> str:
        return self.path.partition("?")[0].removeprefix("/api/v1")


def load(client: Client) -> list[Step]:
    lines = (FOLDER / f"{client.name}.jsonl").read_text().splitlines()
    return [Step(**json.loads(line)) for line in lines]


# ---- recording -----------------------------------------------------------------------------------


def opened(body: bytes, encoding: str | None) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(body) if encoding else body


def readable(body: bytes, content_type: str) -> Any:
    """A body as a recording has it."""
    if not body:
        return None
    return json.loads(body) if content_type.startswith(JSON) else base64.b64encode(body).decode()


def without_places(answer: Any) -> Any:
    """An answer without what the machine has: other models, and the list after an error's text."""
    if isinstance(answer, dict) and "supported_models" in answer:
        models = [its for its in answer["supported_models"] if its["model_name"] == PUBLIC_NAME]
        return {**answer, "supported_models": models}
    if isinstance(answer, dict):
        errors = {key: answer[key].partition("\n")[0] for key in answer.keys() & ERRORS}
        return {**answer, **errors}
    return answer


def step_of(exchange: Exchange, clean: Callable[[str], str]) -> Step:
    headers = {k: v for k, v in exchange.request_headers.items() if k in KEPT_HEADERS}
    sent = opened(exchange.request, headers.get("content-encoding"))
    content_type = exchange.content_type.partition(";")[0]
    step = {
        "method": exchange.method,
        "path": exchange.path,
        "headers": headers,
        "request": readable(sent, headers.get("content-type", JSON)),
        "status": exchange.status,
        "type": content_type,
        "answer": without_places(readable(exchange.answer, content_type)),
    }
    return Step(**json.loads(clean(json.dumps(step))))


def new_keys(home: Path) -> dict[str, str]:
    """A key for each client, of a user of its own, so that it lists nothing of the others."""
    store = Store(f"sqlite:///{home / 'mint.db'}", home)
    store.migrate()
    prefixes = {client.name: client.key.partition("-")[0] + "-" for client in CLIENTS}
    keys = {name: create_key(store, name, name, prefix=its) for name, its in prefixes.items()}
    store.close()
    return keys


def record(client: Client, service: LiveService, key: str, folder: Path) -> list[Step]:
    with proxy_to(service.base_url) as wire:
        arguments = [client.module, wire.base_url, wire.base_url, *SCENARIOS]
        printed = client.run("client.py", *arguments, folder=folder, TINKER_API_KEY=key)
    outcomes = json.loads(printed.splitlines()[-1])
    assert not [name for name, outcome in outcomes.items() if "failed" in outcome], outcomes
    tokens = {e.answered["jwt"] for e in wire.to("/auth/token")}

    def clean(text: str) -> str:
        for secret, shown in [(key, KEY), *((token, TOKEN) for token in tokens)]:
            text = text.replace(secret, shown)
        text = re.sub(r'"tokenizer_id": "[^"]*"', '"tokenizer_id": "FOLDER"', text)
        return re.sub(r"http://127\.0\.0\.1:\d+", SERVICE, text)

    kept = [e for e in wire.exchanges if e.endpoint not in LEFT_OUT and e.status != PENDING]
    return [step_of(exchange, clean) for exchange in kept]


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = build_model(folder / PUBLIC_NAME)
        keys = new_keys(folder / "home")
        service = start_service(folder / "home", None, aliases={PUBLIC_NAME: model})
        try:
            for client in CLIENTS:
                steps = record(client, service, keys[client.name], folder)
                lines = [json.dumps(vars(step), separators=(",", ":")) for step in steps]
                (FOLDER / f"{client.name}.jsonl").write_text("\n".join(lines) + "\n")
                print(f"{client.name}: {len(steps)} requests")
        finally:
            service.stop()


# ---- replaying -----------------------------------------------------------------------------------


@dataclass
class Replay:
    """Sends what a client sent, in its order, and compares the answers with those it got."""

    base_url: str
    key: str
    names: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    """What each request id is the result of."""

    def __post_init__(self) -> None:
        self.names = {KEY: self.key, SERVICE: self.base_url}
        self.http = httpx.Client(base_url=self.base_url, timeout=60)

    def play(self, steps: list[Step]) -> Iterator[str]:
        """Yield a line for each difference."""
        for number, step in enumerate(steps, 1):
            answer = self._send(step)
            where = f"request {number}, {step.method} {step.path}"
            content_type = answer.headers.get("content-type", "").partition(";")[0]
            if (answer.status_code, content_type) != (step.status, step.type):
                yield f"{where}: {answer.status_code} {content_type}, not {step.status} {step.type}"
                continue
            before = step.answer
            now = without_places(readable(answer.content, content_type))
            self._learn(before, now)
            if isinstance(before, dict) and "request_id" in before:
                self.kinds[before["request_id"]] = step.endpoint
            if content_type == PROTOBUF:
                kind = self.kinds[step.request["request_id"]]
                before, now = decoded(before, kind), decoded(now, kind)
            now = json.loads(self._translate(json.dumps(now), back=True))
            before = json.loads(json.dumps(before))
            yield from (f"{where}: {line}" for line in differences(before, now))

    def _send(self, step: Step) -> httpx.Response:
        headers = {k: self._translate(v) for k, v in step.headers.items()}
        if isinstance(step.request, str):
            content = base64.b64decode(step.request)
            for before, now in self.names.items():
                if len(before) == len(
                    now
                ):  # ids of sessions: the lengths in the message stay right
                    content = content.replace(before.encode(), now.encode())
        else:
            content = b"" if step.request is None else json.dumps(step.request).encode()
            content = self._translate(content.decode()).encode()
        if "content-encoding" in headers:
            content = zstandard.ZstdCompressor().compress(content)
        while True:
            path = self._translate(step.path)
            answer = self.http.request(step.method, path, content=content, headers=headers)
            if answer.status_code != PENDING:
                return answer

    def _learn(self, before: Any, now: Any) -> None:
        if isinstance(before, dict) and isinstance(now, dict):
            for key in before.keys() & now.keys():
                if key in NAMES and isinstance(before[key], str) and before[key] != now[key]:
                    self.names.setdefault(before[key], now[key])
                self._learn(before[key], now[key])

    def _translate(self, text: str, back: bool = False) -> str:
        """Put this replay's names in the place of the recorded ones, or the other way round."""
        for before, now in sorted(self.names.items(), key=lambda pair: -len(pair[0])):
            text = text.replace(now, before) if back else text.replace(before, now)
        return text


def decoded(body: str, kind: str) -> Any:
    """What the client makes of a protobuf answer."""
    content = base64.b64decode(body)
    if kind == "/asample":
        response = response_conv.deserialize_sample_response(content)
        return {
            "sequences": [[list(s.tokens), list(s.logprobs)] for s in response.sequences],
            "prompt_logprobs": response.prompt_logprobs,
            "topk_prompt_logprobs": response.topk_prompt_logprobs,
        }
    output = response_conv.deserialize_forward_backward_output(content)
    records = [
        {name: tensor.to_numpy().tolist() for name, tensor in record.items()}
        for record in output.loss_fn_outputs
    ]
    return {"metrics": dict(output.metrics), "outputs": records}


def differences(before: Any, now: Any, at: str = "the answer") -> Iterator[str]:
    """Yield how an answer differs from a recorded one."""
    if isinstance(before, dict) and isinstance(now, dict):
        if missing := before.keys() - now.keys():
            yield f"{at} has no {sorted(missing)}"
        for key in before.keys() & now.keys():
            if key in CHANGING:
                if type(before[key]) is not type(now[key]):
                    yield f"{at}.{key} is {now[key]!r:.80}, not {before[key]!r:.80}"
            else:
                yield from differences(before[key], now[key], f"{at}.{key}")
    elif isinstance(before, list) and isinstance(now, list):
        if len(before) != len(now):
            yield f"{at} has {len(now)} parts, not {len(before)}"
        for index, (one, other) in enumerate(zip(before, now, strict=False)):
            yield from differences(one, other, f"{at}[{index}]")
    elif isinstance(before, float) and isinstance(now, float):
        if now != pytest.approx(before, rel=1e-3, abs=1e-3):
            yield f"{at} is {now}, not {before}"
    elif before != now or type(before) is not type(now):
        yield f"{at} is {now!r:.200}, not {before!r:.200}"


if __name__ == "__main__":
    main()
