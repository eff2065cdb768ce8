"""Success rates on held-out prompts with their confidence intervals, and what they say of a run."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_Z95 = 1.959963984540054


def pass_at_k(right: int, count: int, k: int) -> float:
    """Return the chance that one of ``k`` answers is right, from ``right`` of ``count``: unbiased.

    >>> pass_at_k(1, 2, 1), pass_at_k(1, 4, 2)
    (0.5, 0.5)
    """
    if not 1 <= k <= count or not 0 <= right <= count:
        raise ValueError(f"pass@{k} cannot be computed from {right} right of {count} answers.")
    return 1.0 - math.comb(count - right, k) / math.comb(count, k)


def wilson(share: float, count: float) -> tuple[float, float]:
    """Return the 95% interval of a share of ``count`` trials, which always contains the share.

    >>> low, high = wilson(0.5, 100)
    >>> round(low, 4), round(high, 4)
    (0.4038, 0.5962)
    >>> wilson(0.0, 12)[0], wilson(1.0, 10)[1]
    (0.0, 1.0)
    """
    if count <= 0:
        return 0.0, 1.0
    z2 = _Z95**2
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    inside = share * (1 - share) / count + z2 / (4 * count * count)
    half = _Z95 * math.sqrt(inside) / (1 + z2 / count)
    low = 0.0 if share <= 0 else max(0.0, centre - half)
    high = 1.0 if share >= 1 else min(1.0, centre + half)
    return min(low, share), max(high, share)


@dataclass(frozen=True)
class Estimate:
    """A number, and the 95% interval that it lies in."""

    value: float
    low: float
    high: float

    def above(self, other: Estimate, correlation: float = 0.0) -> Estimate:
        """Return how much higher this one is (Newcombe's interval of a difference).

        ``correlation`` is that of the two measurements; 0 when they were taken apart.

        >>> found = Estimate(0.75, 0.5, 1.0).above(Estimate(0.5, 0.25, 0.75))
        >>> found.value, round(found.low, 2), round(found.high, 2)
        (0.25, -0.1, 0.6)
        """

        def margin(a: float, b: float) -> float:
            shared = 2 * correlation * a * b if correlation else 0.0  # an interval may be infinite
            return math.sqrt(max(0.0, a * a + b * b - shared))

        difference = self.value - other.value
        down = margin(self.value - self.low, other.high - other.value)
        up = margin(self.high - self.value, other.value - other.low)
        return Estimate(difference, difference - down, difference + up)


METRICS = ("pass_1", "pass_k", "reward")
_COUNTS = ("prompts", "failed", "unrewarded", "left_out")
_NAMES = {
    "reward": "holdout/reward",
    "pass_1": "holdout/pass@1",
    "low": "holdout/pass@1_low",
    "high": "holdout/pass@1_high",
    "prompts": "holdout/prompts",
    "failed": "holdout/failures",
    "unrewarded": "holdout/unrewarded",
    "left_out": "holdout/left_out",
    "reward_low": "holdout/reward_low",
    "reward_high": "holdout/reward_high",
}
"""The names of an evaluation's fields in the metrics file."""


@dataclass(frozen=True)
class Evaluation:
    prompts: int
    samples: int
    reward: float
    pass_1: float
    low: float
    high: float
    k: int
    pass_k: float
    reward_low: float = -math.inf
    reward_high: float = math.inf
    failed: int = 0  # answers that were never finished or scored, and count as wrong
    unrewarded: int = 0  # answers with a reward of None to prompts that count: wrong too
    left_out: int = 0  # prompts to which the reward does not apply; not in ``prompts``

    def estimate(self, metric: str = "pass_1") -> Estimate:
        """Return one of ``pass_1``, ``pass_k`` and ``reward``, with its interval."""
        match metric:
            case "pass_1":
                return Estimate(self.pass_1, self.low, self.high)
            case "pass_k":
                return Estimate(self.pass_k, *wilson(self.pass_k, self.prompts))
            case "reward":
                return Estimate(self.reward, self.reward_low, self.reward_high)
        raise ValueError(f"{metric!r} is not one of {', '.join(METRICS)}.")

    @classmethod
    def read(cls, metrics: Mapping[str, float]) -> Evaluation | None:
        """Return the evaluation in a row of the metrics file, or None when the row has none.

        >>> found = evaluate([[1.0, 0.0], [1.0, 1.0]], threshold=1.0)
        >>> Evaluation.read(found.metrics()) == found
        True
        """
        if "holdout/pass@1" not in metrics:
            return None
        named = (name.removeprefix("holdout/pass@") for name in metrics)
        k = max(int(name) for name in named if name.isdigit())
        found: dict[str, Any] = {f: metrics[name] for f, name in _NAMES.items() if name in metrics}
        found |= {field: int(found[field]) for field in _COUNTS if field in found}
        return cls(samples=found["prompts"] * k, k=k, pass_k=metrics[f"holdout/pass@{k}"], **found)

    def metrics(self) -> dict[str, float]:
        """Return rows for the metrics file. One prompt gives no spread of rewards."""
        found = {name: float(getattr(self, field)) for field, name in _NAMES.items()}
        found |= {f"holdout/pass@{self.k}": self.pass_k} if self.k > 1 else {}
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def __str__(self) -> str:
        more = f", pass@{self.k}={self.pass_k:.1%}" if self.k > 1 else ""
        shown = (
            f"pass@1={self.pass_1:.1%} ({self.low:.1%} to {self.high:.1%}){more}, "
            f"reward={self.reward:.3f} on {self.prompts} held-out prompts"
        )
        return "; ".join([shown, *self.exceptions()])

    def exceptions(self) -> list[str]:
        """Say how many answers count as wrong without a reward, and how many prompts do not count.

        >>> found = evaluate([[1.0], [None]], threshold=0.0, unrewarded=1, left_out=2)
        >>> print("\\n".join(found.exceptions()))
        1 answer without a reward (None) counts as wrong
        2 prompts are left out: the reward of all their answers is None
        """
        found = []
        wrong = {"that failed": self.failed, "without a reward (None)": self.unrewarded}
        for which, count in wrong.items():
            if count:
                said = f"answer {which} counts" if count == 1 else f"answers {which} count"
                found.append(f"{count} {said} as wrong")
        if self.left_out:
            said, whose = ("prompt is", "its") if self.left_out == 1 else ("prompts are", "their")
            why = f"the reward of all {whose} answers is None"
            found.append(f"{self.left_out} {said} left out: {why}")
        return found


def evaluate(
    rewards_P_G: Sequence[Sequence[float | None]],
    threshold: float,
    unrewarded: int = 0,
    left_out: int = 0,
) -> Evaluation:
    """Return the pass rates of groups of rewards.

    None is an answer that failed, or one of the ``unrewarded`` ones, whose reward was None. It
    counts as wrong, with the worst reward (0, or the lowest), so that every evaluation of the same
    prompts has the same denominator. Prompts without answers are left out, and those with fewer
    than others are left out of pass@k. The interval counts prompts, because answers to one prompt
    are not independent.

    >>> str(evaluate([[1.0], [0.0]], threshold=1.0))
    'pass@1=50.0% (9.5% to 90.5%), reward=0.500 on 2 held-out prompts'
    >>> str(evaluate([[1.0], [None]], threshold=0.0)).partition("; ")[2]
    '1 answer that failed counts as wrong'
    """
    given = [list(group) for group in rewards_P_G if len(group)]
    if not given:
        return Evaluation(0, 0, 0.0, 0.0, 0.0, 1.0, 1, 0.0, left_out=left_out)
    worst = min([0.0, *(reward for group in given for reward in group if reward is not None)])
    groups = [[worst if reward is None else reward for reward in group] for group in given]
    sizes = [len(group) for group in groups]
    right = [sum(reward is not None and reward >= threshold for reward in group) for group in given]
    rates = np.asarray(right) / sizes
    k = max(sizes)
    complete = [r for r, size in zip(right, sizes, strict=True) if size == k]
    share = float(rates.mean())
    low, high = wilson(share, independent_trials(rates, sizes))
    means = np.asarray([np.mean(group) for group in groups])
    reward_low, reward_high = reward_interval(means)
    return Evaluation(
        prompts=len(groups),
        samples=sum(sizes),
        reward=float(means.mean()),
        pass_1=share,
        low=low,
        high=high,
        k=k,
        pass_k=float(np.mean([pass_at_k(r, k, k) for r in complete])),
        reward_low=reward_low,
        reward_high=reward_high,
        failed=sum(reward is None for group in given for reward in group) - unrewarded,
        unrewarded=unrewarded,
        left_out=left_out,
    )


def reward_interval(means_P: np.ndarray) -> tuple[float, float]:
    """Return the 95% interval of the mean reward, from the mean of every prompt.

    Equal prompts show no spread. Their interval is that of a success rate, on the scale from 0 to 1
    (or wider, if the reward is outside).

    >>> low, high = reward_interval(np.asarray([0.5] * 8))
    >>> round(low, 3), round(high, 3)
    (0.215, 0.785)
    """
    count, mean = len(means_P), float(means_P.mean())
    if count < 2:
        return -math.inf, math.inf
    if (spread := float(means_P.std(ddof=1))) > 1e-12:
        half = _Z95 * spread / math.sqrt(count)
        return mean - half, mean + half
    least, width = min(0.0, mean), max(1.0, mean) - min(0.0, mean)
    low, high = wilson((mean - least) / width, count)
    return least + low * width, least + high * width


def independent_trials(rates_P: np.ndarray, sizes_P: Sequence[int]) -> float:
    """Return how many independent trials would be as uncertain as these prompts' success rates."""
    count, share = len(rates_P), float(np.mean(rates_P))
    error = float(np.var(rates_P)) / count
    if error < 1e-12:
        return float(count)
    return float(min(sum(sizes_P), max(count, share * (1 - share) / error)))


def evaluations_in(rows: Iterable[Mapping[str, Any]]) -> dict[int, Evaluation]:
    """Return the evaluations of a metrics file, by their step."""
    found = {int(row["step"]): Evaluation.read(row) for row in rows}
    return {step: evaluation for step, evaluation in found.items() if evaluation is not None}


def verdict(start: Evaluation, end: Evaluation) -> str:
    """Return whether training helped: by pass@1, or by the reward where that is unclear.

    >>> before = evaluate([[0.0]] * 40, threshold=1.0)
    >>> after = evaluate([[1.0]] * 20 + [[0.0]] * 20, threshold=1.0)
    >>> print(verdict(before, after))
    Training helped on the holdout: pass@1 0.0% before, 50.0% after, a difference of +50.0 points \
(95% interval +32.8 to +64.8); reward 0.000 before, 0.500 after.
    """
    gain = end.estimate().above(start.estimate())
    paid = end.estimate("reward").above(start.estimate("reward"))
    if gain.low > 0:
        said = "Training helped on the holdout"
    elif gain.high < 0:
        said = "Training made the model worse on the holdout"
    elif paid.low > 0:
        said = "Training raised the reward on the holdout, with no clear effect on pass@1"
    elif paid.high < 0:
        said = "Training lowered the reward on the holdout, with no clear effect on pass@1"
    else:
        said = "No clear effect on the holdout"
    text = (
        f"{said}: pass@1 {start.pass_1:.1%} before, {end.pass_1:.1%} after, a difference of "
        f"{100 * gain.value:+.1f} points (95% interval {100 * gain.low:+.1f} to "
        f"{100 * gain.high:+.1f}); reward {start.reward:.3f} before, {end.reward:.3f} after."
    )
    if gain.low <= 0 <= gain.high:
        text += " More held-out prompts (holdout_fraction, holdout_size) narrow the interval."
    return text


def advice(
    evaluations: Mapping[int, Evaluation], paths: Mapping[int, str], began_from: str
) -> list[str]:
    """Say whether training helped and which of the kept checkpoints (``paths`` by step) is best."""
    kept = {step: e for step, e in evaluations.items() if step == 0 or step in paths}
    if 0 not in kept or len(kept) < 2:
        return []

    def rank(step: int) -> tuple[float, float, int]:  # without rounding errors
        return round(kept[step].pass_1, 9), round(kept[step].reward, 9), -step

    last, best = max(kept), max(kept, key=rank)
    if best == 0:
        which = f"the model before training, {began_from}. Use that one."
    elif best == last:
        which = f"the last step, {last}. Use the weights below."
    else:
        which = f"step {best}, {paths[best]}. Use that one."
    return [verdict(kept[0], kept[last]), f"Best on the holdout: {which}"]


def closing_lines(path: str, folder: Path) -> list[str]:
    """Return the last lines of a run: where its weights are, and what to do with them."""
    run = shlex.quote(str(folder))
    return [
        f"Saved: {path}",
        f'Sample from it: mint sample -m {run} "..."',
        f"Export it:      mint export {run} --to FOLDER --merge",
    ]
