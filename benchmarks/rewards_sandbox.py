"""How many sandboxed code runs per second: python benchmarks/rewards_sandbox.py."""

from __future__ import annotations

import os
import time

from mint.rewards import CallTest, CodeReward, Sample, StdioTest

RUNS = 200
KINDS = {
    "stdin/stdout": ([StdioTest("2 3", "5")], "print(sum(map(int, input().split())))"),
    "function call": ([CallTest("add", [2, 3], 5)], "def add(a, b): return a + b"),
    "asserts": (["assert add(2, 3) == 5", "assert add(0, 0) == 0"], "def add(a, b): return a + b"),
}


def main() -> None:
    """Print runs per second for each kind of test."""
    print(f"{os.cpu_count()} cores, {RUNS} runs of each kind")
    for kind, (tests, program) in KINDS.items():
        reward = CodeReward(tests=tests)
        samples = [Sample(program)] * RUNS
        started = time.perf_counter()
        scores = reward.score(samples)
        seconds = time.perf_counter() - started
        right = sum(score is not None and score.total == 1.0 for score in scores)
        print(f"{kind:>15}: {RUNS / seconds:6.1f} runs/s, {right} of {RUNS} scored 1.0")


if __name__ == "__main__":
    main()
