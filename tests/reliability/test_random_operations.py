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


MAX_ROUNDS = 6
"""Whether a drawn fault happens depends on timing (an engine that is starting cannot be killed)."""


def explore(world: World, number: int, examples: int, steps: int, restarts: int) -> None:
    """Run the examples of a seed against one service, which counts what happened to it."""
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


@DATABASES
@pytest.mark.slow
def test_every_acknowledged_operation_happens_once(own_service: Start, database: str) -> None:
    world = World(own_service)
    first = 100 if database else 0
    for number in range(first, first + MAX_ROUNDS):
        explore(world, number, examples=3, steps=14, restarts=1)
        if sum(world.faults.values()) >= 3 and world.operations >= 12:
            return
    pytest.fail(f"too few: {world.operations} operations, faults {world.faults}")


@DATABASES
@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_every_acknowledged_operation_happens_once_many_times(own_service: Start) -> None:
    examples = int(os.environ.get("MINT_CHAOS_EXAMPLES", "40"))
    number = int(os.environ.get("MINT_CHAOS_SEED", random.randrange(10**6)))
    print(f"MINT_CHAOS_SEED={number} repeats this")
    world = World(own_service)
    explore(world, number, examples, steps=40, restarts=2)
    print(f"{examples} examples, {world.operations} operations, faults: {world.faults}")
    assert sum(world.faults.values()) >= 2 * examples, world.faults
