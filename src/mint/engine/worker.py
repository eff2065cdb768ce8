"""The engine's process: ``python -m mint.engine.worker --name NAME --folder FOLDER --fd FD``.

It loads the model, says so, and then answers calls over a socket until the other side closes it.
"""

import argparse
import contextlib
import ctypes
import gc
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from contextlib import AbstractContextManager
from typing import Any

from .channel import Channel
from .messages import Call, EngineOptions, EngineReply, PackedOperation, UserError


class Worker:
    """Runs calls; between them, all running samples advance together.

    The calls of a run are run in order. Training is done pass by pass: see :mod:`.training.turns`.
    On a CPU samples also advance during a pass, which pauses for them. On a GPU a pass is recorded
    and cannot.
    """

    def __init__(self, channel: Channel, name: str, folder: str, options: EngineOptions) -> None:
        from mint.engine.model.base_model import BaseModel
        from mint.engine.training.time_share import TimeShare
        from mint.engine.training.turns import TrainingTurns

        from .engine import Engine

        self._channel = channel
        self._inbox: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._calls: deque[Call] = deque()
        self._training = TrainingTurns()
        self._share = TimeShare()
        model = BaseModel.load(name, folder, precision=options.precision)
        self._engine = Engine(model, options.memory_gb)

    def run(self) -> None:
        """Serve until the channel closes."""
        self._channel.send(EngineReply(0, self._engine.info))
        threading.Thread(target=self._read, daemon=True).start()
        while True:
            if not self._calls and not self._training and self._engine.sampling.is_idle:
                self._take_in(self._inbox.get())
            self._take_in_all()
            if (call := self._next_call()) is not None:
                self._handle(call)
            if self._training:
                self._share.trained()
                self._sample_beside_training()
                self._train()
            elif not self._engine.sampling.is_idle:
                self._advance()

    def _next_call(self) -> Call | None:
        """Take the first call that need not wait for a training operation of its run."""
        for index, call in enumerate(self._calls):
            if not self._training.has(call.arguments.get("run_id")):
                del self._calls[index]
                return call
        return None

    def _sample_beside_training(self) -> None:
        """Let samples advance for as long as training has to wait for them."""
        while not self._engine.sampling.is_idle and self._share.is_for_samples:
            self._advance()
            self._take_in_all()
            self._share.sampled()

    def _pause(self) -> None:
        """Let samples advance in the middle of a training pass."""
        self._share.trained()
        self._take_in_all()
        self._sample_beside_training()

    def _train(self) -> None:
        """Run one pass of the operation whose turn it is."""
        operation = self._training.next()
        self._share.begin_pass()
        try:
            with self._pausing():
                next(operation.steps)
        except StopIteration as end:
            self._channel.send(EngineReply(operation.call.id, end.value))
        except Exception as error:
            self._channel.send(_failure(operation.call.id, error))
        else:
            self._training.add(operation)
            self._share.end_pass()  # an operation that ended above only read its results

    def _pausing(self) -> AbstractContextManager[None]:
        from mint.engine.model.pauses import pausing

        return pausing(self._pause if self._engine.model.device.type == "cpu" else None)

    def _read(self) -> None:
        try:
            while True:
                self._inbox.put(self._channel.receive())
        except EOFError:
            pass
        finally:
            os._exit(0)  # the service is gone

    def _take_in_all(self) -> None:
        while not self._inbox.empty():
            self._take_in(self._inbox.get())

    def _take_in(self, call: Call) -> None:
        """Queue a call.

        Samples start at once, so that neither they nor the other calls starve: a step of the loop
        is one call and one token. (A sampler is used only after its creation was answered.)
        """
        if call.method in ("sample", "cancel_sample"):
            self._handle(call)
        else:
            self._calls.append(call)

    def _handle(self, call: Call) -> None:
        try:
            if call.method == "sample":
                self._engine.sample(call.id, **call.arguments)
            elif call.method == "forward_backward":
                self._begin_training(call, **call.arguments)
            else:
                self._channel.send(EngineReply(call.id, self._run(call)))
        except Exception as error:
            self._channel.send(_failure(call.id, error))

    def _run(self, call: Call) -> Any:
        if call.method == "cancel_sample":
            return self._cancel(**call.arguments)
        with self._pausing():  # a distillation has passes too
            return getattr(self._engine, call.method)(**call.arguments)

    def _begin_training(self, call: Call, run_id: str, operations: list[PackedOperation]) -> None:
        from mint.engine.training.turns import TrainingOperation

        unpacked = [operation.unpack() for operation in operations]
        steps = self._engine.forward_backward_steps(run_id, unpacked)
        tenant = self._engine.tenant_of(run_id)
        self._training.add(TrainingOperation(call, tenant, run_id, steps))

    def _cancel(self, call_id: int) -> None:
        if self._engine.sampling.cancel(call_id):
            message = "This sample was cancelled before it was finished."
            self._channel.send(EngineReply(call_id, error=message, is_user_error=True))

    def _advance(self) -> None:
        try:
            jobs = self._engine.sampling.step()
        except Exception as error:
            jobs = self._engine.sampling.abandon(error)
        else:
            for ticket in self._engine.sampling.started:
                self._channel.send(EngineReply(ticket, [], is_final=False))
            for ticket, tokens in self._engine.sampling.grown.items():
                self._channel.send(EngineReply(ticket, tokens, is_final=False))
        for job in jobs:
            if job.error is not None:
                self._channel.send(_failure(job.ticket, job.error))
            else:
                self._channel.send(EngineReply(job.ticket, job.result()))


def _failure(call_id: int, error: Exception) -> EngineReply:
    if isinstance(error, UserError):
        return EngineReply(call_id, error=str(error), is_user_error=True)
    with contextlib.suppress(OSError):  # a log on a full disk must not end the worker
        traceback.print_exception(error)
    code = error.errno if isinstance(error, OSError) else None
    return EngineReply(call_id, error=f"{type(error).__name__}: {error}", errno=code)


def keep_freed_memory() -> None:
    """Let malloc reuse freed memory instead of returning it to the system.

    A training pass allocates and frees hundreds of MB of temporary tensors. Returned memory comes
    back page by page: on two cores, a pass with SmolLM2-135M spends 0.1 to 0.4 s on it.
    """
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # of malloc.h
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(mmap_threshold, 32 * 2**20)  # the most that glibc takes
        mallopt(trim_threshold, 2**30)
        mallopt(top_pad, 64 * 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--memory-gb", type=float)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the service gets it too, and ends its workers
    # A thread that waits for the others of its team spins for a moment, then sleeps. Spinning for
    # long takes the cores from the service and the script beside us; sleeping at once costs a
    # wake-up at each of the thousands of small products of a step. Measured on two idle cores with
    # SmolLM2-135M: 48 answers decode at 214 tok/s when threads sleep at once, at 410 with this.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    keep_freed_memory()
    channel = Channel(socket.socket(fileno=options.fd))
    gc.disable()  # what is imported and loaded stays: looking for garbage in it takes 0.6 s
    try:
        chosen = EngineOptions(options.precision, options.memory_gb)
        worker = Worker(channel, options.name, options.folder, chosen)
    except Exception as error:
        channel.send(_failure(0, error))
        sys.exit(1)
    gc.freeze()
    gc.enable()
    worker.run()


if __name__ == "__main__":
    main()
