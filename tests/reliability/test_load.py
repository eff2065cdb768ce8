"""Overload in a short form: nothing fails, nothing is lost. The long form is ``make soak``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.load import Tally, burst, open_journals, probing
from tests.reliability.soak import Soak
from tests.service_fixture import DATABASES, MODEL, LiveService, start_service


@pytest.mark.parametrize(
    ("healthz", "said"),
    [
        ([0.2, 0.99], []),
        ([0.2, 1.3, 2.04], ["healthz: 2 of 3 answers took more than 1.0 s, the slowest 2.04 s"]),
        ([], ["healthz: no answer was timed"]),
    ],
)
def test_the_long_forms_report_answers_that_came_later_than_promised(
    healthz: list[float], said: list[str]
) -> None:
    assert Tally(seconds={"healthz": healthz, "heartbeat": [0.1]}).late() == said


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def loaded_service(
    request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveService]:
    """With each kind of database."""
    settings: dict[str, Any] = {"models": (MODEL,)}
    if request.param == "postgresql":
        settings["database_url"] = request.getfixturevalue("database_server").database()
    service = start_service(tmp_path_factory.mktemp("load"), tiny_model, **settings)
    yield service
    service.stop()


@pytest.mark.slow
def test_a_burst_beside_long_polls_and_a_large_batch_fails_nothing(
    loaded_service: LiveService,
) -> None:
    tally = Tally()
    with probing(loaded_service, tally):
        asyncio.run(burst(loaded_service, tally, polls=200, samples=100, clients=10, megabytes=20))
    assert tally.errors == []
    assert (tally.counts["samples"], tally.counts["polls"]) == (100, 200)
    assert tally.counts["batch bytes"] >= 20_000_000
    assert tally.counts["healthz 200"] >= 5, "health was polled during the whole test"


@DATABASES
@pytest.mark.slow
def test_clients_that_come_go_crash_and_misbehave_leave_nothing_behind(
    own_service: Callable[..., LiveService],
) -> None:
    limits = {"session_idle_s": 5.0, "result_kept_s": 5.0, "gap_limit_s": 5.0}
    service = own_service(models=(MODEL,), **limits)
    soak = Soak(service)
    asyncio.run(soak.run(rounds=2))
    assert soak.tally.errors == []
    soak.require(rounds=2)
    assert open_journals(service) > 0, "the clients that crashed left their runs behind"
    asyncio.run(soak.settle())
