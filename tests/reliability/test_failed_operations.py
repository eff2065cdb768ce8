"""An operation that fails has no effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.conftest import Faults
from tests.reliability.test_crashes import STEP, saved
from tests.service.runs.test_distillation import body, distill
from tests.service.samples import batch, json_datum
from tests.service_fixture import MODEL, LiveService, RawClient

Start = Callable[..., LiveService]
ENCODE = "mint.service.wire.codec:encode_forward_backward"
OUTCOME = "mint.service.runs.in_engine:Outcome"
OPTIM_STEP = "mint.engine.engine:Engine.optim_step"


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
            )
        ),
    ],
    ids=["answer", "replay", "reverse_kl", "load_weights", "optim_step", "engine"],
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
