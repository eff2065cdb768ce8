"""Training waits while the disk is full, reports it, and is then executed once."""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import tarfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import tinker
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from tinker import types

from mint.commands.service.doctor import check_service
from mint.commands.shared.remote import Remote
from mint.service.errors import is_disk_full
from tests.needs import need_sandbox
from tests.processes import children_of
from tests.reliability.conftest import Faults
from tests.reliability.test_kills import client_of, saved
from tests.reliability.test_waiting import Heard, heard
from tests.service.samples import batch, datum, json_datum, prompt
from tests.service_fixture import MODEL, SLOWLY_BOTH, LiveService, RawClient

__all__ = ["heard"]
Start = Callable[..., LiveService]
MEGABYTE = 1_000_000
BLOCK = os.sysconf("SC_PAGE_SIZE")  # of a tmpfs
STEP = {"adam_params": {"learning_rate": 0.01}}


def step(training: tinker.TrainingClient, number: int) -> list[Any]:
    """Begin a step; return its futures."""
    loss = training.forward_backward([datum(number)], "cross_entropy")
    return [loss, training.optim_step(types.AdamParams(learning_rate=0.01))]


def train(client: tinker.ServiceClient, steps: int) -> tinker.TrainingClient:
    training = client.create_lora_training_client(base_model=MODEL, rank=4, seed=1)
    for number in range(steps):
        for future in step(training, number):
            future.result()
    return training


class SmallDisk:
    """The home folder of a service, on a disk of its own with 24 MB, which can be filled."""

    def __init__(self, start: Start, home: Path, **settings: Any) -> None:
        binary = shutil.which("bwrap")
        assert binary is not None
        home.mkdir()
        box = (binary, "--die-with-parent", "--dev-bind", "/", "/")
        size = ("--size", str(24 * MEGABYTE), "--tmpfs", str(home))
        self.service = start(within=(*box, *size), **settings)
        [inside] = self.service.child_pids()  # of the sandbox
        self.home = Path(f"/proc/{inside}/root{home}")
        self._filler = self.home / "filler"

    def fill(self, but: int) -> None:
        """Leave only so many bytes."""
        free = self.free()
        with open(self._filler, "wb", buffering=0) as file:
            written = file.write(b"x" * (free - but))
        assert written == free - but

    def free(self) -> int:
        return shutil.disk_usage(self.home).free

    def make_room(self) -> None:
        self._filler.unlink()


@pytest.mark.slow
def test_the_unmodified_client_is_informed_of_a_full_disk_and_resumes_when_there_is_space(
    own_service: Start, heard: Heard, tmp_path: Path
) -> None:
    """Once below the reserve, and once without a byte left for the journal."""
    need_sandbox()
    disk = SmallDisk(
        own_service, tmp_path / "home", long_poll_s=0.05, disk_reserve_bytes=4 * MEGABYTE
    )
    url = disk.service.base_url
    client, raw = client_of(url), RawClient(url)
    expected = saved(train(client, 5), disk.home)

    training = train(client, 1)
    sampler = training.save_weights_and_get_sampling_client()
    disk.fill(but=MEGABYTE)
    under_way = [*step(training, 1), *step(training, 2)]
    line = heard.wait_for("paused because the disk is full")
    assert "training needs 4.0 MB" in line
    assert "mint checkpoints prune" in line
    params = types.SamplingParams(max_tokens=4, stop=[])
    assert sampler.sample(prompt(), 1, params).result().sequences, "sampling continues"
    assert "paused because the disk is full" in httpx.get(f"{url}/readyz").json()["paused"]
    assert "mint_runs_paused 1.0" in httpx.get(f"{url}/metrics").text
    [problem] = [f for f in check_service(Remote(url, "tml-test")) if f.level == "problem"]
    assert "paused because the disk is full" in problem.text
    [run] = [r for r in raw.http.get("/training_runs").json()["training_runs"] if is_paused(r)]
    assert "paused because the disk is full" in run["mint_status"]["reason"]
    disk.make_room()
    for future in under_way:
        future.result()

    disk.fill(but=0)
    begun: list[Any] = []
    sender = threading.Thread(target=lambda: begun.extend(step(training, 3)))
    sender.start()
    while "mint_runs_paused 1.0" not in httpx.get(f"{url}/metrics").text:
        pass
    disk.make_room()
    sender.join()
    for future in [*begun, *step(training, 4)]:
        future.result()
    assert saved(training, disk.home) == expected
    assert "paused" not in httpx.get(f"{url}/readyz").json()


def is_paused(run: dict[str, Any]) -> bool:
    return bool(run["mint_status"]["state"] == "paused")


def test_writes_that_fail_on_a_full_disk_are_repeated_until_they_succeed(
    own_service: Start, faults: Faults
) -> None:
    """In the journal, in the engine that saves, and when a checkpoint is published."""
    for call in (2, 3, 6):
        faults.at("mint.service.runs.journal:Journal.append_operation", call, "ENOSPC")
    for call in (1, 2):
        faults.at("mint.engine.engine:Engine.save_state", call, "ENOSPC")
    faults.at("mint.service.checkpoints.storage:CheckpointStore.publish", 1, "EDQUOT")
    service = own_service(long_poll_s=1.0)
    client = client_of(service.base_url)
    disturbed = saved(train(client, 3), service.home)
    faults.require_all()
    assert saved(train(client, 3), service.home) == disturbed
    assert not list((service.home / "checkpoints").rglob(".draft*"))


@SLOWLY_BOTH
def test_an_operation_that_others_wait_for_may_take_long_to_be_written(
    own_service: Start, faults: Faults
) -> None:
    """All were aborted when the time was over in which it had to arrive, though it had arrived."""
    for call in range(2, 7):
        faults.at("mint.service.runs.journal:Journal.append_operation", call, "ENOSPC")
    raw = RawClient(own_service(gap_limit_s=1.0).base_url)
    run = raw.run()
    step = raw.operate("optim_step", run, 2, **STEP)
    loss = raw.operate("forward_backward", run, 1, **batch(json_datum()))
    faults.require_all()
    assert "metrics" in raw.result(step)
    assert raw.retrieve(loss).headers["content-type"] == "application/x-protobuf"


@pytest.mark.slow
def test_operations_acknowledged_before_a_kill_on_a_full_disk_are_executed_after_it(
    own_service: Start,
) -> None:
    """A disk that always has too little, a run that waits for it, and one that is unloaded."""
    service = own_service()
    raw = RawClient(service.base_url)
    expected, run = raw.run(number=0), raw.run(session := raw.session())
    given_up = raw.run(session, 1)
    for number in (1, 3):
        raw.result(operate(raw, expected, number)[1])
    raw.result(operate(raw, run, 1)[1])
    service.stop()

    service = own_service(service.port, disk_reserve_bytes=2**60, long_poll_s=0.05)
    loss, step = operate(raw, run, 3)
    while "paused because the disk is full" not in pending(raw, step):
        pass
    assert "paused because the disk is full" in pending(raw, loss)
    _, never = operate(raw, given_up, 1)
    while "paused because the disk is full" not in pending(raw, never):
        pass
    assert raw.post("/unload_model", {"model_id": given_up}).status_code == 200
    assert "disk of the service is full" in raw.result(never)["error"]
    service.kill()

    own_service(service.port)
    assert "metrics" in raw.result(step)
    assert saved_by(raw, run, 5) == saved_by(raw, expected, 5)


@pytest.mark.slow
@pytest.mark.parametrize("has_room", [False, True], ids=["killed", "room again"])
def test_an_outcome_is_reported_when_a_full_disk_has_room_for_it(
    own_service: Start, faults: Faults, tmp_path: Path, has_room: bool
) -> None:
    """It was reported before. After a kill the operation was executed again, and succeeded.

    The engine fails at the step. Another one, which waits for operation 2, fills the last block of
    the journal. The files that the killed service leaves are copied to a disk with room.
    """
    need_sandbox()
    faults.at("mint.engine.engine:Engine.optim_step", 1, "EIO")
    disk = SmallDisk(own_service, tmp_path / "home", long_poll_s=0.05, disk_reserve_bytes=0)
    raw = RawClient(disk.service.base_url)
    run = raw.run()
    [inside] = disk.service.child_pids()
    [worker] = children_of(inside)
    os.kill(worker, signal.SIGSTOP)
    step = raw.operate("optim_step", run, 1, **STEP)
    journal = disk.home / "runs" / run.replace(":", "_") / "journal"
    body = raw.http.build_request("POST", "/", json={"model_id": run, "seq_id": 3, **STEP}).content
    body += b" " * (-2 * journal.stat().st_size % BLOCK)
    raw.http.post("/optim_step", content=body, headers={"content-type": "application/json"})
    assert journal.stat().st_size % BLOCK == 0
    disk.fill(but=0)
    os.kill(worker, signal.SIGCONT)
    while (reported := raw.post("/retrieve_future", {"request_id": step})).status_code == 408:
        if "paused because the disk is full" in reported.text:
            break
    if has_room:
        disk.make_room()
        reported = raw.retrieve(step)
    left = os.open(disk.home, os.O_PATH)
    os.kill(inside, signal.SIGKILL)
    disk.service.process.wait()
    shutil.copytree(f"/proc/self/fd/{left}", tmp_path / "home", dirs_exist_ok=True)
    os.close(left)

    raw = RawClient(own_service(disk.service.port).base_url)
    result = raw.result(step)
    assert reported.status_code == 408 or result == reported.json()
    assert ("error" in result) == has_room
    faults.require_all()


def operate(raw: RawClient, run: str, number: int) -> tuple[str, str]:
    """Send a step; return its request ids."""
    loss = raw.operate("forward_backward", run, number, **batch(json_datum([5, 6, 9])))
    return loss, raw.operate("optim_step", run, number + 1, **STEP)


def pending(raw: RawClient, request_id: str) -> str:
    """Return why a result is not there."""
    answer = raw.post("/retrieve_future", {"request_id": request_id})
    assert answer.status_code == 408, answer.text
    return str(answer.json().get("queue_state_reason"))


def saved_by(raw: RawClient, run: str, number: int) -> str:
    """Save a run and return the digest of its weights."""
    answer = raw.operate("save_weights_for_sampler", run, number, sampling_session_seq_id=number)
    sampler = raw.result(answer)["sampling_session_id"]
    return str(raw.http.get(f"/samplers/{sampler}").json()["weights_digest"])


def test_a_full_sqlite_database_is_recognised(tmp_path: Path) -> None:
    with create_engine(f"sqlite:///{tmp_path / 'full.db'}").connect() as connection:
        connection.execute(text("pragma max_page_count = 2"))
        connection.execute(text("create table t (body blob)"))
        with pytest.raises(OperationalError) as caught:
            connection.execute(text("insert into t values (zeroblob(100000))"))
    assert is_disk_full(caught.value)


@pytest.mark.parametrize("arrive", [True, False], ids=["arrive", "unpack"])
def test_archives_that_come_together_leave_the_reserve_of_the_disk(
    own_service: Start, tmp_path: Path, arrive: bool
) -> None:
    """Each alone would fit beside it: 12 MB of 24 MB, of which 4 MB are the reserve."""
    need_sandbox()
    reserve, piece = 4 * MEGABYTE, 1 << 20  # the most that is written between two looks
    disk = SmallDisk(own_service, tmp_path / "home", disk_reserve_bytes=reserve)
    packed = io.BytesIO()
    block = 1 << 20 if arrive else 1 << 10  # gzip finds repetitions within 32 kB only
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        info = tarfile.TarInfo("adapter_model.safetensors")
        info.size = 12 * MEGABYTE
        archive.addfile(info, io.BytesIO(random.Random(1).randbytes(block) * (12 * piece // block)))
    form = {"file": ("archive.tar.gz", packed.getvalue(), "application/gzip")}

    def upload(number: int) -> int:
        http = RawClient(disk.service.base_url).http
        return http.post("/checkpoints/upload", files=form).status_code

    with ThreadPoolExecutor(6) as threads:
        uploads = [threads.submit(upload, number) for number in range(6)]
        least = disk.free()
        while not all(each.done() for each in uploads):
            least = min(least, disk.free())
    assert {each.result() for each in uploads} == {400}, "none of them is a whole adapter"
    assert least >= reserve - 2 * piece
