"""The process that compares formulas with math-verify. Started by :mod:`.symbolic`.

Each comparison runs in a forked child, which the kernel kills when its time is up. Forking takes
milliseconds, because everything is already imported.
"""

import ctypes
import json
import logging
import os
import resource
import signal
import sys
from importlib import import_module
from typing import Any

_MEMORY_BYTES = 4 << 30
# The limit counts the child's own processor time, so that a busy machine does not change a verdict.
_WALL_PER_CPU = 20
# What sympy imports and computes on first use is not charged to a comparison.
_WARM_UP = [("x^2", "x^{2}"), ("x^2+2x+1", "(x+1)^2"), (r"\frac{x}{2}", r"\pi x")]


def main() -> None:
    """Answer each JSON line of the input with one, until the input ends."""
    math_verify: Any = import_module("math_verify")
    logging.disable(logging.CRITICAL)
    for gold, answer in _WARM_UP:
        _same(math_verify, gold, answer)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _limit(request["seconds"])
            os._exit(0 if _same(math_verify, request["gold"], request["answer"]) else 1)
        ended_equal = os.waitpid(child, 0)[1] == 0
        print(json.dumps({"same": ended_equal}), flush=True)


def _limit(seconds: float) -> None:
    """Limit this process: it ends when a timer runs out, or when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * _WALL_PER_CPU)


def _same(math_verify: Any, *formulas: str) -> bool:
    try:
        gold, answer = (
            math_verify.parse(f"${formula}$", parsing_timeout=None, raise_on_error=False)
            for formula in formulas
        )
        return bool(math_verify.verify(gold, answer, timeout_seconds=None, raise_on_error=False))
    except (Exception, RecursionError):  # whatever a formula does to sympy, it is not equal
        return False


if __name__ == "__main__":
    main()
