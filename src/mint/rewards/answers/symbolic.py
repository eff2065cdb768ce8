"""Compare formulas with math-verify, in worker processes that can be killed."""

import atexit
import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import threading
from functools import lru_cache

_FORMULA_LIMIT = 1000
_REPLY_SECONDS = 120.0  # the first reply waits for the worker's imports


class SymbolicUnavailable(RuntimeError):
    """math-verify cannot be used here; the message says how to see why."""


class FormulaPool:
    """Compares formulas in ``size`` processes, from any thread.

    Each comparison may use ``seconds`` of processor time; then its process is killed.

    >>> pool = FormulaPool(size=1)
    >>> pool.same(r"\\frac{1}{2} x", "x/2")
    True
    >>> pool.close()
    """

    def __init__(self, size: int = 2, seconds: float = 0.4) -> None:
        if size < 1 or seconds <= 0:
            raise ValueError("A FormulaPool needs size >= 1 and seconds > 0.")
        self.seconds = seconds
        self._owner = os.getpid()
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        self._workers = [_Worker() for _ in range(size)]
        for worker in self._workers:
            self._idle.put(worker)

    def same(self, gold: str, answer: str) -> bool:
        """Return whether two formulas are equal; not if one is too long or takes too long."""
        if max(len(gold), len(answer)) > _FORMULA_LIMIT or not answer.strip():
            return False
        gold, answer = (" ".join(each.replace("$", " ").split()) for each in (gold, answer))
        worker = self._idle.get()
        try:
            return worker.same(gold, answer, self.seconds)
        finally:
            self._idle.put(worker)

    def start(self) -> None:
        """Wait until every worker is ready, so that no comparison pays for the imports."""
        for worker in self._workers:
            worker.same("x", "x", self.seconds)

    def close(self) -> None:
        """End the worker processes; a forked child leaves its parent's alone."""
        if os.getpid() == self._owner:
            for worker in self._workers:
                worker.end()


class _Worker:
    """One worker process, used by one thread at a time."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mint.rewards.answers.symbolic_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def same(self, gold: str, answer: str, seconds: float) -> bool:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        request = json.dumps({"gold": gold, "answer": answer, "seconds": seconds})
        with contextlib.suppress(OSError):
            stdin.write(request.encode() + b"\n")
            stdin.flush()
            if select.select([stdout], [], [], _REPLY_SECONDS)[0] and (reply := stdout.readline()):
                return json.loads(reply)["same"] is True
        code = self.end()
        self._start()
        if code > 0:
            raise SymbolicUnavailable(
                f"The process that compares formulas ended with exit code {code}. "
                "See why: python -m mint.rewards.answers.symbolic_worker"
            )
        return False

    def end(self) -> int:
        """End the process, and return its exit code: negative if a signal ended it."""
        self._process.kill()
        self._process.communicate()
        return self._process.returncode


_lock = threading.Lock()
_shared: dict[int, FormulaPool] = {}  # by process: a forked child has its own


def shared_pool() -> FormulaPool:
    """Return the pool of this process, started on first use and ended with the process."""
    with _lock:
        if os.getpid() not in _shared:
            _shared[os.getpid()] = FormulaPool()
            atexit.register(_shared[os.getpid()].close)
        return _shared[os.getpid()]


@lru_cache(maxsize=4096)
def same_formula(gold: str, answer: str) -> bool:
    r"""Return whether two formulas are equal, by math-verify.

    >>> same_formula("x^2 + 2x + 1", "(x+1)^2"), same_formula("x", "9^{9^{9^{9}}}")
    (True, False)
    """
    return shared_pool().same(gold, answer)
