"""What recording a step costs: python -m benchmarks.recorder

Writes steps as the loop does, with the tokens, texts and logprobs of every rollout, and says how
long the loop waits, and how much of one core the writing thread takes at some speeds of sampling.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from mint.watch.directory.reader import open_run
from mint.watch.directory.recorder import RunDirectory

SPEEDS = (500, 5_000, 50_000)  # tokens a second: a CPU, a small GPU, a large one


def rollouts(step: int, count: int, prompt: int, answer: int) -> list[dict[str, Any]]:
    """Rollouts of the size that was asked for, each different."""
    rows, rng = [], random.Random(step)
    for index in range(count):
        tokens = [(step * 31 + index * 7 + place) % 50_000 for place in range(prompt + answer)]
        mask = [False] * prompt + [True] * answer
        logprobs = [-rng.expovariate(2.0) for _ in tokens]
        segment = {
            "tokens": tokens,
            "pieces": [f" t{token}" for token in tokens],
            "mask": mask,
            "sampler": logprobs,
            "trainer": logprobs,
            "advantages": [0.5 * sampled for sampled in mask],
            "entropy": [-x * rng.random() for x in logprobs],
        }
        text = " ".join(segment["pieces"][prompt:])
        row = {"step": step, "group": index // 8, "index": index % 8, "response": text}
        row |= {
            "prompt": " ".join(segment["pieces"][:prompt]),
            "reward": index % 2,
            "length": answer,
        }
        rows.append(row | {"components": {"right": index % 2}, "segments": [segment]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=200)
    parser.add_argument("--answer", type=int, default=256)
    asked = parser.parse_args()
    waited, seconds, busy = [], [], []
    with tempfile.TemporaryDirectory() as folder, RunDirectory(folder) as run:
        run.write_config({"task": "benchmark", "steps": asked.steps})
        for step in range(1, asked.steps + 1):
            rows = rollouts(step, asked.rollouts, asked.prompt, asked.answer)
            metrics = {f"metric/{i}": 0.5 for i in range(40)} | {"reward/mean": 0.5}
            started, began = time.perf_counter(), time.process_time()
            run.write_step(rows, {"step": step, **metrics})
            waited.append(time.perf_counter() - started)
            run.state()
            seconds.append(time.perf_counter() - started)
            busy.append(time.process_time() - began)
        started = time.perf_counter()
        run.save_state({"step": asked.steps})
        state = time.perf_counter() - started
        size = sum(file.stat().st_size for file in (Path(folder) / "rollouts").iterdir())
        started = time.perf_counter()
        open_run(folder).rollouts(asked.steps)
        read = time.perf_counter() - started
    cost, used = statistics.median(seconds), statistics.median(busy)
    sampled = asked.rollouts * asked.answer
    print(f"{asked.rollouts} rollouts of {asked.prompt} + {asked.answer} tokens a step")
    print(f"the loop waits for {1000 * statistics.median(waited):.2f} ms per step")
    print(f"a step is on disk after {1000 * cost:.1f} ms, at most {1000 * max(seconds):.1f} ms")
    print(f"recording takes {1000 * used:.1f} ms of CPU time, in a thread")
    print(f"saving the state: {1000 * state:.1f} ms; reading a step: {1000 * read:.1f} ms")
    print(f"on disk: {size / asked.steps / 1024:.0f} KiB a step")
    for speed in SPEEDS:
        share = used / (sampled / speed)
        print(f"at {speed} sampled tokens a second: {share:.2%} of one core during a step")


if __name__ == "__main__":
    main()
