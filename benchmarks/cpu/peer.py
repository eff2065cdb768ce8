"""Our end of the conversation with a side: start it, ask it, keep it still in between."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

START_LIMIT_S = 900.0  # vLLM compiles its model when it starts
ASK_LIMIT_S = 900.0
STOP_LIMIT_S = 30.0


class PeerFailed(RuntimeError):
    """A side did not start, failed, or did not answer in time. The text says which."""


class Peer:
    """A running side. Use as a context manager: at its end the process and its children are gone.

    A side that is not asked anything is stopped by a signal (``keep_still``), so that threads which
    spin while they wait cannot disturb the one that is measured.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        keep_still: bool = True,
        start_limit_s: float = START_LIMIT_S,
        stop_limit_s: float = STOP_LIMIT_S,
    ) -> None:
        self.name = name
        self.log = log
        self._keep_still = keep_still
        self._stop_limit_s = stop_limit_s
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                list(command),
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.facts: dict[str, Any] = self._receive(start_limit_s)["ready"]
        except BaseException:
            self.stop()
            raise
        self._freeze()

    def ask(self, do: str, limit_s: float = ASK_LIMIT_S, **arguments: Any) -> dict[str, Any]:
        """Run a command on the side and return its answer. Raises PeerFailed."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            return self._receive(limit_s)
        except BrokenPipeError:
            raise PeerFailed(self._describe("ended")) from None
        finally:
            self._freeze()

    def stop(self) -> None:
        """End the side politely, then by force."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(self._stop_limit_s)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._signal(signal.SIGKILL)  # children that outlived it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _receive(self, limit_s: float) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=limit_s)
        except queue.Empty:
            raise PeerFailed(self._describe(f"did not answer in {limit_s:.0f} s")) from None
        if line is None:
            raise PeerFailed(self._describe("ended"))
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerFailed(self._describe(f"failed: {answer['error']}"))
        return answer

    def _freeze(self) -> None:
        if self._keep_still:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # its process group is named by its own id
            os.killpg(self._process.pid, number)

    def _describe(self, what: str) -> str:
        return f"{self.name} {what} (log: {self.log})"
