"""Random kills, stops and a bad network while an unmodified client trains: the same bits result."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import tinker
from tinker import types

from tests.processes import is_running
from tests.reliability.network import bad_network
from tests.service.samples import datum, prompt
from tests.service_fixture import DATABASES, MODEL, LiveService, RawClient

Start = Callable[..., LiveService]
FILES = ("adapter_model.safetensors", "optimizer.safetensors")
FAULTS = ("engine killed", "service killed", "both killed", "engine stopped", "service stopped")


@dataclass
class Injector:
    """Ends and stops the processes of a service, starts it again, and counts what it did."""

    start: Start
    patience_s: float
    """How long a process stays stopped."""
    service: LiveService = field(init=False)
    happened: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.service = self.start(long_poll_s=1.0)

    def inject(self, fault: str) -> None:
        what, _, how = fault.partition(" ")
        if how == "killed":
            if what != "service":
                self._signal_engine(signal.SIGKILL)
            if what != "engine":
                self.service.kill()
                self.service = self.start(self.service.port, long_poll_s=1.0)
        elif what == "engine":
            workers = self._signal_engine(signal.SIGSTOP)
            raw, until = RawClient(self.service.base_url), time.monotonic() + self.patience_s
            while time.monotonic() < until:
                assert raw.http.get(f"{self.service.base_url}/healthz").status_code == 200
            for pid in workers:
                os.kill(pid, signal.SIGCONT)
        else:
            self.service.process.send_signal(signal.SIGSTOP)
            with pytest.raises(httpx.ReadTimeout):
                httpx.get(f"{self.service.base_url}/healthz", timeout=self.patience_s)
            self.service.process.send_signal(signal.SIGCONT)
        self.happened[fault] += 1

    def _signal_engine(self, number: signal.Signals) -> list[int]:
        while not (workers := [pid for pid in self.service.worker_pids() if is_running(pid)]):
            pass  # it is being started
        for pid in workers:
            os.kill(pid, number)
            while number == signal.SIGKILL and is_running(pid):
                pass  # on a busy machine dying takes its time
        return workers


def client_of(base_url: str) -> tinker.ServiceClient:
    return tinker.ServiceClient(base_url=base_url, api_key="tml-test")


def saved(training: tinker.TrainingClient, home: Path) -> dict[str, bytes]:
    """Save a run and return its files."""
    run, _, name = training.save_state("end").result().path.removeprefix("tinker://").split("/")
    folder = home / "checkpoints" / run.replace(":", "_") / "weights" / name
    return {file: (folder / file).read_bytes() for file in FILES}


def train(
    client: tinker.ServiceClient,
    steps: int,
    plan: dict[int, str],
    inject: Callable[[str], None],
    rng: random.Random,
) -> tinker.TrainingClient:
    """Train; at the planned steps, let a fault happen while the step's operations are on their way.

    Two more operations are always under way, so that most faults hit one.
    """
    training = client.create_lora_training_client(base_model=MODEL, rank=4, seed=1)
    under_way = []
    for step in range(steps):
        loss = training.forward_backward([datum(step)], "cross_entropy")
        under_way += [loss, training.optim_step(types.AdamParams(learning_rate=0.01))]
        if (fault := plan.get(step)) is not None:
            for _ in range(rng.randrange(3)):
                under_way.pop(0).result()
            inject(fault)
        while len(under_way) > 4:
            under_way.pop(0).result()
    for future in under_way:
        future.result()
    return training


def survive(start: Start, faults: list[str], seed: int, patience_s: float) -> Injector:
    """Train with faults at random moments, and without; both must end in the same bits."""
    rng = random.Random(seed)
    injector = Injector(start, patience_s)
    steps = 2 * len(faults) + 2
    plan = dict(zip(rng.sample(range(1, steps), len(faults)), faults, strict=True))
    client = client_of(injector.service.base_url)
    disturbed = saved(train(client, steps, plan, injector.inject, rng), injector.service.home)
    quiet = train(client, steps, {}, injector.inject, rng)
    assert disturbed == saved(quiet, injector.service.home)
    assert injector.happened == Counter(faults)
    return injector


@pytest.mark.slow
def test_a_run_with_kills_and_stops_ends_in_the_bits_of_a_run_with_none(own_service: Start) -> None:
    survive(own_service, list(FAULTS), seed=2, patience_s=1.0)


@DATABASES
@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_a_run_with_twenty_kills_ends_in_the_bits_of_a_run_with_none(own_service: Start) -> None:
    seed = int(os.environ.get("MINT_CHAOS_SEED", random.randrange(10**6)))
    print(f"MINT_CHAOS_SEED={seed} repeats this")
    rng = random.Random(seed)
    kills = [rng.choice(FAULTS[:3]) for _ in range(20)]
    injector = survive(own_service, [*kills, "engine stopped", "service stopped"], seed, 60.0)
    print(f"faults: {dict(injector.happened)}")
    assert sum(injector.happened[fault] for fault in FAULTS[:3]) >= 20


def train_through_a_bad_network(service: LiveService, seed: int, cuts: int, steps: int) -> None:
    """Train and sample through a bad network, and directly: the same bits and tokens result."""
    seen = []
    with bad_network(service.port, seed, cuts) as network:
        for url in (network.base_url, service.base_url):
            client = client_of(url)
            training = train(client, steps, {}, lambda _: None, random.Random(0))
            sampler = training.save_weights_and_get_sampling_client()
            params = types.SamplingParams(max_tokens=8, temperature=0.0)
            answers = [sampler.sample(prompt(), 2, params) for _ in range(steps)]
            tokens = [[s.tokens for s in answer.result().sequences] for answer in answers]
            seen.append((tokens, saved(training, service.home)))
    print(f"the network {network.happened}")
    assert seen[0] == seen[1]
    assert network.happened["cut"] == cuts
    assert network.happened["slow"] >= steps


@pytest.mark.slow
def test_a_slow_network_that_cuts_connections_changes_nothing(live_service: LiveService) -> None:
    train_through_a_bad_network(live_service, seed=1, cuts=8, steps=6)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_a_slow_network_that_cuts_connections_for_long(live_service: LiveService) -> None:
    train_through_a_bad_network(live_service, random.randrange(10**6), cuts=100, steps=60)
