"""Mutated requests for every route: nothing may answer with 5xx. ``make fuzz`` sends many.

python -m tests.reliability.fuzz --requests 20000 --seed 1
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import zstandard

from tests.reliability.local import Local, with_service
from tests.reliability.test_isolation import LISTS, OF_OBJECTS, RUN, SAMPLER, fill, routes

JUNK: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, 1e308, -1e308, 0.5, "", "a", "~nouser/x", "../../x",
    "\0", "é" * 50, "x" * 5000, [], {}, [[]], [None], {"": None}, RUN, SAMPLER, [1] * 99,
]  # fmt: skip
LITERALS = [b"NaN", b"1e999", b'"\\ud800"', b"\xff\xfe", b"[" * 3000, b"-0", b"{}{}", b"\0"]
SLOW = {("post", "/api/v1/retrieve_future"), ("post", "/api/v1/retrieve_futures")}


def mutated(value: Any, rng: random.Random) -> Any:
    """Return a JSON value with something changed in it, or in its place."""
    if rng.random() < 0.3 or not isinstance(value, dict | list) or not value:
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


def body_of(value: Any, rng: random.Random) -> tuple[bytes, dict[str, str]]:
    """Return bytes for a JSON value, sometimes damaged, compressed or of another type."""
    content = json.dumps(value).encode()
    headers = {"content-type": "application/json"}
    if rng.random() < 0.2:
        at = rng.randrange(len(content) + 1)
        content = content[:at] + rng.choice([*LITERALS, rng.randbytes(9)]) + content[at:]
    if rng.random() < 0.15:
        headers["content-type"] = rng.choice(
            ["application/x-protobuf", "text/plain", "multipart/x"]
        )
    if rng.random() < 0.15:
        headers["content-encoding"] = rng.choice(["zstd", "gzip", "identity", "zstd"])
        content = zstandard.ZstdCompressor().compress(content)
        if rng.random() < 0.5:
            content = content[: rng.randrange(len(content) + 1)]
    return content, headers


async def fuzz(local: Local, count: int, seed: int) -> list[str]:
    """Send requests; return a line for each that was answered with 5xx."""
    rng = random.Random(seed)
    owner = {"X-API-Key": fill(local)["X-API-Key"]}
    table = sorted(routes(local) - SLOW)
    failures = []
    for number in range(count):
        method, route = rng.choice(table)
        path, body = OF_OBJECTS.get((method, route), (route, LISTS.get((method, route), {})))
        path = path or route
        if "{" in path or rng.random() < 0.2:
            part = rng.choice(["%00", "..", "x" * 4000, "%ff%fe", "~", "%2e%2e%2f", RUN])
            path = path.replace("{", "").replace("}", "") + rng.choice(["", "/", "?limit="]) + part
        content, headers = body_of(mutated(body, rng), rng)
        key = owner if rng.random() < 0.9 else {"X-API-Key": rng.choice(["", "eyJ.a.b", "sk-x"])}
        answer = await local.http.request(
            method.upper(), path, content=content, headers={**headers, **key}
        )
        if answer.status_code >= 500 and not route.endswith("readyz"):
            failures.append(
                f"request {number} of seed {seed}: {method} {path[:80]} {content[:200]!r}: "
                f"{answer.status_code} {answer.text[:200]}"
            )
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp())
    failures = with_service(home, lambda local: fuzz(local, options.requests, options.seed))
    print(f"{options.requests} requests, {len(failures)} answered with 5xx")
    raise SystemExit("\n".join(failures[:20]) or 0)


if __name__ == "__main__":
    main()
