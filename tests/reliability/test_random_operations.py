"""Random operations and faults: short and always the same in CI, long by ``make chaos``."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.reliability.machine import Machine, World
from tests.service_fixture import DATABASES, LiveService

Start = Callable[..., LiveService]


def explore(start: Start, number: int, examples: int, steps: int, restarts: int) -> World:
    """Run the examples of a seed against one service; returns it with what happened to it."""
    world = World(start)
    machine = type("Machine", (Machine,), {"world": world, "max_restarts": restarts})
    options = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=False,  # the seed decides
        database=None,
        phases=[Phase.generate],  # a smaller example would take hundreds of restarts to find
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seed(number)(machine), settings=options)
    return world


@DATABASES
@pytest.mark.slow
def test_every_acknowledged_operation_happens_once(own_service: Start, database: str) -> None:
    world = explore(own_service, number=5 if database else 4, examples=3, steps=14, restarts=1)
    assert sum(world.faults.values()) >= 3, world.faults
    assert world.operations >= 12


@DATABASES
@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_every_acknowledged_operation_happens_once_many_times(own_service: Start) -> None:
    examples = int(os.environ.get("MINT_CHAOS_EXAMPLES", "40"))
    number = int(os.environ.get("MINT_CHAOS_SEED", random.randrange(10**6)))
    print(f"MINT_CHAOS_SEED={number} repeats this")
    world = explore(own_service, number, examples, steps=40, restarts=2)
    print(f"{examples} examples, {world.operations} operations, faults: {world.faults}")
    assert sum(world.faults.values()) >= 2 * examples, world.faults
