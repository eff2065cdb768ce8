"""The process that compares formulas with math-verify. Started by :mod:`.symbolic`.

It keeps one forked child that does the work. A child that exceeds its time is killed and
replaced, which takes milliseconds because everything is already imported.
"""

import ctypes
import json
import logging
import os
import resource
import select
import signal
import socket
import sys
from importlib import import_module
from typing import IO, Any

_MEMORY_BYTES = 4 << 30
# The limit counts the child's own processor time, so that a busy machine does not change a verdict.
_WALL_PER_CPU = 20
# What sympy imports and computes on first use is not charged to a comparison.
_WARM_UP = [("$x^2$", "$x^{2}$"), ("$x^2+2x+1$", "$(x+1)^2$"), (r"$\frac{x}{2}$", r"$\pi x$")]


def main() -> None:
    """Answer one JSON line per JSON line until the input ends."""
    math_verify: Any = import_module("math_verify")
    parse, verify = math_verify.parse, math_verify.verify
    logging.disable(logging.CRITICAL)
    for gold, answer in _WARM_UP:
        _compare(parse, verify, gold, answer)
    child = _Child(parse, verify)
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        same = child.ask(line, request["seconds"])
        if same is None:
            child.end()
            child = _Child(parse, verify)
        print(json.dumps({"same": same}), flush=True)
    child.end()


class _Child:
    """A forked process that compares until it is killed."""

    def __init__(self, parse: Any, verify: Any) -> None:
        self._socket, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._socket.close()
            _serve(theirs, parse, verify)
            os._exit(0)
        theirs.close()

    def ask(self, line: str, seconds: float) -> bool | None:
        """The child's verdict, or None when it took too long or died."""
        try:
            self._socket.sendall(line.encode())
            ready, _, _ = select.select([self._socket], [], [], seconds * _WALL_PER_CPU)
            return {b"1": True, b"0": False}.get(self._socket.recv(1)) if ready else None
        except OSError:
            return None

    def end(self) -> None:
        """Kill the child and wait for it."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._socket.close()


def _serve(connection: socket.socket, parse: Any, verify: Any) -> None:
    _die_with_parent()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    lines: IO[bytes] = connection.makefile("rb")
    for line in lines:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])  # SIGPROF ends the process
        same = _compare(parse, verify, **_texts(request))
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.sendall(b"1" if same else b"0")


def _texts(request: dict[str, str]) -> dict[str, str]:
    return {"gold": f"${request['gold']}$", "answer": f"${request['answer']}$"}


def _compare(parse: Any, verify: Any, gold: str, answer: str) -> bool:
    try:
        read = [parse(text, parsing_timeout=None, raise_on_error=False) for text in (gold, answer)]
        return bool(verify(read[0], read[1], timeout_seconds=None, raise_on_error=False))
    except (Exception, RecursionError):  # whatever a formula does to sympy, it is not equal
        return False


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    main()
