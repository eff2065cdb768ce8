"""What is shown of every step while a run goes on: rewards in figures, and samples to read."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from mint.rewards import Analysis, Sample, Score, Scored, analyse
from mint.rl.collect import Batch
from mint.training.job import Job
from mint.watch.reader import RunReader

Monitor = Callable[[Batch], None]
_SHOWN = 400


def monitors_of(job: Job, folder: Path) -> list[Monitor]:
    """What a job asks to be shown."""
    found: list[Monitor] = []
    if job["training"]["log_rewards"]:
        found.append(RewardLog(folder))
    if job["logging"]["samples"]:
        found.append(SampleLog(job["logging"]["samples"]))
    return found


class RewardLog:
    """Prints the rewards of every batch, and those of the run so far."""

    def __init__(self, folder: Path) -> None:
        run = RunReader(folder)
        self.means = [row["reward/mean"] for row in run.metrics() if "reward/mean" in row]
        self.rewards = [
            row["reward"]
            for row in run.iter_rollouts(columns=["reward"])
            if row["reward"] is not None
        ]

    def __call__(self, batch: Batch) -> None:
        found = analyse(scored_in(batch))
        rewards = [r for group in batch.everything for r in group.rewards]
        self.rewards += rewards
        self.means.append(found.mean)
        print(f"  rewards of step {batch.step}: {_figures(found)}, {found.failed} not scored")
        for line, (_, _, count) in zip(found.bars(width=30), found.histogram, strict=True):
            if count:
                print(f"  {line}")
        print(f"  rewards of the run: {self._so_far()}", flush=True)

    def _so_far(self) -> str:
        everything = analyse([Scored(Sample(""), Score(reward)) for reward in self.rewards])
        best = max(range(len(self.means)), key=lambda i: self.means[i])
        return (
            f"{_figures(everything)}; step means from {self.means[0]:.3f} to {self.means[-1]:.3f}, "
            f"highest {self.means[best]:.3f} at step {best + 1}"
        )


def _figures(found: Analysis) -> str:
    return (
        f"{found.count} answers, mean {found.mean:.3f}, std {found.std:.3f}, "
        f"min {found.minimum:.3f}, max {found.maximum:.3f}"
    )


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


def scored_in(batch: Batch) -> list[Scored]:
    """The rollouts of a batch, as the analysis of rewards reads them."""
    return [
        Scored(
            Sample(rollout.text, group.prompt, {"group": number}),
            None if rollout.reward is None else Score(rollout.reward, rollout.components),
            rollout.error,
        )
        for number, group in enumerate(batch.everything)
        for rollout in group.rollouts
    ]
