"""A soak: clients that come, go, crash and misbehave, for an hour; then nothing may have grown.

Nor may /healthz or a heartbeat have taken more than a second. Run it on a machine that does nothing
else.

make soak                       an hour
SOAK_MINUTES=10 make soak       ten minutes
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from tests.reliability.load import (
    KEY,
    Client,
    Tally,
    Vitals,
    client_of,
    open_journals,
    probing,
)
from tests.service_fixture import MODEL, LiveService, start_service

LEAST = {"samples": 40, "batches": 4, "crashes": 4, "mistakes": 12, "checkpoints": 1}
"""What a round must have done, or it has shown nothing."""
QUARTERS = 4
MOST_GROWTH, MOST_GROWTH_MB, MOST_FILES, MOST_SLOWER = 0.1, 30.0, 8, 0.25
"""How much more the service may hold after the last quarter than after the second, and how much
more of the CPU a round may use. What is held is measured when every client is gone and its session
ended: while they come, it depends on how many come in a second."""


@dataclass
class Soak:
    """Rounds of clients of every kind, and what the service held after each."""

    service: LiveService
    tally: Tally = field(default_factory=Tally)
    vitals: list[Vitals] = field(default_factory=list)
    resting: list[Vitals] = field(default_factory=list)
    quarters: list[slice] = field(default_factory=list)
    sample_s: list[float] = field(default_factory=list)

    async def run(self, rounds: int | None = None, minutes: float | None = None) -> int:
        """Go round after round, so many or so long; return how many it were."""
        start, done = time.monotonic(), 0
        while True:
            before = len(self.tally.seconds.get("sample", []))
            kinds: list[Callable[[], Awaitable[None]]] = [
                *[self._samples] * 4,
                *[self._trains] * 2,
                *[self._crashes] * 2,
                self._makes_mistakes,
            ]
            await asyncio.gather(*(kind() for kind in kinds))
            done += 1
            self.vitals.append(Vitals.of(self.service))
            self.sample_s.append(median(self.tally.seconds["sample"][before:]))
            if done == rounds or (minutes and time.monotonic() - start > minutes * 60):
                return done

    async def run_quarters(self, minutes: float) -> int:
        """Go round after round for so long; after each quarter, measure the service at rest."""
        rounds = 0
        for _ in range(QUARTERS):
            done = await self.run(minutes=minutes / QUARTERS)
            self.quarters.append(slice(rounds, rounds + done))
            rounds += done
            await self.settle()
            self.resting.append(Vitals.of(self.service))
        return rounds

    async def settle(self) -> None:
        """Wait until the service has released every run and closed its journal."""
        async with httpx.AsyncClient(base_url=self.service.base_url, headers=KEY) as http:
            while True:
                text = (await http.get("/metrics")).text
                held = [
                    line
                    for line in text.splitlines()
                    if line.startswith(("mint_runs_resident", "mint_queue_depth"))
                ]
                is_empty = held and all(float(line.split()[-1]) == 0 for line in held)
                if is_empty and not open_journals(self.service):
                    return
                await asyncio.sleep(0.2)

    # ---- kinds of clients -----------------------------------------------------------------------

    async def _samples(self) -> None:
        """Samples and ends, as most do."""
        async with client_of(self.service, self.tally) as client:
            sampler = await client.sampler()
            await asyncio.gather(*(client.sample(sampler, number) for number in range(10)))
            await client.finish()

    async def _trains(self) -> None:
        """Trains, samples from what it trained, saves and deletes a checkpoint, and ends."""
        async with client_of(self.service, self.tally) as client:
            run = await client.run()
            await client.train(run, 1, 1_000_000)
            await self._operate(client, "optim_step", run, 2, adam_params={"learning_rate": 1e-3})
            await client.train(run, 3)
            await self._operate(client, "save_weights_for_sampler", run, 4,
                                sampling_session_seq_id=7)  # fmt: skip
            await client.sample(f"{client.session}:sample:7", 0)
            await self._operate(client, "save_weights", run, 5, path="soak")
            deleted = await client.http.delete(
                f"/api/v1/training_runs/{run}/checkpoints/weights/soak"
            )
            self.tally.counts["checkpoints"] += deleted.is_success
            await client.finish()

    async def _operate(self, client: Client, kind: str, run: str, seq_id: int, **more: Any) -> None:
        asked = await client.post(f"/{kind}", {"model_id": run, "seq_id": seq_id, **more})
        if asked is not None and asked.is_success:
            answer = await client.retrieve(asked.json()["request_id"])
            if answer is not None and "error" in answer.json():
                self.tally.errors.append(f"{kind}: {answer.text[:300]}")

    async def _crashes(self) -> None:
        """Goes away in the middle of everything: results, polls and a body half sent."""
        lost = Tally()  # what a client that is gone did not get is no error
        async with client_of(self.service, lost) as client:
            sampler, run = await client.sampler(), await client.run()
            lengths = [1] + [200] * 9  # when the first is done, others are not
            asked = [
                await client.submit(sampler, number, tokens)
                for number, tokens in enumerate(lengths)
            ]
            await client.post("/optim_step", {"model_id": run, "seq_id": 9})  # a gap for ever
            polls = [asyncio.create_task(client.retrieve(str(each))) for each in asked]
            await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
            cancelled = sum(poll.cancel() for poll in polls)
            await asyncio.gather(*polls, return_exceptions=True)
            self.tally.counts["crashes"] += None not in asked and cancelled > 0
        _, writer = await asyncio.open_connection("127.0.0.1", self.service.port)
        head = "POST /api/v1/asample HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: tml-test\r\n"
        writer.write(
            f"{head}Content-Type: application/json\r\nContent-Length: 900\r\n\r\n{{".encode()
        )
        await writer.drain()
        writer.transport.abort()
        self.tally.counts["crashes"] += 1

    async def _makes_mistakes(self) -> None:
        """Sends invalid requests; every answer is a 4xx, or an error in the result."""
        unknown = "00000000-0000-0000-0000-000000000000"
        async with client_of(self.service, Tally()) as client:
            sampler = await client.sampler()
            post = client.http.post
            answers = [
                await post("/api/v1/asample", content=b"{"),
                await post("/api/v1/asample", content=b"\xff\xfe"),
                await post("/api/v1/asample", json={"sampling_session_id": sampler}),
                await post("/api/v1/asample", json={"sampling_session_id": f"{unknown}:sample:0"}),
                await post("/api/v1/retrieve_future", json={"request_id": "nobody:knows"}),
                await post("/api/v1/retrieve_future", json={}),
                await post("/api/v1/optim_step", json={"model_id": f"{unknown}:train:0"}),
                await post("/api/v1/forward_backward", content=b"\x00" * 1000),
                await post("/api/v1/create_model", json={"session_id": unknown}),
                await post("/api/v1/weights_info", json={"tinker_path": "tinker://../../etc"}),
                await post("/api/v1/nothing"),
                await client.http.get("/api/v1/training_runs/none"),
            ]
            for answer in answers:
                self.tally.counts["mistakes"] += 400 <= answer.status_code < 500
                if answer.status_code >= 500:
                    self.tally.errors.append(f"{answer.request.url.path}: {answer.status_code}")
            for tokens in (-1, 10**9):
                if (request := await client.submit(sampler, tokens, tokens)) is not None:
                    await client.retrieve(request)

    # ---- judging --------------------------------------------------------------------------------

    def require(self, rounds: int) -> None:
        """Raise AssertionError unless as much happened as should have."""
        for what, least in LEAST.items():
            found = self.tally.counts[what]
            assert found >= least * rounds, f"only {found} {what} in {rounds} rounds"

    def compare(self) -> dict[str, Any]:
        """Return what the rounds of each quarter took, and what the service held after it."""
        found = {}
        for number, (phase, resting) in enumerate(zip(self.quarters, self.resting, strict=True), 1):
            found[f"quarter {number}"] = {
                "service_mb": round(resting.service_mb, 1),
                "workers_mb": round(resting.workers_mb, 1),
                "files": resting.files,
                "sample_ms": round(1000 * median(self.sample_s[phase]), 1),
                "cpu_s_a_round": round(self._cpu_a_round(phase), 3),
            }
        return found

    def _cpu_a_round(self, phase: slice) -> float:
        """Return the CPU time of a round, which other programs on the machine hardly change."""
        used = [vitals.cpu_s for vitals in self.vitals[phase]]
        return (used[-1] - used[0]) / max(len(used) - 1, 1)

    def growth(self) -> list[str]:
        """Return what the last quarter has too much of, compared with the second."""
        phases = self.compare()
        early, late = phases["quarter 2"], phases["quarter 4"]
        found = []
        for what in ("service_mb", "workers_mb"):
            if late[what] > early[what] * (1 + MOST_GROWTH) + MOST_GROWTH_MB:
                found.append(f"{what} grew from {early[what]} to {late[what]}")
        if late["cpu_s_a_round"] > early["cpu_s_a_round"] * (1 + MOST_SLOWER):
            before, after = early["cpu_s_a_round"], late["cpu_s_a_round"]
            found.append(f"the CPU time of a round grew from {before} s to {after} s")
        if late["files"] > early["files"] + MOST_FILES:
            found.append(f"open files grew from {early['files']} to {late['files']}")
        return found


def main() -> None:
    from tests.tiny import build_model

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    # Short limits, so that what is kept for a while is released many times during the soak.
    limits = {"session_idle_s": 20.0, "result_kept_s": 30.0, "gap_limit_s": 20.0}
    with tempfile.TemporaryDirectory() as folder:
        model = build_model(Path(folder) / "model")
        service = start_service(Path(folder) / "home", model, models=(MODEL,), **limits)
        try:
            soak = Soak(service)
            with probing(service, soak.tally):
                rounds = asyncio.run(soak.run_quarters(options.minutes))
            print(json.dumps({"rounds": rounds, **soak.tally.report(), **soak.compare()}, indent=1))
        finally:
            service.stop()
    soak.require(rounds)
    if problems := [*soak.growth(), *soak.tally.late(), *soak.tally.errors]:
        raise SystemExit("\n".join(problems[:20]))


if __name__ == "__main__":
    main()
