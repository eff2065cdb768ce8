"""A service that is killed in the middle of a step: one message, and the same call resumes."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

import mint
from mint import types
from mint.embedded import embedded_service, stop_embedded_service
from mint.rl import Evaluator, RLConfig, ServiceLost, run_grpo
from mint.rl.runtime.connection import NoAnswer
from mint.watch.directory.recorder import EVENTS, METRICS, read_rows
from tests.rl.conftest import Letters
from tests.rl.loop.test_resume import comparable
from tests.service_fixture import MODEL, LiveService

Settings = Callable[..., RLConfig]
Start = Callable[..., LiveService]
AT = 3


class Struck(Letters):
    """Its service is killed at the third step, while a request of one kind waits for an answer."""

    def __init__(self, service: LiveService, kind: str, then: Callable[[], Any] = list) -> None:
        self.service, self.kind, self.then, self.step = service, kind, then, 1

    def build_dataset(self) -> list[str]:
        if (self.step, self.kind) == (AT, "samples"):
            self.strike()
        return super().build_dataset()

    def edit_datums(self, datums: list[types.Datum]) -> list[types.Datum]:
        if (self.step, self.kind) == (AT, "operations"):
            self.strike()
        return datums

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
        self.step = step + 1

    def strike(self) -> None:
        """Let no request be answered from now on, and kill the service when there is one."""
        self.step = 0
        workers = self.service.worker_pids()
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        threading.Thread(target=self._kill, args=(workers,)).start()

    def _kill(self, workers: list[int]) -> None:
        while not self._waiting():
            pass
        self.service.kill()
        for worker in workers:
            os.kill(worker, signal.SIGCONT)  # to see that its service is gone
        self.then()

    def _waiting(self) -> float:
        text = httpx.get(f"{self.service.base_url}/metrics", timeout=60).text
        found = re.search(rf'mint_queue_depth{{kind="{self.kind}"}} (\S+)', text)
        return float(found[1]) if found else 0.0


class Orphaned(Letters):
    """The service that the script started for itself is killed after the first step."""

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
        embedded_service().process.kill()


def client_of(service: LiveService) -> mint.ServiceClient:
    return mint.ServiceClient(base_url=service.base_url, api_key="tml-rl")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["samples", "operations"])
def test_a_service_killed_in_the_middle_of_a_step_costs_that_step_and_no_more(
    own_service: Start, settings: Settings, tmp_path: Path, capsys: Any, kind: str
) -> None:
    first = own_service()
    cfg = settings(steps=4, checkpoint_every=1, service_timeout=5.0)
    with pytest.raises(ServiceLost, match=r"after step 2 is lost.*resumes after step 2"):
        run_grpo(Struck(first, kind), cfg, service=client_of(first))
    assert "is not responding. Waiting up to 5 s" in capsys.readouterr().out
    assert read_rows(tmp_path / "run" / EVENTS)[-1]["event"] == "lost"

    second = own_service()
    run_grpo(Letters(), cfg, service=client_of(second))
    assert [row["step"] for row in read_rows(tmp_path / "run" / METRICS)] == [1, 2, 3, 4]
    events = [row["event"] for row in read_rows(tmp_path / "run" / EVENTS)]
    assert (events.count("resumed"), events[-1]) == (1, "finished")
    whole = settings(steps=4, checkpoint_every=1, run_dir=str(tmp_path / "whole"))
    run_grpo(Letters(), whole, service=client_of(second))
    for row, wanted in zip(
        comparable(tmp_path / "run"), comparable(tmp_path / "whole"), strict=True
    ):
        assert row == pytest.approx(wanted, rel=1e-3, abs=1e-4)


@pytest.mark.slow
def test_a_service_that_returns_in_time_loses_nothing(
    own_service: Start, settings: Settings, tmp_path: Path
) -> None:
    first = own_service()
    struck = Struck(first, "operations", then=lambda: own_service(first.port))
    run_grpo(struck, settings(steps=4), service=client_of(first))
    events = [row["event"] for row in read_rows(tmp_path / "run" / EVENTS)]
    assert "resumed" not in events
    assert [row["step"] for row in read_rows(tmp_path / "run" / METRICS)] == [1, 2, 3, 4]


@pytest.mark.slow
def test_the_end_of_the_embedded_service_ends_the_run_at_once(
    tiny_model: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MINT_MODELS", f"{MODEL}={tiny_model}")
    cfg = settings(checkpoint_every=1, service_timeout=3600.0)
    try:
        with pytest.raises(ServiceLost, match=r"embedded service at \S+ has exited\."):
            run_grpo(Orphaned(), cfg)
        run_grpo(Letters(), cfg)
    finally:
        stop_embedded_service()
    assert [row["step"] for row in read_rows(tmp_path / "run" / METRICS)] == [1, 2]


def test_a_missing_service_is_reported_before_the_first_request(
    settings: Settings, capsys: Any
) -> None:
    nowhere = mint.ServiceClient(base_url="http://127.0.0.1:9", api_key="tml-rl")
    cfg = settings(service_timeout=0.2)
    with pytest.raises(ServiceLost, match=r"127\.0\.0\.1:9 has not responded for 0\.2 s"):
        run_grpo(Letters(), cfg, service=nowhere)
    assert "is not responding" in capsys.readouterr().out
    with pytest.raises(NoAnswer):
        Evaluator(Letters(), cfg, nowhere).of(None)


class Gateway(BaseHTTPRequestHandler):
    """A proxy whose service is gone."""

    def do_GET(self) -> None:
        self.send_response(HTTPStatus.BAD_GATEWAY)
        self.send_header("content-length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def test_a_service_that_is_gone_behind_a_proxy_is_reported(settings: Settings) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as gateway:
        threading.Thread(target=gateway.serve_forever).start()
        url = f"http://127.0.0.1:{gateway.server_port}"
        behind = mint.ServiceClient(base_url=url, api_key="tml-rl")
        try:
            with pytest.raises(ServiceLost, match=rf"{url} has not responded for 0\.2 s"):
                run_grpo(Letters(), settings(service_timeout=0.2), service=behind)
        finally:
            gateway.shutdown()
