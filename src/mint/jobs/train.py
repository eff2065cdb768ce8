"""Run one job."""

import math

from mint.jobs.compose import Composed
from mint.jobs.job import load_adapter, make_config, run_directory, write_job
from mint.rl import Run, grpo, run_loop
from mint.rl.sampling.batch import Batch

_SHOWN = 400


def train(composed: Composed) -> None:
    """Train with the settings of a job."""
    job = composed.job
    adapter, cfg = load_adapter(job), make_config(job)
    cfg.run_dir = run_directory(job, adapter)

    async def loop(run: Run) -> None:
        write_job(run.directory.path, job)
        if count := job["logging"]["samples"]:
            run.monitors.append(lambda batch: print_samples(batch, count))
        await grpo(run)

    run_loop(loop, adapter, cfg)


def print_samples(batch: Batch, count: int) -> None:
    """Print some answers of a step, the best first."""
    pairs = [(group, rollout) for group in batch.everything for rollout in group.rollouts]
    pairs.sort(key=lambda pair: -math.inf if pair[1].reward is None else pair[1].reward)
    apart = max(1, len(pairs) // count)
    for group, rollout in pairs[::-1][::apart][:count]:
        reward = rollout.error if rollout.reward is None else f"{rollout.reward:.3f}"
        print(f"  prompt: {_short(group.prompt)}")
        print(f"  answer: {_short(rollout.text)}")
        print(f"  reward: {reward}, length: {rollout.length} tokens", flush=True)


def _short(text: str) -> str:
    """Return a string on one line; of a long one only the end."""
    return repr(text if len(text) <= _SHOWN else f"...{text[-_SHOWN:]}")
