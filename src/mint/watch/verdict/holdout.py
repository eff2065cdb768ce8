"""The holdout of a run: its metrics, and which weights are best on it."""

from collections.abc import Sequence

from mint.watch.verdict.series import Row, series

HOLDOUT, HIGH, LOW = "holdout/pass@1", "holdout/pass@1_high", "holdout/pass@1_low"
HOLDOUT_REWARD = "holdout/reward"


def weights_to_use(rows: Sequence[Row]) -> str:
    """Name the best weights on the holdout: pass@1 decides, then reward, then the earlier step.

    Empty when the run has no holdout.

    >>> weights_to_use([{"step": 0, HOLDOUT: 0.1}, {"step": 5, HOLDOUT: 0.6}])
    'Use the final weights: they are the best on the holdout, 60%.'
    """
    rates, rewards = dict(series(rows, HOLDOUT)), dict(series(rows, HOLDOUT_REWARD))
    if not rates:
        return ""
    low, high = dict(series(rows, LOW)), dict(series(rows, HIGH))
    known = low.keys() & high.keys()

    def rank(step: int) -> tuple[float, float, int]:
        return round(rates[step], 9), round(rewards.get(step, 0.0), 9), -step

    def rate(step: int) -> str:
        interval = f" (95% interval {low[step]:.0%} to {high[step]:.0%})" if step in known else ""
        return f"{rates[step]:.0%}{interval}"

    best, last = max(rates, key=rank), max((step for step, _ in series(rows, "step")), default=0)
    if best == last:
        return f"Use the final weights: they are the best on the holdout, {rate(best)}."
    if last not in rates:
        final = "the end was not evaluated"
    elif rank(last)[0] == rank(best)[0]:
        final = "the final weights reach the same rate"
    else:
        final = f"the final weights reach {rate(last)}"
    what = f"the checkpoint of step {best}" if best > 0 else "the model before training"
    return f"Use {what}: it is the best on the holdout, {rate(best)}; {final}."
