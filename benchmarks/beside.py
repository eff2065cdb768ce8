"""How long an answer takes that is requested while training runs, as a script waits for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.table import Row, Spread, ratio, seconds

if TYPE_CHECKING:
    from mint.commands.bench.timed_run import TimedRun

ARRIVALS = 5  # from the beginning of training to its end
TOKENS = 16


def measure(run: TimedRun, data: list[Any], tokens: int = TOKENS) -> dict[str, Any]:
    """Request one answer at a time while a ``forward_backward`` runs, and without one."""
    run.sample(1, 1, tokens)  # the prompt is known from here on
    alone = [run.sample(1, 1, tokens)[1] for _ in range(ARRIVALS)]
    training = run.forward_backward(data)
    beside = []
    for number in range(1, 1 + ARRIVALS):
        future = run.client.forward_backward(data, loss_fn="importance_sampling")
        time.sleep(training * number / (ARRIVALS + 1))
        beside.append(run.sample(1, 1, tokens)[1])
        future.result()
    run.optim_step()
    return {"beside": beside, "alone": alone, "training": training, "tokens": tokens}


def rows(key: str, found: dict[str, Any] | None) -> list[Row]:
    """Return the row of what was measured; results of before have none."""
    if found is None:
        return []
    waits, alone = Spread.of(found["beside"]), Spread.of(found["alone"])
    assert waits
    assert alone
    text = f"an answer of {found['tokens']} tokens requested during {seconds(found['training'])} of"
    against = f"without training: {alone.show(seconds)}"
    ratios = ratio(waits.middle / alone.middle)
    return [Row(key, f"{text} training", waits.show(seconds), against, ratios)]
