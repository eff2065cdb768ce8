"""The worker process: calls in, replies out, and an end when the service is gone."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mint.engine.channel import Channel
from mint.engine.engine import Engine
from mint.engine.messages import (
    AdamSettings,
    Call,
    Datum,
    EngineOptions,
    EngineReply,
    ForwardBackward,
    LoraSpec,
    ModelInfo,
    PackedOperation,
    SampleRequest,
)
from mint.engine.model.base_model import BaseModel
from mint.engine.training.turns import TrainingOperation, TrainingTurns
from mint.engine.worker import Worker
from tests.engine.conftest import ids


class Client:
    """The service's side of the channel."""

    def __init__(self, folder: Path) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(60)
        command = [sys.executable, "-m", "mint.engine.worker", "--name", "tiny"]
        command += ["--folder", str(folder), "--fd", str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        self.socket = ours
        self._channel = Channel(ours)
        self.started: list[int] = []

    def send(self, call_id: int, method: str, **arguments: Any) -> None:
        self._channel.send(Call(call_id, method, arguments))

    def receive(self) -> EngineReply:
        """The next reply, but for those that say that a sample has started."""
        while True:
            reply: EngineReply = self._channel.receive()
            if reply.is_final or reply.value:
                return reply
            self.started.append(reply.id)


@pytest.fixture
def client(tiny_model: Path) -> Iterator[Client]:
    client = Client(tiny_model)
    yield client
    client.process.kill()
    client.process.wait()


def test_a_worker_trains_and_samples_and_ends_with_the_service(client: Client) -> None:
    hello = client.receive()
    assert hello.id == 0
    assert isinstance(hello.value, ModelInfo)
    tokens = ids("hello there")
    datum = Datum(tokens[:-1], {"target_tokens": tokens[1:]})
    client.send(1, "create_run", run_id="run", lora=LoraSpec(rank=2))
    operation = ForwardBackward([datum], "cross_entropy")
    client.send(2, "forward_backward", run_id="run", operations=[PackedOperation.pack(operation)])
    client.send(3, "optim_step", run_id="run", params=AdamSettings())
    client.send(4, "create_sampler", sampler_id="s", run_id="run")
    replies = [client.receive() for _ in range(4)]
    assert [(reply.id, reply.error) for reply in replies] == [(n, None) for n in (1, 2, 3, 4)]

    client.send(5, "sample", sampler_id="s", request=SampleRequest(tokens, 1, 30, stop=[]))
    client.send(6, "sample", sampler_id="s", request=SampleRequest(tokens, 2, 3, stop=[]))
    assert [client.receive().id for _ in range(2)] == [6, 5]

    client.socket.shutdown(socket.SHUT_RDWR)
    assert client.process.wait(timeout=30) == 0


def test_a_worker_ends_with_a_service_that_died_without_reading_its_answers(
    client: Client,
) -> None:
    for number in range(20):
        client.send(number + 1, "create_sampler", sampler_id=f"s{number}")
    client.socket.recv(1)  # the worker answers, and its answers are never read
    client._channel.close()
    client.process.wait(timeout=60)


def test_user_errors_and_failures_differ_and_leave_the_worker_running(client: Client) -> None:
    client.receive()
    client.send(1, "create_run", run_id="run", lora=LoraSpec(rank=0))
    client.send(2, "optim_step", run_id="unheard of", params=AdamSettings())
    client.send(3, "sample", sampler_id="s", request=SampleRequest(np.array([1]), 1, 1))
    client.send(4, "create_sampler", sampler_id="s")
    by_id = {reply.id: reply for reply in (client.receive() for _ in range(4))}
    assert by_id[1].is_user_error
    assert not by_id[2].is_user_error
    assert by_id[2].error is not None
    assert by_id[3].error is not None
    assert by_id[4].error is None


def test_samples_continue_while_an_operation_trains_in_several_passes(client: Client) -> None:
    client.receive()
    rng = np.random.default_rng(0)
    data = [Datum(t[:-1], {"target_tokens": t[1:]}) for t in rng.integers(0, 250, (44, 200))]
    client.send(1, "create_run", run_id="run", lora=LoraSpec(rank=2))
    client.send(2, "create_sampler", sampler_id="s")
    assert [client.receive().id for _ in range(2)] == [1, 2]
    operations = [PackedOperation.pack(ForwardBackward(data, "cross_entropy"))]
    client.send(3, "forward_backward", run_id="run", operations=operations)
    request = SampleRequest(ids("hello"), 1, 5, stop=[], progress=True)
    client.send(4, "sample", sampler_id="s", request=request)
    replies = [client.receive()]
    while not (replies[-1].id == 3 and replies[-1].is_final):
        replies.append(client.receive())
    assert 4 in {reply.id for reply in replies}, "training in several passes let no sample advance"


@pytest.fixture
def pair(tiny_model: Path) -> Iterator[tuple[Channel, Worker]]:
    """The service's side of a channel and a worker in this process, with a run and a sampler."""
    service, ours = (Channel(sock) for sock in socket.socketpair())
    worker = Worker(ours, "tiny", str(tiny_model), EngineOptions())
    worker._handle(Call(1, "create_run", {"run_id": "run", "lora": LoraSpec(rank=2)}))
    worker._handle(Call(2, "create_sampler", {"sampler_id": "s"}))
    assert [service.receive().id for _ in range(2)] == [1, 2]
    yield service, worker
    service.close()
    ours.close()


def training_call(call_id: int) -> Call:
    data = [Datum(ids("a text")[:-1], {"target_tokens": ids("a text")[1:]})]
    operation = PackedOperation.pack(ForwardBackward(data, "cross_entropy"))
    return Call(call_id, "forward_backward", {"run_id": "run", "operations": [operation]})


def sampling_call(call_id: int, max_tokens: int) -> Call:
    request = SampleRequest(ids("hello"), 2, max_tokens, stop=[])
    return Call(call_id, "sample", {"sampler_id": "s", "request": request})


def final_reply(service: Channel) -> EngineReply:
    while not (reply := service.receive()).is_final:
        pass
    return reply


def test_samples_that_wait_get_the_time_of_a_pass_before_the_next_one(
    pair: tuple[Channel, Worker],
) -> None:
    """They got the time that reading the last operation's results took, which is next to none."""
    service, worker = pair
    worker._handle(training_call(3))
    worker._train()
    pass_s = worker._share._pass_s
    assert pass_s > 0
    worker._train()
    assert not worker._training
    assert worker._share._pass_s == pass_s
    assert final_reply(service).id == 3

    worker._share._pass_s = 600.0
    worker._handle(sampling_call(4, 20))
    worker._handle(training_call(5))
    worker._sample_beside_training()
    assert final_reply(service).id == 4


def test_a_sample_that_arrives_during_a_pass_does_not_wait_for_its_end(
    pair: tuple[Channel, Worker],
) -> None:
    service, worker = pair
    worker._handle(training_call(3))
    worker._inbox.put(sampling_call(4, 1))
    worker._inbox.put(Call(5, "optim_step", {"run_id": "run", "params": AdamSettings()}))
    worker._train()  # the only pass: what is left is to report its results
    assert final_reply(service).id == 4
    assert worker._next_call() is None, "the step waits for the end of the operation"
    worker._train()
    assert final_reply(service).id == 3
    call = worker._next_call()
    assert call is not None
    worker._handle(call)
    assert final_reply(service).error is None


def test_a_small_operation_does_not_wait_for_a_large_one_of_another_run(client: Client) -> None:
    client.receive()
    rng = np.random.default_rng(0)
    data = [Datum(t[:-1], {"target_tokens": t[1:]}) for t in rng.integers(0, 250, (200, 200))]
    for number, (run, tenant) in enumerate({"large": "crowd", "small": "ada"}.items()):
        client.send(number, "create_run", run_id=run, lora=LoraSpec(rank=2), tenant=tenant)
        client.receive()
    large = [PackedOperation.pack(ForwardBackward(data, "cross_entropy"))]
    small = [PackedOperation.pack(ForwardBackward(data[:1], "cross_entropy"))]
    client.send(3, "forward_backward", run_id="large", operations=large)
    client.send(4, "optim_step", run_id="large", params=AdamSettings())
    client.send(5, "forward_backward", run_id="small", operations=small)
    client.send(6, "optim_step", run_id="small", params=AdamSettings())
    client.send(7, "create_sampler", sampler_id="s")
    order = [client.receive() for _ in range(5)]
    assert not any(reply.error for reply in order)
    ids_in_order = [reply.id for reply in order]
    assert ids_in_order[-2:] == [3, 4], "the large one was done first, or out of order"
    assert [i for i in ids_in_order if i in (5, 6)] == [5, 6]


def test_training_in_turns_gives_the_same_gradients(base: BaseModel) -> None:
    rng = np.random.default_rng(0)
    data = [Datum(t[:-1], {"target_tokens": t[1:]}) for t in rng.integers(0, 250, (44, 200))]
    operations = [ForwardBackward(data, "cross_entropy")]
    alone, together = Engine(base), Engine(base)
    for engine in (alone, together):
        for run in ("one", "other"):
            engine.create_run(run, LoraSpec(rank=2, seed=1))
    for run in ("one", "other"):
        alone.forward_backward(run, operations)
    turns = TrainingTurns()
    for run in ("one", "other"):
        call = Call(0, "forward_backward", {})
        steps = together.forward_backward_steps(run, operations)
        turns.add(TrainingOperation(call, "", run, steps))
    while turns:
        operation = turns.next()
        with suppress(StopIteration):
            next(operation.steps)
            turns.add(operation)
    for run in ("one", "other"):
        for mine, theirs in zip(
            alone._runs[run].adapter.parameters(),
            together._runs[run].adapter.parameters(),
            strict=True,
        ):
            assert (mine.grad is None) == (theirs.grad is None)
            if mine.grad is not None and theirs.grad is not None:
                np.testing.assert_array_equal(mine.grad.numpy(), theirs.grad.numpy())


def test_a_folder_without_a_model_is_reported_as_the_first_reply(tmp_path: Path) -> None:
    client = Client(tmp_path)
    assert client.receive().error is not None
    assert client.process.wait(timeout=60) == 1
