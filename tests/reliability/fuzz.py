"""Mutated requests for every route: nothing may answer with 5xx. ``make fuzz`` sends many.

    python -m tests.reliability.fuzz --requests 20000 --seed 1

Routes, parameters and bodies come from the application's OpenAPI. Bodies name real objects of the
caller (a run, samplers, checkpoints), so that requests reach the code behind the checks, and are
then mutated: fields dropped, exchanged or added, bytes damaged, bodies packed with zstd and cut,
headers replaced.
The operations of a run take raw bodies; they get JSON and protobuf as the client sends them, and
both mutated.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard
from tinker.proto import request_conv
from tinker.types import ForwardBackwardInput, ForwardBackwardRequest

from mint.service.access.auth import create_key
from tests.reliability.local import Local, with_service
from tests.service.samples import batch, datum, forward, json_datum
from tests.service_fixture import MODEL
from tests.tiny import build_model

JUNK: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, 1e308, -1e308, 0.5, "", "a", "~nouser/x", "../../x",
    "\0", "é" * 50, "x" * 5000, [], {}, [[]], [None], {"": None}, [1] * 99, "1", "2026-01-01",
]  # fmt: skip
LITERALS = [b"NaN", b"1e999", b'"\\ud800"', b"\xff\xfe", b"[" * 3000, b"-0", b"{}{}", b"\0"]
IN_PATHS = ["%00", "..", "x" * 4000, "%ff%fe", "~", "%2e%2e%2f", "%2f", "-1", "weights/w"]
IN_HEADERS = {
    "Origin": ["http://[", "http://[::1", "null", "", "//", "http://a]b", "http://\u2100"],
    "Host": ["[", "[::1", "", "a/b", "a?b", ":", "x" * 5000],
    "Content-Type": [
        "",
        ";",
        "application/json; charset=\u2100",
        "multipart/form-data",
        "x" * 5000,
    ],
    "Content-Encoding": ["", "zstd, zstd", "ZSTD", "x" * 5000],
    "X-Request-Id": ["", "x" * 5000, "\u2100"],
    "X-Idempotency-Key": ["", "x" * 5000, "\u2100"],
    "Authorization": ["Bearer", "Bearer ", "Basic x", "x" * 5000, "\u2100"],
}
SHARES = {"JSON": 2, "protobuf": 20, "zstd": 10, "archive": 130, "odd header": 50}
"""Of how many requests at least one must have such a body or header."""
RAW = ("/forward_backward", "/forward")  # drawn more often: two encodings, large decoders
RESTOCK_AFTER = 1000
REVOKE = ("delete", "/api/v1/auth/apikey/me")
SETTINGS = {"long_poll_s": 0.05, "session_idle_s": 5.0, "gap_limit_s": 5.0}


@dataclass
class Stock:
    """Objects of the caller, by the names that fields and parameters give them."""

    local: Local
    headers: dict[str, str]
    ids: dict[str, list[Any]] = field(default_factory=dict)

    async def fill(self) -> None:
        """Make a session with a run, a sampler and checkpoints."""
        made = await self._post("/create_session", {"tags": []})
        session = made["session_id"]
        lora = {"rank": 2, "seed": 1}
        body = {"session_id": session, "model_seq_id": 0, "base_model": MODEL, "lora_config": lora}
        run = (await self._result("/create_model", body))["model_id"]
        await self._result("/forward_backward", {"model_id": run, "seq_id": 1, **batch()})
        await self._result("/optim_step", {"model_id": run, "seq_id": 2})
        paths = []
        for seq_id, kind in ((3, "save_weights"), (4, "save_weights_for_sampler")):
            saved = {"model_id": run, "seq_id": seq_id, "path": "w"}
            paths.append((await self._result(f"/{kind}", saved))["path"])
        body = {"session_id": session, "sampling_session_seq_id": 0, "base_model": MODEL}
        sampler = (await self._post("/create_sampling_session", body))["sampling_session_id"]
        self.ids = {
            "session_id": [session],
            "model_id": [run],
            "run_id": [run],
            "sampling_session_id": [sampler],
            "sampler_id": [sampler],
            "base_model": [MODEL],
            "model": [MODEL, paths[1]],
            "name": [MODEL, paths[1], "a.tar.gz"],
            "checkpoint_id": ["weights/w", "sampler_weights/w"],
            "request_id": [f"{run}:{n}" for n in range(6)],
            "path": ["w", paths[0]],
            "prompt": [{"chunks": [{"tokens": [1, 2, 3]}]}, "Hello"],
            "messages": [[{"role": "user", "content": "Hello"}]],
            "max_tokens": [1, 3],
        }
        for key in ("tinker_path", "source_path", "model_path", "reference_model_path"):
            self.ids[key] = paths
        self.ids["source_paths"] = [paths]

    async def _post(self, path: str, body: Any) -> Any:
        answer = await self.local.post(path, body, headers=self.headers)
        assert answer.status_code == 200, answer.text
        return answer.json() if "json" in answer.headers["content-type"] else {}

    async def _result(self, path: str, body: Any) -> Any:
        request_id = (await self._post(path, body))["request_id"]
        question = {"request_id": request_id}
        while True:
            answer = await self.local.post("/retrieve_future", question, headers=self.headers)
            if answer.status_code != 408:
                break
        assert b'"error"' not in answer.content, answer.text
        return await self._post("/retrieve_future", question)

    def operation(self, kind: str, rng: random.Random) -> dict[str, Any]:
        """The JSON of an operation, as clients send it."""
        address = {"model_id": self.ids["model_id"][0], "seq_id": rng.choice([5, 6, 7, None])}
        match kind:
            case "forward_backward":
                return address | batch(json_datum())
            case "forward":
                return address | forward(json_datum())
            case "optim_step":
                return address | {"adam_params": {"learning_rate": 0.01, "beta1": 0.9}}
            case "load_weights":
                return address | {"path": self.ids["path"][1], "optimizer": True}
            case "forward_backward_reverse_kl":
                prompt = self.ids["prompt"][0]
                tokens = {"data": [1, 2, 3], "dtype": "int64", "shape": [3]}
                pair = {"student_input": prompt, "reference_input": prompt, "target_tokens": tokens}
                reference = self.ids["reference_model_path"][1]
                return address | {"reference_model_path": reference, "data": [pair]}
        return address | {"path": rng.choice(["w", "x"]), "overwrite": True}

    def protobuf(self, rng: random.Random) -> bytes:
        """A forward_backward as the newest client sends it."""
        data = ForwardBackwardInput(data=[datum(rng.randrange(9))], loss_fn="cross_entropy")
        run, seq_id = self.ids["model_id"][0], rng.randrange(5, 9)
        request = ForwardBackwardRequest(forward_backward_input=data, model_id=run, seq_id=seq_id)
        return bytes(request_conv.forward_backward_request_to_proto(request).SerializeToString())


@dataclass
class Schemas:
    """Values that fit the schemas of the application's OpenAPI."""

    components: dict[str, Any]
    ids: Callable[[], dict[str, list[Any]]]
    rng: random.Random

    def value(self, schema: dict[str, Any], name: str = "") -> Any:
        if name in self.ids() and self.rng.random() < 0.9:
            return self.rng.choice(self.ids()[name])
        if "$ref" in schema:
            return self.value(self.components[schema["$ref"].rpartition("/")[2]], name)
        if options := schema.get("anyOf") or schema.get("oneOf"):
            return self.value(self.rng.choice(options), name)
        if options := schema.get("enum") or ([schema["const"]] if "const" in schema else None):
            return self.rng.choice(options)
        match schema.get("type"):
            case "object":
                return self._object(schema)
            case "array":
                few = self.rng.randrange(3)
                return [self.value(schema.get("items", {}), name) for _ in range(few)]
            case "integer":
                return self.rng.choice([0, 1, 2, schema.get("minimum", 3)])
            case "number":
                return self.rng.choice([0.0, 0.5, 1, schema.get("maximum", 0.1)])
            case "boolean":
                return self.rng.random() < 0.5
            case "string":
                return self.rng.choice(["a", "b", "2026-01-01T00:00:00Z"])
        return self.rng.choice(JUNK)

    def _object(self, schema: dict[str, Any]) -> dict[str, Any]:
        required = schema.get("required", ())
        return {
            key: self.value(its, key)
            for key, its in schema.get("properties", {}).items()
            if key in required or key in self.ids() or self.rng.random() < 0.5
        }


def mutated(value: Any, rng: random.Random) -> Any:
    """Return a JSON value with something changed in it, or in its place."""
    if rng.random() < 0.2 or not isinstance(value, dict | list) or not value:
        return rng.choice(JUNK)
    if isinstance(value, list):
        copy = list(value)
        copy[rng.randrange(len(copy))] = mutated(rng.choice(copy), rng)
        return copy
    result = dict(value)
    key = rng.choice(sorted(result))
    match rng.randrange(4):
        case 0:
            del result[key]
        case 1:
            result[rng.choice(["seq_id", "path", "model_id", "x" * 99])] = rng.choice(JUNK)
        case _:
            result[key] = mutated(result[key], rng)
    return result


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Return bytes with something flipped, cut out, put in or said twice."""
    at, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    match rng.randrange(4):
        case 0:
            flipped = bytes(byte ^ (1 << rng.randrange(8)) for byte in content[at : at + 2])
            return content[:at] + flipped + content[at + 2 :]
        case 1:
            return content[:at] + content[end:]
        case 2:
            return content[:at] + rng.choice([*LITERALS, rng.randbytes(9)]) + content[at:]
    return content[:end] + content[at:]


def encoded(headers: dict[str, str]) -> dict[bytes, bytes]:
    """Return headers as bytes, which may be no ASCII."""
    return {name.encode(): value.encode() for name, value in headers.items()}


def archive(rng: random.Random) -> tuple[bytes, dict[str, str]]:
    """A multipart upload of a packed checkpoint, damaged most of the time."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as files:
        for name in (
            "adapter_config.json",
            rng.choice(["adapter_model.safetensors", "../x", "/x"]),
        ):
            info = tarfile.TarInfo(name)
            info.size = 2
            files.addfile(info, io.BytesIO(b"{}"))
    content = packed.getvalue()
    if rng.random() < 0.7:
        content = damaged(content, rng)
    head = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    return head + content + b"\r\n--B--\r\n", {"content-type": "multipart/form-data; boundary=B"}


@dataclass
class Fuzzer:
    """Sends requests drawn from a seed and notes the answers."""

    local: Local
    rng: random.Random
    statuses: Counter[int] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    routes: set[str] = field(default_factory=set)
    reached: Counter[str] = field(default_factory=Counter)

    def require(self, count: int) -> None:
        """Raise AssertionError unless as much was sent as should have been, to every route."""
        assert self.statuses.total() == count, f"only {self.statuses.total()} requests were sent"
        assert self.statuses[200] >= count // 8, f"only {self.statuses[200]} passed the checks"
        for kind, share in SHARES.items():
            assert self.kinds[kind] >= count // share, f"only {self.kinds[kind]} of {kind}"
        missed = sorted(self.routes - self.reached.keys())
        assert not missed or count < 20 * len(self.routes), f"nothing was sent to {missed}"

    async def run(self, count: int) -> None:
        key = create_key(self.local.service.store, "fuzz", "ada")
        self.stock = Stock(self.local, {"X-API-Key": key})
        transport: Any = self.local.http._transport
        openapi = transport.app.openapi()
        schemas = openapi["components"]["schemas"]
        self.schemas = Schemas(schemas, lambda: self.stock.ids, self.rng)
        routes = [
            (method, path, operation)
            for path, methods in sorted(openapi["paths"].items())
            for method, operation in sorted(methods.items())
        ]
        weights = [8 if path.endswith(RAW) else 1 for _, path, _ in routes]
        self.routes = {f"{method} {path}" for method, path, _ in routes}
        for number in range(count):
            if number % RESTOCK_AFTER == 0:
                await self.stock.fill()
            await self._send(number, *self.rng.choices(routes, weights)[0])

    async def _send(self, number: int, method: str, route: str, operation: dict[str, Any]) -> None:
        path, query = self._address(route, operation.get("parameters", ()))
        content, headers = self._body(route, operation)
        key = self.stock.headers
        if (method, route) == REVOKE:
            key = {"X-API-Key": create_key(self.local.service.store, str(number), "ada")}
        elif self.rng.random() < 0.05:
            key = {"X-API-Key": self.rng.choice(["", "eyJ.a.b", "sk-x"])}
        headers = {**headers, **key, **self._odd_header()}
        answer = await asyncio.wait_for(
            self.local.http.request(
                method.upper(), path, params=query, content=content, headers=encoded(headers)
            ),
            timeout=120,
        )
        self.statuses[answer.status_code] += 1
        self.reached[f"{method} {route}"] += 1
        if answer.status_code >= 500:
            self.failures.append(
                f"request {number}: {method} {path[:80]} {query} {headers} {content[:300]!r}: "
                f"{answer.status_code} {answer.text[:300]}"
            )

    def _odd_header(self) -> dict[str, str]:
        """A header that few clients send, in one of twenty requests."""
        if self.rng.random() >= 0.05:
            return {}
        self.kinds["odd header"] += 1
        name = self.rng.choice(sorted(IN_HEADERS))
        return {name.lower(): self.rng.choice(IN_HEADERS[name])}

    def _address(self, route: str, parameters: Any) -> tuple[str, dict[str, Any]]:
        path, query = route, {}
        for parameter in parameters:
            name = parameter["name"]
            if parameter["in"] == "query":
                if self.rng.random() < 0.5:
                    known = self.schemas.value(parameter.get("schema", {}), name)
                    query[name] = self.rng.choice([known, *JUNK])
                continue
            known = str(self.rng.choice(self.stock.ids.get(name, ["a"])))
            value = known if self.rng.random() < 0.8 else self.rng.choice(IN_PATHS)
            path = path.replace(f"{{{name}}}", value)
        return path, query

    def _body(self, route: str, operation: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
        rng, kind = self.rng, route.rpartition("/")[2]
        if kind == "upload":
            self.kinds["archive"] += 1
            return archive(rng)
        if route.endswith(RAW) and rng.random() < 0.5:
            content, headers = self.stock.protobuf(rng), {"content-type": "application/x-protobuf"}
            if rng.random() < 0.9:
                content = damaged(content, rng)
            self.kinds["protobuf"] += 1
        else:
            schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            if schema:
                value = self.schemas.value(schema["schema"])
            else:
                value = self.stock.operation(kind, rng)
            for _ in range(rng.choice([0, 1, 1, 2])):
                value = mutated(value, rng)
            content, headers = json.dumps(value).encode(), {"content-type": "application/json"}
            if rng.random() < 0.15:
                content = damaged(content, rng)
            if rng.random() < 0.05:
                other = ["application/x-protobuf", "text/plain", "multipart/x"]
                headers["content-type"] = rng.choice(other)
            self.kinds["JSON"] += 1
        if rng.random() < 0.2:
            self.kinds["zstd"] += 1
            headers["content-encoding"] = rng.choice(["zstd", "zstd", "zstd", "gzip", "identity"])
            content = zstandard.ZstdCompressor().compress(content)
            if rng.random() < 0.5:
                content = damaged(content, rng)
        return content, headers


def fuzz(home: Path, model: Path, count: int, seed: int, **settings: Any) -> Fuzzer:
    """Send requests to a service of its own; returns what came back."""

    async def work(local: Local) -> Fuzzer:
        await local.service.preload()  # nothing: it is ready
        fuzzer = Fuzzer(local, random.Random(seed))
        await fuzzer.run(count)
        return fuzzer

    os.environ["HF_HUB_OFFLINE"] = "1"
    options = {"aliases": {MODEL: model}, "precision": "exact", **SETTINGS, **settings}
    return with_service(home, work, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = build_model(Path(folder) / "model")
        done = fuzz(Path(folder) / "home", model, options.requests, options.seed)
    statuses = ", ".join(f"{status}: {count}" for status, count in sorted(done.statuses.items()))
    print(
        f"{done.statuses.total()} requests to {len(done.reached)} of {len(done.routes)} routes; "
        f"kinds: {dict(done.kinds)}; answers: {statuses}"
    )
    done.require(options.requests)
    raise SystemExit("\n".join(done.failures[:20]) or 0)


if __name__ == "__main__":
    main()
