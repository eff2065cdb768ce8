"""Reward statistics of every step, during a run."""

from pathlib import Path

from mint.rewards import Analysis, Sample, Score, Scored, analyse
from mint.rl.sampling.batch import Batch
from mint.watch.directory.reader import RunReader


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
