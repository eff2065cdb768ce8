"""An operation that fails has no effect, and what was reported about an operation stays so."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mint.service.runs.disk_space import DiskSpace
from mint.service.runs.journal import Journal, RunIsElsewhere
from tests.reliability.conftest import Faults
from tests.reliability.test_crashes import STEP, saved
from tests.service.runs.test_distillation import body, distill
from tests.service.samples import batch, json_datum
from tests.service_fixture import MODEL, LiveService, RawClient

Start = Callable[..., LiveService]
ENCODE = "mint.service.wire.codec:encode_forward_backward"
OUTCOME = "mint.service.runs.in_engine:Outcome"
RECORD = "mint.service.runs.journal:Journal.append_outcome"
OPTIM_STEP = "mint.engine.engine:Engine.optim_step"
WRITE = "mint.service.runs.journal:_write"


def begin(raw: RawClient) -> str:
    """A run with a checkpoint, momentum and a gradient, after four operations."""
    run = raw.run()
    raw.result(raw.operate("save_weights", run, 1, path="start"))
    for number, tokens in ((2, [5, 6, 7]), (4, [5, 6, 8])):
        raw.retrieve(raw.operate("forward_backward", run, number, **batch(json_datum(tokens))))
        if number == 2:
            raw.result(raw.operate("optim_step", run, 3, **STEP))
    return run


def operate(raw: RawClient, kind: str, run: str, number: int) -> str:
    """Submit an operation that changes the run; return its request id."""
    fields: dict[str, Any] = {
        "forward_backward": batch(json_datum([9, 8, 7, 6])),
        "optim_step": STEP,
        "load_weights": {"path": f"tinker://{run}/weights/start"},
    }
    if kind == "reverse_kl":
        return distill(raw, body(run, MODEL, number))
    return raw.operate(kind, run, number, **fields[kind])


def finish(raw: RawClient, run: str, home: Path, number: int) -> bytes:
    """Add a gradient and step; return the adapter."""
    raw.retrieve(raw.operate("forward_backward", run, number, **batch(json_datum([5, 6, 9]))))
    assert "metrics" in raw.result(raw.operate("optim_step", run, number + 1, **STEP))
    return saved(raw, run, home, number + 2)


@pytest.mark.parametrize(
    ("kind", "fails_at"),
    [
        ("forward_backward", [(ENCODE, 3, "MemoryError")]),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("forward_backward", [(OUTCOME, 5, "MemoryError"), (OUTCOME, 6, "MemoryError")]),
                ("reverse_kl", [(OUTCOME, 5, "MemoryError")]),
                ("load_weights", [(OUTCOME, 5, "MemoryError")]),
                ("optim_step", [(OUTCOME, 5, "MemoryError")]),
                ("optim_step", [(OPTIM_STEP, 2, "EIO after")]),
                ("forward_backward", [(RECORD, 5, "MemoryError")]),
                ("optim_step", [(RECORD, 5, "MemoryError")]),
            )
        ),
    ],
    ids=[
        "answer",
        "replay",
        "reverse_kl",
        "load_weights",
        "optim_step",
        "engine",
        "gradient's record",
        "step's record",
    ],
)
def test_an_operation_that_fails_after_the_engine_executed_it_has_no_effect(
    own_service: Start, faults: Faults, kind: str, fails_at: list[tuple[str, int, str]]
) -> None:
    """Its engine kept the gradient or the step. ``replay``: the first one fails to restore the run
    without it, too."""
    for fault in fails_at:
        faults.at(*fault)
    service = own_service()
    raw = RawClient(service.base_url)
    run, number = begin(raw), 5
    for _ in fails_at:
        assert raw.result(operate(raw, kind, run, number))["category"] == "server"
        number += 1
    faults.require_all()
    final = finish(raw, run, service.home, number)
    assert final == finish(raw, begin(raw), service.home, 5)


@pytest.mark.slow
def test_an_error_of_the_user_costs_no_restore(own_service: Start, faults: Faults) -> None:
    faults.at("mint.engine.engine:Engine.create_run", 2, "EIO")
    raw = RawClient(own_service().base_url)
    run = begin(raw)
    wrong = raw.operate("forward_backward", run, 5, **batch(json_datum([1, 99999])))
    assert raw.result(wrong)["category"] == "user"
    assert "metrics" in raw.result(raw.operate("optim_step", run, 6, **STEP))
    assert faults.happened == 0


@pytest.mark.parametrize(
    ("failure", "fails_first"),
    [
        ("ENOSPC", True),
        pytest.param("ENOSPC", False, marks=pytest.mark.slow),
        pytest.param("EROFS", True, marks=pytest.mark.slow),
    ],
)
def test_what_was_reported_stays_so_if_its_outcome_could_not_be_written_at_first(
    own_service: Start, faults: Faults, failure: str, fails_first: bool
) -> None:
    """After a kill the operation was executed again, and ended in another way."""
    for call in (9, 10, 11):  # an operation is 3 writes, an outcome 2
        faults.at(WRITE, call, failure)
    if fails_first:
        faults.at(OPTIM_STEP, 1, "EIO")
    service = own_service(long_poll_s=1.0)
    raw = RawClient(service.base_url)
    run = raw.run()
    raw.retrieve(raw.operate("forward_backward", run, 1, **batch(json_datum())))
    reported = raw.result(step := raw.operate("optim_step", run, 2, **STEP))
    assert ("error" in reported) == fails_first
    service.kill()
    if not fails_first:
        faults.at(OPTIM_STEP, 1, "EIO")
    raw = RawClient(own_service(service.port).base_url)
    assert raw.result(step) == reported
    raw.result(f"{run}:0")  # when the run was restored, which fails if the step is replayed
    faults.require_all()


@pytest.mark.slow
def test_an_outcome_that_cannot_be_written_when_its_session_ends_is_not_reported(
    own_service: Start, faults: Faults
) -> None:
    """The operation is executed once the run is used again, though it was reported as aborted."""
    for call in (4, 5, 6):
        faults.at(WRITE, call, "ENOSPC")
    service = own_service(session_idle_s=0.5)
    raw = RawClient(service.base_url)
    run = raw.run()
    step = raw.operate("optim_step", run, 2, **STEP)
    folder = service.home / "runs" / run.replace(":", "_")
    while True:
        try:
            Journal(folder).close()
        except RunIsElsewhere:
            continue
        break
    raw.retrieve(raw.operate("forward_backward", run, 1, **batch(json_datum())))
    assert "metrics" in raw.result(step)
    faults.require_all()


@pytest.mark.slow
def test_an_outcome_that_cannot_be_written_at_first_is_written_before_its_run_is_unloaded(
    own_service: Start, faults: Faults
) -> None:
    """Nothing would execute the operation again, so its answer would never come."""
    for call in (4, 5, 6):
        faults.at(WRITE, call, "ENOSPC")
    service = own_service()
    raw = RawClient(service.base_url)
    run = raw.run()
    step = raw.operate("optim_step", run, 2, **STEP)
    assert raw.post("/unload_model", {"model_id": run}).status_code == 200
    journal = Journal(service.home / "runs" / run.replace(":", "_"))
    assert [outcome.seq_ids for outcome in journal.outcomes] == [[2]]
    journal.close()
    assert "session of this run ended" in raw.result(step)["error"]
    faults.require_all()


def test_an_outcome_waits_for_a_disk_that_cannot_be_written_and_says_why(tmp_path: Path) -> None:
    space = DiskSpace(tmp_path, 0, limit_s=None)
    failures = [OSError(errno.EROFS, "Read-only file system"), MemoryError()]
    why: list[str | None] = []

    async def write() -> str:
        why.append(space.why_waiting())
        if failures:
            raise failures.pop(0)
        return "written"

    assert asyncio.run(space.use(write)) == "written"
    assert why[0] is None
    assert "Writing an outcome failed: Read-only file system. It is tried again." in str(why[1])
    assert "Writing an outcome failed: the service has no memory left." in str(why[2])
    assert space.why_waiting() is None
