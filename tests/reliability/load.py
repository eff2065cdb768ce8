"""A load generator: long polls, bursts of samples, large batches, and what they cost the others.

It fails if something failed or is missing, and if /healthz or a heartbeat took more than a second.
Run it on a machine that does nothing else.

python -m tests.reliability.load --polls 2000 --samples 1000 --clients 50 --megabytes 200
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
from tinker.proto import tinker_public_pb2 as wire

from tests.service_fixture import MODEL, LiveService, start_service

KEY = {"X-API-Key": "tml-test"}
TIMEOUT_S = 45.0  # of the SDK's own polls
PROBE_S = 0.2
PROMISED_S = 1.0
"""Within which /healthz and heartbeats are answered under load, on a machine without other work."""


@dataclass
class Tally:
    """What happened: how often, and how long things took."""

    counts: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def took(self, what: str, seconds: float) -> None:
        self.seconds.setdefault(what, []).append(seconds)

    def times(self, what: str) -> dict[str, float]:
        """Return median, 99th percentile and maximum, in milliseconds."""
        found = sorted(self.seconds.get(what) or [0.0])
        high = found[int(0.99 * (len(found) - 1))]
        values = {"median": median(found), "p99": high, "max": found[-1]}
        return {name: round(1000 * value, 1) for name, value in values.items()}

    def late(self) -> list[str]:
        """Return what was answered later than promised, or was not asked for at all.

        Only programs that a person runs on a quiet machine judge times; the tests do not.
        """
        found = []
        for what in ("healthz", "heartbeat"):
            seconds = self.seconds.get(what, [])
            slow = [each for each in seconds if each > PROMISED_S]
            if slow:
                found.append(
                    f"{what}: {len(slow)} of {len(seconds)} answers took more than {PROMISED_S} s, "
                    f"the slowest {max(slow):.2f} s"
                )
            elif not seconds:
                found.append(f"{what}: no answer was timed")
        return found

    def report(self) -> dict[str, Any]:
        times = {what: self.times(what) for what in sorted(self.seconds)}
        return {"counts": dict(self.counts), "errors": self.errors[:10], "milliseconds": times}


@dataclass
class Client:
    """A client of the protocol: retries what the SDK retries, notes everything else as an error."""

    http: httpx.AsyncClient
    tally: Tally
    session: str = ""

    async def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response | None:
        """Send a request; None after a failure, which is noted."""
        if body is not None:
            options["json"] = body
        try:
            try:
                answer = await self.http.post(f"/api/v1{path}", **options)
            except httpx.NetworkError:  # the SDK connects again, and so do we, once
                self.tally.counts["connected again"] += 1
                answer = await self.http.post(f"/api/v1{path}", **options)
        except httpx.TimeoutException:
            self.tally.errors.append(f"{path}: no answer within {TIMEOUT_S} s")
        except httpx.HTTPError as error:
            self.tally.errors.append(f"{path}: {type(error).__name__}: {error}")
        else:
            if answer.status_code not in (200, 408, 429):
                self.tally.errors.append(f"{path}: {answer.status_code} {answer.text[:300]}")
            route = path.replace(self.session, "…") if self.session else path
            self.tally.counts[f"{route} {answer.status_code}"] += 1
            return answer
        return None

    async def begin(self) -> None:
        answer = await self.post("/create_session", {"tags": []})
        if answer is not None:
            self.session = answer.json()["session_id"]

    async def finish(self) -> None:
        await self.post(f"/sessions/{self.session}/finish", {"reason": {"type": "success"}})

    async def sampler(self, number: int = 0) -> str:
        body = {"session_id": self.session, "sampling_session_seq_id": number}
        answer = await self.post("/create_sampling_session", {**body, "base_model": MODEL})
        return "" if answer is None else str(answer.json()["sampling_session_id"])

    async def submit(self, sampler: str, number: int, tokens: int = 16, **more: Any) -> str | None:
        """Ask for a sample until it is taken in; return its request id."""
        body = {
            "sampling_session_id": sampler,
            "seq_id": number,
            "num_samples": 1,
            "prompt": {"chunks": [{"tokens": [number % 250, 2, 3]}]},
            "sampling_params": {"max_tokens": tokens, "stop": []},
            **more,
        }
        while (answer := await self.post("/asample", body)) is not None:
            if answer.status_code != 429:
                return str(answer.json().get("request_id")) if answer.is_success else None
            await asyncio.sleep(1)  # as the SDK does
        return None

    async def retrieve(self, request_id: str) -> httpx.Response | None:
        """Poll until the result is there."""
        question = {"request_id": request_id}
        while (answer := await self.post("/retrieve_future", question)) is not None:
            if answer.status_code != 408:
                break
        return answer

    async def sample(self, sampler: str, number: int, tokens: int = 16) -> None:
        """Sample, from the request to the result."""
        start = time.monotonic()
        request_id = await self.submit(sampler, number, tokens)
        answer = await self.retrieve(request_id) if request_id else None
        if answer is None or not answer.is_success:
            return
        if len(wire.SampleResponse.FromString(answer.content).sequences) == 1:
            self.tally.counts["samples"] += 1
            self.tally.took("sample", time.monotonic() - start)

    async def run(self, number: int = 0) -> str:
        body = {"session_id": self.session, "model_seq_id": number, "base_model": MODEL}
        answer = await self.post("/create_model", {**body, "lora_config": {"rank": 4, "seed": 1}})
        made = await self.retrieve(answer.json()["request_id"]) if answer is not None else None
        return "" if made is None else str(made.json().get("model_id"))

    async def train(self, run: str, seq_id: int, padding: int = 0) -> None:
        """One forward_backward, with as many bytes of padding as that."""
        body = await asyncio.to_thread(batch, run, seq_id, padding)
        headers = {"Content-Type": "application/x-protobuf"}
        asked = await self.post("/forward_backward", content=body, headers=headers)
        if asked is not None and asked.is_success:
            answer = await self.retrieve(asked.json()["request_id"])
            is_done = answer is not None and "x-protobuf" in answer.headers["content-type"]
            if is_done:
                self.tally.counts["batches"] += 1
                self.tally.counts["batch bytes"] += len(body)
            elif answer is not None:
                self.tally.errors.append(f"forward_backward: {answer.text[:300]}")


def batch(run: str, seq_id: int, padding: int) -> bytes:
    """A training request. Padding is an input that losses ignore: it travels all the way."""
    request = wire.ForwardBackwardRequest(model_id=run, seq_id=seq_id, loss_fn="cross_entropy")
    tokens = np.arange(1, 33)
    parts = max(padding // 4_000_000, 1)
    for _ in range(parts):
        datum = request.data.add()
        chunk = datum.model_input.add()
        chunk.encoded_text.tokens = tokens.astype("<i4").tobytes()
        for name, values, kind in (
            ("target_tokens", tokens.astype("<i8"), wire.DTYPE_INT64),
            ("weights", np.ones(len(tokens), "<f4"), wire.DTYPE_FLOAT32),
            ("padding", np.zeros(padding // parts // 4, "<f4"), wire.DTYPE_FLOAT32),
        ):
            if len(values):
                tensor = datum.loss_fn_inputs[name]
                tensor.dense, tensor.dtype = values.tobytes(), kind
                tensor.shape.append(len(values))
    return bytes(request.SerializeToString())


@asynccontextmanager
async def client_of(service: LiveService, tally: Tally) -> AsyncIterator[Client]:
    # A connection that idled is not used again: the service may be closing it at that moment.
    limits = httpx.Limits(
        max_connections=None, max_keepalive_connections=None, keepalive_expiry=1.0
    )
    options: dict[str, Any] = {"headers": KEY, "timeout": TIMEOUT_S, "limits": limits}
    async with httpx.AsyncClient(base_url=service.base_url, **options) as http:
        client = Client(http, tally)
        await client.begin()
        yield client


@contextmanager
def probing(service: LiveService, tally: Tally) -> Iterator[None]:
    """Ask for health and send heartbeats all the while, and note how long the answers take.

    A process of its own does it: the load generator's own work must not count.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_probe, args=(service.base_url, theirs), daemon=True)
    process.start()
    assert ours.recv() == "ready"
    try:
        yield
    finally:
        ours.send("stop")
        found: Tally = ours.recv()
        process.join(30)
        tally.counts += found.counts
        tally.errors += found.errors
        tally.seconds |= found.seconds


def _probe(url: str, pipe: Connection) -> None:
    tally = Tally()
    with httpx.Client(base_url=f"{url}/api/v1", headers=KEY, timeout=TIMEOUT_S) as http:
        session = http.post("/create_session", json={"tags": []}).json()["session_id"]
        pipe.send("ready")
        while not pipe.poll(PROBE_S):
            for what, method, path, body in (
                ("healthz", "GET", "/healthz", None),
                ("heartbeat", "POST", "/session_heartbeat", {"session_id": session}),
            ):
                start = time.monotonic()
                try:
                    status = http.request(method, path, json=body).status_code
                except httpx.HTTPError as error:
                    tally.errors.append(f"{what}: {type(error).__name__}: {error}")
                else:
                    tally.took(what, time.monotonic() - start)
                    tally.counts[f"{what} {status}"] += 1
                    if status != 200:
                        tally.errors.append(f"{what}: {status}")
    pipe.send(tally)


async def burst(
    service: LiveService, tally: Tally, polls: int, samples: int, clients: int, megabytes: int
) -> None:
    """Hold long polls, let many clients sample at once, then train on a large batch."""
    async with client_of(service, tally) as waiting:
        run = await waiting.run()
        await waiting.train(run, 1)
        body = {"model_id": run, "seq_id": 3, "adam_params": {"learning_rate": 0.1}}
        asked = await waiting.post("/optim_step", body)  # operation 2 is missing: it waits
        assert asked is not None
        request_id = asked.json()["request_id"]
        work = [_hold(service, tally, request_id) for _ in range(polls)]
        held = [asyncio.create_task(each) for each in work]
        many = [_one_of_many(service, tally, samples // clients) for _ in range(clients)]
        await asyncio.gather(*many)
        await waiting.train(run, 2, megabytes * 1_000_000)  # with it, operation 3 runs as well
        done = await asyncio.gather(*held)
        tally.counts["polls"] = sum(done)
        await waiting.finish()


async def _hold(service: LiveService, tally: Tally, request_id: str) -> bool:
    """Poll over a plain connection: thousands in one pool keep the pool busy, not the service."""
    body = json.dumps({"request_id": request_id})
    head = "POST /api/v1/retrieve_future HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: tml-test\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    try:
        async with asyncio.timeout(None) as limit:
            while True:
                limit.reschedule(asyncio.get_running_loop().time() + TIMEOUT_S)
                writer.write((head + body).encode())
                status = int((await reader.readline()).split()[1])
                size = 0
                while (line := await reader.readline()) != b"\r\n":
                    if line.lower().startswith(b"content-length:"):
                        size = int(line.split()[1])
                answer = await reader.readexactly(size)
                tally.counts[f"held poll {status}"] += 1
                if status != 408:
                    return status == 200 and "metrics" in json.loads(answer)
    except (TimeoutError, OSError, EOFError, IndexError) as error:
        tally.errors.append(f"a held poll: {type(error).__name__}: {error}")
        return False
    finally:
        writer.close()


async def _one_of_many(service: LiveService, tally: Tally, samples: int) -> None:
    async with client_of(service, tally) as client:
        sampler = await client.sampler()
        await asyncio.gather(*(client.sample(sampler, number) for number in range(samples)))
        await client.finish()


@dataclass(frozen=True)
class Vitals:
    """What the processes of a service hold, and the CPU time that they have used."""

    service_mb: float
    workers_mb: float
    files: int
    cpu_s: float

    @classmethod
    def of(cls, service: LiveService) -> Vitals:
        def resident(pid: int) -> float:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

        def seconds(pid: int) -> float:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        pid = service.process.pid
        workers, used = 0.0, seconds(pid)
        for child in service.worker_pids():
            try:
                workers += resident(child)
                used += seconds(child)
            except (FileNotFoundError, ProcessLookupError):  # it has just ended
                continue
        return cls(resident(pid), workers, len(os.listdir(f"/proc/{pid}/fd")), used)


def open_journals(service: LiveService) -> int:
    """Count the files of runs that a service has open."""
    folder, found = Path(f"/proc/{service.process.pid}/fd"), 0
    for file in folder.iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            found += "/home/runs/" in os.readlink(file)
    return found


def main() -> None:
    from tests.tiny import build_model

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--polls", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--megabytes", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = build_model(Path(folder) / "model")
        service = start_service(Path(folder) / "home", model, models=(MODEL,))
        try:
            before = Vitals.of(service)
            tally = Tally()
            with probing(service, tally):
                asyncio.run(burst(service, tally, **vars(options)))
            print(json.dumps(tally.report(), indent=1))
            print(f"before: {before}\nafter: {Vitals.of(service)}")
        finally:
            service.stop()
    problems = [*tally.late(), *tally.errors]
    if (samples := tally.counts["samples"]) < options.samples:
        problems.insert(0, f"only {samples} of {options.samples} samples were answered")
    if problems:
        raise SystemExit("\n".join(problems[:20]))


if __name__ == "__main__":
    main()
