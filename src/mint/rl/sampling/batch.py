"""A batch: the groups of one step, and the updates that were trained on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from mint import types
from mint.rl.algorithms.importance import Array
from mint.rl.rollouts.policy import Policy
from mint.rl.rollouts.rollout import Group

_SUMS = {
    *("time/sample", "time/train", "datums", "datums/unmasked"),
    *("train/loss", "train/tokens", "train/updates", "train/refused"),
}
"""Metrics that add up over the parts of a step; of the others the mean is taken."""


@dataclass(frozen=True)
class Update:
    """An update: its datums and metrics, and the trainer's logprobs and entropies before it.
    ``refused`` says why the service did not make it."""

    datums: Sequence[types.Datum]
    metrics: dict[str, float]
    logprobs_D_T: Sequence[Array] = ()
    entropy_D_T: Sequence[Array] = ()
    refused: str | None = None


@dataclass
class Batch:
    """The groups of a step, or of a part of it, with the updates trained on them."""

    step: int
    groups: list[Group]
    policy: Policy
    dropped: list[Group] = field(default_factory=list)  # without signal, and replaced by others
    stale: list[Group] = field(default_factory=list)  # too old to be trained on
    aborted: int = 0  # groups that were too old before they were complete
    policies: Mapping[int, Policy] = field(default_factory=dict)  # by version
    metrics: dict[str, float] = field(default_factory=dict)  # metrics of sampling and comparing
    updates: list[Update] = field(default_factory=list)

    @property
    def everything(self) -> list[Group]:
        """All groups that were sampled."""
        return [*self.groups, *self.dropped, *self.stale]


def merge_batches(parts: Sequence[Batch]) -> Batch:
    """Return the batch of a step that was sampled and trained on in parts."""
    return Batch(
        parts[0].step,
        [group for part in parts for group in part.groups],
        parts[0].policy,
        [group for part in parts for group in part.dropped],
        [group for part in parts for group in part.stale],
        sum(part.aborted for part in parts),
        {version: policy for part in parts for version, policy in part.policies.items()},
        merge_metrics(each for p in parts for each in (p.metrics, *(u.metrics for u in p.updates))),
        [update for part in parts for update in part.updates],
    )


def merge_metrics(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Merge the metrics of a step's parts: add counts and times, keep the first mismatch, and take
    the mean of the rest.

    >>> merge_metrics([{"datums": 2.0, "train/grad_norm": 1.0}, {"datums": 3.0}])
    {'datums': 5.0, 'train/grad_norm': 1.0}
    """
    found: dict[str, list[float]] = defaultdict(list)
    for part in parts:
        for name, value in part.items():
            found[name].append(value)
    return {name: _together(name, values) for name, values in found.items()}


def _together(name: str, values: list[float]) -> float:
    if len(values) == 1 or name.startswith("mismatch/"):
        return values[0]
    return sum(values) if name in _SUMS else fmean(values)
