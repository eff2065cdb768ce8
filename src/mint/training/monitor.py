"""Print samples of every step during a run."""

import math
from collections.abc import Callable

from mint.rl.groups.collect import Batch
from mint.training.job import Job

Monitor = Callable[[Batch], None]
_SHOWN = 400


def make_monitors(job: Job) -> list[Monitor]:
    """Create the monitors that a job asks for."""
    found: list[Monitor] = []
    if job["logging"]["samples"]:
        found.append(SampleLog(job["logging"]["samples"]))
    return found


class SampleLog:
    """Prints some answers of every step, from the best down."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, batch: Batch) -> None:
        pairs = [(group, rollout) for group in batch.everything for rollout in group.rollouts]
        pairs.sort(key=lambda pair: -math.inf if pair[1].reward is None else pair[1].reward)
        apart = max(1, len(pairs) // self.count)
        for group, rollout in pairs[::-1][::apart][: self.count]:
            reward = rollout.error if rollout.reward is None else f"{rollout.reward:.3f}"
            print(f"  prompt: {_short(group.prompt)}")
            print(f"  answer: {_short(rollout.text)}")
            print(f"  reward: {reward}, length: {rollout.length} tokens", flush=True)


def _short(text: str) -> str:
    """A text on one line; of a long one the end, where prompts ask and answers answer."""
    return repr(text if len(text) <= _SHOWN else f"...{text[-_SHOWN:]}")
