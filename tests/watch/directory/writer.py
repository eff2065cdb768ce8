"""A run directory written without end, for tests that kill the process meanwhile."""

from __future__ import annotations

import sys

from mint.watch.directory.recorder import RunDirectory


def main(path: str) -> None:
    with RunDirectory(path) as run:
        run.rewind()
        run.write_config({"task": "killed", "steps": 100_000})
        step = int((run.state() or {"step": 0})["step"])
        while True:
            step += 1
            rows = [rollout(step, index) for index in range(4)]
            run.write_step(rows, {"step": step, "reward/mean": step / 1000})
            run.event("checkpoint", step=step)
            if step % 3 == 0:
                run.save_state({"step": step})
            print(step, flush=True)


def rollout(step: int, index: int) -> dict[str, object]:
    """What every process writes for this place."""
    text = f"answer {index} of step {step} " * 20
    tokens = list(range(50))
    segment = {"tokens": tokens, "mask": [True] * 50, "sampler": [-0.5] * 50}
    return {"step": step, "index": index, "response": text, "reward": 0.5, "segments": [segment]}


if __name__ == "__main__":
    main(sys.argv[1])
