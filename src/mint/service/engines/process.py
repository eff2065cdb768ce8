"""One engine worker: a child process, and the calls to it over a socket."""

import asyncio
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from mint.engine.channel import AsyncChannel
from mint.engine.messages import Call, EngineOptions, EngineReply, ModelInfo
from mint.service.admin.metrics import measured
from mint.service.errors import EngineDied, UserError

log = logging.getLogger(__name__)
GB = 1024**3
_END_LIMIT_S = 5.0
Listener = Callable[[Any], None]


class EngineProcess:
    """A worker with a loaded base model. Use :meth:`start`, then :meth:`call`."""

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], sock: socket.socket, log_file: Path
    ) -> None:
        self.name = name
        self.log_hint = f"The engine's log is logs/{log_file.name} in the home folder."
        self.info: ModelInfo
        self._process = process
        self._ids = itertools.count()
        self._waiting: dict[int, tuple[asyncio.Future[Any], Listener | None]] = {}
        self._last_answer = time.monotonic()
        self._is_ending = False
        self._channel = AsyncChannel(sock)
        self._read_task = asyncio.create_task(self._read())

    @property
    def is_alive(self) -> bool:
        return not self._read_task.done()

    @property
    def plan(self) -> str | None:
        """What the engine decided when it loaded its model, in one line."""
        if (plan := self.info.plan) is None:
            return None
        return (
            f"{self.name} on {plan.device}: precision {plan.precision} ({plan.reason}), "
            f"{plan.kv_tokens:,} KV tokens ({plan.kv_bytes / GB:.1f} GB), "
            f"{plan.train_tokens:,} training tokens a pass"
        )

    @classmethod
    async def start(
        cls, name: str, folder: Path, log_file: Path, limit_s: float, options: EngineOptions
    ) -> Self:
        """Start a worker and wait until its model is loaded. Raises EngineDied or UserError."""
        # In a thread: until the worker runs its own program, the caller waits for it.
        process, sock = await asyncio.to_thread(_spawn, name, folder, log_file, options)
        engine = cls(name, process, sock, log_file)
        loaded = asyncio.get_running_loop().create_future()
        engine._waiting[next(engine._ids)] = (loaded, None)
        try:
            engine.info = await asyncio.wait_for(loaded, limit_s)
        except BaseException as error:
            await engine.stop()
            if not isinstance(error, TimeoutError):
                raise
            text = f"Loading {name} took more than {limit_s:.0f} s and was aborted."
            raise EngineDied(f"{text} {engine.log_hint}") from None
        return engine

    async def call(self, method: str, on_progress: Listener | None = None, **arguments: Any) -> Any:
        """Run ``Engine.<method>(**arguments)`` in the worker.

        ``on_progress`` is called with what the engine reports before the answer. Raises UserError
        for the user's mistakes, OSError or RuntimeError for failures of the engine, and EngineDied
        if the worker ended before it answered.
        """
        if not self.is_alive:
            raise self._death()
        call_id = next(self._ids)
        if not self._waiting:
            self._last_answer = time.monotonic()
        answer = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = (answer, on_progress)
        self._channel.send(Call(call_id, method, arguments))
        try:
            return await measured(method, arguments, answer)
        except asyncio.CancelledError:
            if method == "sample" and self._waiting.pop(call_id, None) is not None:
                self._cancel_sample(call_id)
            raise

    @property
    def depth(self) -> int:
        """The number of calls without an answer."""
        return len(self._waiting)

    @property
    def resident_bytes(self) -> int:
        """The worker's memory in bytes; 0 if the system does not report it."""
        try:
            pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def silent_s(self) -> float:
        """How long calls have been waiting without any answer."""
        return time.monotonic() - self._last_answer if self._waiting else 0.0

    async def stop(self) -> None:
        """Stop the worker; kill it if it does not end."""
        self._is_ending = True
        self._channel.finish()
        try:
            await asyncio.to_thread(self._process.wait, _END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        self._read_task.cancel()
        await asyncio.gather(self._read_task, return_exceptions=True)

    def kill(self) -> None:
        """Kill a worker that does not answer; its calls fail with EngineDied."""
        self._process.kill()

    async def _read(self) -> None:
        try:
            while True:
                self._settle(await self._channel.receive())
        except (EOFError, ConnectionError):
            await asyncio.to_thread(self._process.wait)
            if not self._is_ending:
                log.error("%s", self._death())
        finally:
            try:
                await self._channel.close()
            finally:  # also if this task is cancelled meanwhile
                for answer, _ in self._waiting.values():
                    if not answer.done():
                        answer.set_exception(self._death())
                self._waiting.clear()

    def _settle(self, reply: EngineReply) -> None:
        self._last_answer = time.monotonic()
        answer, listener = self._waiting.get(reply.id, (None, None))
        if reply.is_final:
            self._waiting.pop(reply.id, None)
        if answer is None or answer.done():
            return
        if not reply.is_final:
            try:
                if listener is not None:
                    listener(reply.value)
            except Exception as error:  # its call fails, and not all calls of the engine
                del self._waiting[reply.id]
                answer.set_exception(error)
                self._cancel_sample(reply.id)  # nothing else reports progress
        elif reply.error is None:
            answer.set_result(reply.value)
        elif reply.is_user_error:
            answer.set_exception(UserError(reply.error))
        elif reply.errno is not None:
            answer.set_exception(OSError(reply.errno, reply.error))
        else:
            answer.set_exception(RuntimeError(reply.error))

    def _cancel_sample(self, call_id: int) -> None:
        self._channel.send(Call(next(self._ids), "cancel_sample", {"call_id": call_id}))

    def _death(self) -> EngineDied:
        code = self._process.poll() or 0
        how = f"ended with status {code}" if code else "ended"
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            how += " (often because the machine ran out of memory)"
        text = f"The engine of {self.name} {how}. It restarts at the next request."
        return EngineDied(f"{text} {self.log_hint}")


def _spawn(
    name: str, folder: Path, log_file: Path, options: EngineOptions
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a worker; return it and the socket to it."""
    ours, theirs = socket.socketpair()
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with open(log_file, "ab") as output, theirs:
        arguments = ["--name", name, "--folder", str(folder), "--fd", str(theirs.fileno())]
        arguments += ["--precision", options.precision]
        if options.memory_gb is not None:
            arguments += ["--memory-gb", f"{options.memory_gb:.3f}"]
        process = subprocess.Popen(
            [sys.executable, "-m", "mint.engine.worker", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C reaches only the service, which stops its workers
        )
    return process, ours
