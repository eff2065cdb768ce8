"""The engine's process: ``python -m mint.engine.worker --name NAME --folder FOLDER --fd FD``.

It loads the model, says so, and then answers calls over a socket until the other side closes it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pickle
import queue
import socket
import struct
import sys
import threading
import traceback
from collections import deque

from .messages import Call, Reply, UserError

_LENGTH = struct.Struct(">Q")


class Channel:
    """Pickled messages over a socket, each after its length."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._stream = sock.makefile("rb")

    def receive(self) -> Call | None:
        """The next call, or None when the other side is gone."""
        header = self._stream.read(_LENGTH.size)
        if len(header) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack(header)
        body = self._stream.read(size)
        if len(body) < size:
            return None
        call: Call = pickle.loads(body)
        return call

    def send(self, reply: Reply) -> None:
        body = pickle.dumps(reply, protocol=pickle.HIGHEST_PROTOCOL)
        self._sock.sendall(_LENGTH.pack(len(body)) + body)


class Worker:
    """Runs calls in order; between them, all running samples advance together."""

    def __init__(self, channel: Channel, name: str, folder: str) -> None:
        from .engine import Engine
        from .model import BaseModel

        self._channel = channel
        self._inbox: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._calls: deque[Call] = deque()
        self._engine = Engine(BaseModel.load(name, folder))

    def run(self) -> None:
        """Serve until the channel closes."""
        self._channel.send(Reply(0, self._engine.model.info))
        threading.Thread(target=self._read, daemon=True).start()
        while True:
            self._take_in()
            if self._calls:
                self._handle(self._calls.popleft())
            if not self._engine.sampling.is_idle:
                self._advance()

    def _read(self) -> None:
        try:
            while (call := self._channel.receive()) is not None:
                self._inbox.put(call)
        finally:
            os._exit(0)  # the service is gone: nobody is left to answer

    def _take_in(self) -> None:
        """Queue what has arrived; wait for something only when there is nothing to do.

        Samples start at once, so that neither they nor the other calls starve: a step of the loop
        is one call and one token. (A sampler is used only after its creation was answered.)
        """
        wait = not self._calls and self._engine.sampling.is_idle
        while wait or not self._inbox.empty():
            call = self._inbox.get()
            if call.method in ("sample", "cancel_sample"):
                self._handle(call)
            else:
                self._calls.append(call)
            wait = False

    def _handle(self, call: Call) -> None:
        try:
            if call.method == "sample":
                self._engine.sample(call.id, **call.arguments)
                return
            if call.method == "cancel_sample":
                self._cancel(**call.arguments)
                value = None
            else:
                value = getattr(self._engine, call.method)(**call.arguments)
        except Exception as error:
            self._channel.send(_failure(call.id, error))
        else:
            self._channel.send(Reply(call.id, value))

    def _cancel(self, call_id: int) -> None:
        if self._engine.sampling.cancel(call_id):
            message = "This sample was cancelled before it was done."
            self._channel.send(Reply(call_id, error=message, is_user_error=True))

    def _advance(self) -> None:
        try:
            jobs = self._engine.sampling.step()
        except Exception as error:
            for job in self._engine.sampling.abandon():
                self._channel.send(_failure(job.ticket, error))
        else:
            for ticket, tokens in self._engine.sampling.grown.items():
                self._channel.send(Reply(ticket, tokens, is_final=False))
            for job in jobs:
                self._channel.send(Reply(job.ticket, job.result()))


def _failure(call_id: int, error: Exception) -> Reply:
    if isinstance(error, UserError):
        return Reply(call_id, error=str(error), is_user_error=True)
    with contextlib.suppress(OSError):  # a log on a full disk must not end the worker
        traceback.print_exception(error)
    return Reply(call_id, error=f"{type(error).__name__}: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--fd", type=int, required=True)
    options = parser.parse_args()
    # Threads that spin while they wait take the cores from the service and the script beside us,
    # and one of them descheduled stops all. Measured on two cores: sampling beside other processes
    # took 75 s spinning and 6.6 s waiting passively; alone, 2.3 s and 3.0 s.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    channel = Channel(socket.socket(fileno=options.fd))
    try:
        worker = Worker(channel, options.name, options.folder)
    except Exception as error:
        channel.send(_failure(0, error))
        sys.exit(1)
    worker.run()


if __name__ == "__main__":
    main()
