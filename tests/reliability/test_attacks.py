"""Attacks that once worked, on a running service. docs/reliability.md says where each is tested."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mint.service.checkpoints.storage import CheckpointPath
from mint.service.store.database import now
from tests.reliability.conftest import Faults
from tests.reliability.local import Local, with_service
from tests.reliability.machine import steps_in, tokens_of
from tests.reliability.test_crashes import STEP, no_failures, saved, steps
from tests.reliability.test_isolation import PATH, fill
from tests.service_fixture import MODEL, LiveService, RawClient

Start = Callable[..., LiveService]


def sampler_of(raw: RawClient) -> str:
    body = {"session_id": raw.session(), "sampling_session_seq_id": 0, "base_model": MODEL}
    return str(raw.post("/create_sampling_session", body).json()["sampling_session_id"])


def sample(raw: RawClient, sampler: str, first: int = 1, **params: Any) -> str:
    """Ask for a sample; returns its request id."""
    body = {
        "sampling_session_id": sampler,
        "prompt": {"chunks": [{"tokens": [first, 2, 3]}]},
        "sampling_params": {"max_tokens": 6, "temperature": 0, **params},
    }
    answer = raw.post("/asample", body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["request_id"])


def test_a_bad_sample_and_a_failed_allocation_affect_no_other_request(
    own_service: Start, faults: Faults
) -> None:
    """They arrive together, since the engine is stopped, and the prefill of all of them fails."""
    faults.at("mint.engine.sampling.runner:Runner.prefill", 3, "ENOMEM")
    service = own_service()
    one, other = (RawClient(service.base_url, key) for key in ("tml-one", "tml-other"))
    mine, theirs = sampler_of(one), sampler_of(other)
    alone = [tokens_of(one.retrieve(sample(one, mine, first))) for first in (1, 9)]
    [worker] = service.worker_pids()
    os.kill(worker, signal.SIGSTOP)
    asked = [sample(one, mine, 1), sample(one, mine, 9, top_k=2**63), sample(other, theirs, 1)]
    surrogate = b'{"sampling_session_id": "%s", "prompt": {"chunks": [{"tokens": [1]}]}, '
    surrogate = surrogate % mine.encode() + b'"sampling_params": {"stop": ["\\ud800"]}}'
    headers = {"content-type": "application/json"}
    assert one.http.post("/asample", content=surrogate, headers=headers).status_code == 400
    os.kill(worker, signal.SIGCONT)
    answers = [one.retrieve(asked[0]), one.retrieve(asked[1]), other.retrieve(asked[2])]
    assert [tokens_of(answer) for answer in answers] == [*alone, alone[0]]
    faults.require_all()
    assert service.worker_pids() == [worker], "no worker died"


@pytest.mark.slow
def test_an_operation_without_a_number_is_executed_once_across_a_snapshot_and_a_crash(
    own_service: Start, faults: Faults
) -> None:
    """The next snapshot fails, and must not harm the one in use. Others can read nothing."""
    faults.at("mint.engine.engine:Engine.save_state", 2, "ENOSPC")
    settings = {"snapshot_after_bytes": 0}
    service = own_service(**settings)
    raw = RawClient(service.base_url)
    run = raw.run()
    folder = service.home / "runs" / run.replace(":", "_")
    key = {"x-idempotency-key": "step-1"}

    def step_once() -> str:
        body = {"model_id": run, **STEP}
        answer = raw.post("/optim_step", body, headers=key)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["request_id"])

    request_id = step_once()
    answer = raw.retrieve(request_id).content
    while not list(folder.glob("snapshot-*")):
        pass  # taken after the answer
    no_failures(raw, steps(raw, run, 1))
    while not faults.happened:
        pass  # the second snapshot
    for pid in service.worker_pids():
        os.kill(pid, signal.SIGKILL)
    service.kill()
    service = own_service(service.port, **settings)
    raw = RawClient(service.base_url)
    assert step_once() == request_id
    assert raw.retrieve(request_id).content == answer
    assert saved(raw, run, service.home, 3)
    checkpoint = service.home / "checkpoints" / run.replace(":", "_") / "weights" / "at-3"
    assert steps_in(checkpoint) == 2
    ours = [path for path in service.home.rglob("*") if path.name != "service.log"]
    assert not [p for p in ours if not p.is_symlink() and stat.S_IMODE(p.stat().st_mode) & 0o077]


def test_a_long_text_is_refused_before_it_is_encoded(raw: RawClient) -> None:
    body = {"model": MODEL, "prompt": "a " * 5_000_000, "max_tokens": 1}
    answer = raw.http.post(f"{raw.base_url}/v1/completions", json=body)
    assert answer.status_code == 400
    assert "1000000" in answer.json()["error"]["message"]


def test_a_clock_that_jumps_hides_a_checkpoint_and_deletes_nothing(tmp_path: Path) -> None:
    """Eight days ahead, its time is over; when the clock is put right, it is there again."""

    async def work(local: Local) -> None:
        fill(local)
        checkpoints, path = local.service.checkpoints, CheckpointPath.parse(PATH)
        row = checkpoints.find(path, "ada")
        assert row is not None
        checkpoints._store.change_checkpoint(row, expires_at=now() - timedelta(days=8))
        for _ in range(3):
            await local.service.tidy()
        assert await asyncio.to_thread(checkpoints.find, path, "ada") is None
        assert checkpoints.folder(path).exists()
        checkpoints._store.change_checkpoint(row, expires_at=now() + timedelta(days=1))
        assert checkpoints.find(path, "ada") is not None

    with_service(tmp_path, work)
