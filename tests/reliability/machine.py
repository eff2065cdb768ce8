"""Random operations and faults against a real service, compared with a model of what must be true.

The model of a run is the list of what was acknowledged. What its weights must be is found by doing
the same, undisturbed, in a new run: the files of both have the same digests.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import httpx
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from safetensors.numpy import load_file

from tests.service.samples import batch, json_datum
from tests.service_fixture import LiveService, RawClient

Item = TypeVar("Item")
Weights = tuple[Any, ...]
"""A seed, then what was done: ``("gradient", i)``, ``("step", lr)``, ``("new optimizer",)``."""
FILES = ("adapter_model.safetensors", "optimizer.safetensors")
MAX_RUNS = 3
MAX_GRADIENTS = 4
"""Gradients of a step, however many of them arrive together."""
MAX_SAMPLERS = 16
"""As many as a service keeps on disk of one run; of more, the least recently used may be gone."""
NAMES = ("a", "b")
RATES = (0.01, 0.003)


@dataclass
class Sent:
    """An acknowledged operation, what it must come to, and what it was found to come to."""

    kind: str
    fields: dict[str, Any]
    fails_with: str | None
    answer: bytes | None = None


@dataclass
class ModelRun:
    """What must be true of a run."""

    id: str
    weights: Weights
    sent: dict[int, Sent] = field(default_factory=dict)
    saved: dict[str, Weights] = field(default_factory=dict)
    failed: int = 0
    is_unloaded: bool = False

    @property
    def next(self) -> int:
        return len(self.sent) + 1

    @property
    def gradients(self) -> int:
        """How many gradients have been added since the last step."""
        return len(self.weights) - len(stepped(self.weights))


def stepped(weights: Weights) -> Weights:
    """Return the weights without the gradients that no step has used."""
    while weights[-1][0] == "gradient":
        weights = weights[:-1]
    return weights


@dataclass
class World:
    """The service that all examples share, and the faults that it has met."""

    start: Callable[..., LiveService]
    service: LiveService = field(init=False)
    raw: RawClient = field(init=False)
    faults: dict[str, int] = field(default_factory=dict)
    operations: int = 0
    references: dict[Weights, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.open(0)

    def open(self, port: int) -> None:
        """Start the service on its home folder; its snapshots are frequent."""
        self.service = self.start(port, snapshot_after_bytes=3000)
        self.raw = RawClient(self.service.base_url)

    def happened(self, fault: str) -> None:
        self.faults[fault] = self.faults.get(fault, 0) + 1

    def signal_workers(self, number: int) -> int:
        """Send a signal to each worker; returns how many there were."""
        pids = self.service.worker_pids()
        for pid in pids:
            os.kill(pid, number)
        return len(pids)

    def folder(self, run: str, name: str) -> Path:
        return self.service.home / "checkpoints" / run.replace(":", "_") / "weights" / name

    def digests(self, run: str, name: str) -> dict[str, str]:
        folder = self.folder(run, name)
        return {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in FILES}

    def reference(self, weights: Weights) -> dict[str, str]:
        """Return the digests of what these weights are when nothing disturbs their making."""
        if weights not in self.references:
            seed, *done = weights
            run = self.raw.run(seed=seed[1])
            number = 0

            def do(kind: str, **fields: Any) -> None:
                nonlocal number
                number += 1
                answer = self.raw.retrieve(self.raw.operate(kind, run, number, **fields))
                assert b'"error"' not in answer.content, answer.text

            for what, *argument in done:
                if what == "gradient":
                    do("forward_backward", **gradient(argument[0]))
                elif what == "step":
                    do("optim_step", adam_params={"learning_rate": argument[0]})
                else:
                    do("save_weights", path=f"old-{number}")
                    path = f"tinker://{run}/weights/old-{number - 1}"
                    do("load_weights", path=path, optimizer=False)
            do("save_weights", path="reference")
            self.references[weights] = self.digests(run, "reference")
            assert self.raw.post("/unload_model", {"model_id": run}).status_code == 200
        return self.references[weights]


def gradient(variant: int) -> dict[str, Any]:
    return batch(json_datum([5, 6, 7 + variant, 9]))


def draw_one(data: st.DataObject, items: Sequence[Item]) -> Item:
    """Draw one of some items.

    What is drawn does not depend on how many there are: a fault may leave one more or one fewer,
    and hypothesis wants the same choices after the same choices.
    """
    return items[data.draw(st.integers(0, 2**16)) % len(items)]


class Machine(RuleBasedStateMachine):
    """Operations and faults; after each example the service must agree with the model."""

    world: ClassVar[World]
    max_restarts: ClassVar[int] = 2
    """Restarts of the service in one example, which take most of the time."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[ModelRun] = []
        self.sampled: dict[str, bytes] = {}
        self.samplers: list[str] = []
        self.restarts = 0

    @property
    def raw(self) -> RawClient:
        return self.world.raw

    @initialize()
    def begin(self) -> None:
        self.session = self.raw.session()
        self.create()

    # ---- operations -----------------------------------------------------------------------------

    @precondition(lambda self: len(self.runs) < MAX_RUNS)
    @rule()
    def create(self) -> None:
        number = len(self.runs)
        run = self.raw.run(self.session, number, seed=number)
        self.runs.append(ModelRun(run, (("seed", number),)))

    def choose(self, data: st.DataObject) -> ModelRun | None:
        """Draw one of the runs that take operations."""
        loaded = [run for run in self.runs if not run.is_unloaded]
        return draw_one(data, loaded) if loaded else None

    def send(self, run: ModelRun, kind: str, fails_with: str | None = None, **fields: Any) -> Sent:
        """Submit the run's next operation; it counts as soon as it is acknowledged."""
        number = run.next
        request_id = self.raw.operate(kind, run.id, number, **fields)
        assert request_id == f"{run.id}:{number}"
        run.sent[number] = Sent(kind, fields, fails_with)
        self.world.operations += 1
        return run.sent[number]

    @rule(data=st.data(), variant=st.integers(0, 3))
    def forward_backward(self, data: st.DataObject, variant: int) -> None:
        run = self.choose(data)
        if run is not None and run.gradients < MAX_GRADIENTS:
            self.send(run, "forward_backward", **gradient(variant))
            run.weights += (("gradient", variant),)

    @rule(data=st.data(), variant=st.integers(0, 3), count=st.integers(1, 3), kill=st.booleans())
    def train(self, data: st.DataObject, variant: int, count: int, kill: bool) -> None:
        """Some steps without waiting for any; the engine may be killed meanwhile."""
        if (run := self.choose(data)) is None:
            return
        for number in range(count):
            if run.gradients < MAX_GRADIENTS:
                self.send(run, "forward_backward", **gradient((variant + number) % 4))
                run.weights += (("gradient", (variant + number) % 4),)
            self.send(run, "optim_step", adam_params={"learning_rate": RATES[0]})
            run.weights += (("step", RATES[0]),)
            run.failed = 0
        if kill:
            self.kill_engine()

    @rule(data=st.data())
    def forward_backward_that_fails(self, data: st.DataObject) -> None:
        """Alone, since a group that arrives together fails together."""
        if (run := self.choose(data)) is not None:
            self.settle(run)
            bad = batch(json_datum([1, 99999]))
            self.check(run, run.next, self.send(run, "forward_backward", "99999", **bad))
            run.failed += 1

    @rule(data=st.data(), rate=st.sampled_from(RATES))
    def optim_step(self, data: st.DataObject, rate: float) -> None:
        if (run := self.choose(data)) is None:
            return
        adam = {"learning_rate": rate}
        if run.failed and not run.gradients:
            self.send(run, "optim_step", "did nothing", adam_params=adam)
        else:
            self.send(run, "optim_step", adam_params=adam)
            run.weights += (("step", rate),)
        run.failed = 0

    @rule(data=st.data(), name=st.sampled_from(NAMES), overwrite=st.booleans())
    def save(self, data: st.DataObject, name: str, overwrite: bool) -> None:
        if (run := self.choose(data)) is None:
            return
        if name in run.saved and not overwrite:
            self.send(run, "save_weights", "already exists", path=name)
        else:
            self.send(run, "save_weights", path=name, overwrite=overwrite)
            run.saved[name] = stepped(run.weights)

    @rule(data=st.data(), optimizer=st.booleans())
    def load(self, data: st.DataObject, optimizer: bool) -> None:
        sources = [(run, name) for run in self.runs for name in run.saved]
        run = self.choose(data)
        if run is None or not sources:
            return
        source, name = draw_one(data, sources)
        self.settle(source)  # else the order of two runs' operations would decide what is loaded
        path = f"tinker://{source.id}/weights/{name}"
        self.send(run, "load_weights", path=path, optimizer=optimizer)
        run.weights = source.saved[name]
        if not optimizer:
            run.weights += (("new optimizer",),)
        run.failed = 0
        self.settle(run)

    @precondition(lambda self: len(self.samplers) < MAX_SAMPLERS)
    @rule(data=st.data())
    def sample(self, data: st.DataObject) -> None:
        """A sampler of a run's weights answers as any other of the same weights, at any time."""
        if (run := self.choose(data)) is None:
            return
        self.settle(run)
        fields = {"sampling_session_seq_id": len(self.samplers)}
        sent = self.send(run, "save_weights_for_sampler", **fields)
        self.samplers.append(f"{self.session}:sample:{len(self.samplers)}")
        self.check(run, run.next - 1, sent)
        self.sample_again(data)

    @precondition(lambda self: self.samplers)
    @rule(data=st.data())
    def sample_again(self, data: st.DataObject) -> None:
        sampler = draw_one(data, self.samplers)
        body = {
            "sampling_session_id": sampler,
            "prompt": {"chunks": [{"tokens": [1, 2, 3, 4]}]},
            "sampling_params": {"max_tokens": 4, "temperature": 0},
        }
        answer = self.raw.retrieve(self.raw.post("/asample", body).json()["request_id"])
        assert answer.status_code == 200, answer.text
        assert b'"error"' not in answer.content, answer.text
        assert self.sampled.setdefault(sampler, tokens_of(answer)) == tokens_of(answer)

    @rule(data=st.data())
    def unload(self, data: st.DataObject) -> None:
        if (run := self.choose(data)) is not None:
            self.settle(run)
            assert self.raw.post("/unload_model", {"model_id": run.id}).status_code == 200
            run.is_unloaded = True
            body = {"model_id": run.id, "seq_id": run.next}
            assert self.raw.post("/optim_step", body).status_code == 404

    # ---- asking again ---------------------------------------------------------------------------

    def check(self, run: ModelRun, number: int, sent: Sent) -> None:
        """An answer is what the model says, and the same whenever it is asked for."""
        answer = self.raw.retrieve(f"{run.id}:{number}")
        if run.is_unloaded and answer.status_code == 404:
            return
        assert answer.status_code == 200, answer.text
        if sent.fails_with is None:
            assert b'"error"' not in answer.content, answer.text
        else:
            assert sent.fails_with in answer.json()["error"]
        assert sent.answer in (None, answer.content)
        sent.answer = answer.content

    def settle(self, run: ModelRun) -> None:
        for number, sent in run.sent.items():
            self.check(run, number, sent)

    @rule(data=st.data())
    def retrieve_twice(self, data: st.DataObject) -> None:
        sent = [(run, number) for run in self.runs for number in run.sent]
        if sent:
            run, number = draw_one(data, sent)
            self.check(run, number, run.sent[number])
            self.check(run, number, run.sent[number])

    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        run = self.choose(data)
        if run is not None and run.sent:
            number = draw_one(data, sorted(run.sent))
            again = run.sent[number]
            request_id = self.raw.operate(again.kind, run.id, number, **again.fields)
            assert request_id == f"{run.id}:{number}"

    @rule()
    def create_again(self) -> None:
        """The same request gives the same run, as it is now."""
        if not self.runs[0].is_unloaded:
            assert self.raw.run(self.session, 0, seed=0) == self.runs[0].id

    # ---- faults ---------------------------------------------------------------------------------

    @rule()
    def kill_engine(self) -> None:
        if self.world.signal_workers(signal.SIGKILL):
            self.world.happened("engine killed")

    @rule(data=st.data())
    def stop_engine_for_a_while(self, data: st.DataObject) -> None:
        """What is sent meanwhile is acknowledged, and runs afterwards.

        What is drawn and sent does not depend on whether an engine was there to be stopped.
        """
        run = self.choose(data)
        stopped = self.world.signal_workers(signal.SIGSTOP)
        try:
            if run is not None and run.gradients < MAX_GRADIENTS:
                self.send(run, "forward_backward", **gradient(0))
                run.weights += (("gradient", 0),)
        finally:
            self.world.signal_workers(signal.SIGCONT)
        if stopped:
            self.world.happened("engine stopped for a while")

    @precondition(lambda self: self.restarts < self.max_restarts)
    @rule(how=st.sampled_from(["killed", "killed with its engine", "stopped"]))
    def restart_service(self, how: str) -> None:
        port = self.world.service.port
        if how == "stopped":
            self.world.service.stop()
        else:
            if how == "killed with its engine":
                self.world.signal_workers(signal.SIGKILL)
            self.world.service.kill()
        self.world.open(port)
        self.restarts += 1
        self.world.happened(f"service {how}")

    @precondition(lambda self: self.restarts < self.max_restarts)
    @rule(data=st.data())
    def kill_service_while_it_is_asked(self, data: st.DataObject) -> None:
        """Acknowledged or not, the client sends it again, and it happens once."""
        run = self.choose(data)
        if run is None or run.gradients == MAX_GRADIENTS:
            return
        raw, number, port = self.raw, run.next, self.world.service.port

        def ask() -> None:
            with contextlib.suppress(httpx.TransportError):  # killed before it answered
                raw.operate("forward_backward", run.id, number, **gradient(1))

        asking = threading.Thread(target=ask)
        asking.start()
        self.world.service.kill()
        asking.join()
        self.world.open(port)
        self.restarts += 1
        self.send(run, "forward_backward", **gradient(1))
        run.weights += (("gradient", 1),)
        self.world.happened("service killed while asked")

    # ---- the end --------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Every promise was kept, and the files hold what the model says, no more and no less."""
        for run in self.runs:
            self.settle(run)
            if not run.is_unloaded:
                run.saved["final"] = stepped(run.weights)
                self.send(run, "save_weights", path="final")
                self.settle(run)
            listed = self.raw.http.get(f"/training_runs/{run.id}/checkpoints").json()
            names = {row["checkpoint_id"].split("/")[1] for row in listed["checkpoints"]}
            assert names == set(run.saved)
            for name, weights in run.saved.items():
                assert steps_in(self.world.folder(run.id, name)) == steps_of(weights), weights
                assert self.world.digests(run.id, name) == self.world.reference(weights), weights
            if not run.is_unloaded:
                assert self.raw.post("/unload_model", {"model_id": run.id}).status_code == 200


def tokens_of(answer: httpx.Response) -> bytes:
    """The sampled tokens and nothing that differs between two requests."""
    from tinker.proto import response_conv

    response = response_conv.deserialize_sample_response(answer.content)
    return repr([sequence.tokens for sequence in response.sequences]).encode()


def steps_of(weights: Weights) -> int:
    """How often the optimizer that these weights have has stepped."""
    count = 0
    for what, *_ in weights:
        count = 0 if what == "new optimizer" else count + (what == "step")
    return count


def steps_in(folder: Path) -> int:
    tensors = load_file(folder / "optimizer.safetensors")
    counts = {int(value) for key, value in tensors.items() if key.endswith(".step")}
    assert len(counts) <= 1
    return counts.pop() if counts else 0
