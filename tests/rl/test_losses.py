"""What the service trains on is what the settings say: each loss against its formula in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mint
from mint import types
from mint.rl import RLConfig, Run
from mint.rl.datums import replaced, values

from .conftest import Letters

Settings = Callable[..., RLConfig]
Rows = Callable[[], list[dict[str, Any]]]
Array = NDArray[np.float64]


class Shaken(Letters):
    """Says that the sampler was surer of some tokens and less sure of others than it was."""

    def edit_datums(self, datums: list[types.Datum]) -> list[types.Datum]:
        draw = np.random.default_rng(0)
        return [self._shaken(datum, draw) for datum in datums]

    def _shaken(self, datum: types.Datum, draw: np.random.Generator) -> types.Datum:
        inside = values(datum, "weights") != 0
        noise = draw.uniform(-0.7, 0.7, len(inside))
        return replaced(datum, logprobs=values(datum, "logprobs") + noise * inside)


def formula(name: str, cfg: RLConfig, lp: Array, q: Array, a: Array) -> float:
    """The loss of one answer's tokens, with weight 1 each."""
    low, high, beta = cfg.clip_low_threshold, cfg.clip_high_threshold, cfg.dro_beta
    r = np.exp(lp - q)
    match name:
        case "importance_sampling":
            return float(-(r * a).sum())
        case "ppo":
            return float(-np.minimum(r * a, np.clip(r, low, high) * a).sum())
        case "cispo":
            return float(-(np.clip(r, low, high) * lp * a).sum())
        case "dro":
            assert beta is not None
            return float(-(lp * a - beta / 2 * (lp - q) ** 2).sum())
    s = np.exp((lp - q).mean()) * np.ones_like(lp)
    return float(-np.minimum(s * a, np.clip(s, low, high) * a).sum())


CLIPS = {"clip_low_threshold": 0.85, "clip_high_threshold": 1.1}
THRESHOLDS: dict[str, dict[str, float]] = {
    "importance_sampling": {},
    "ppo": CLIPS,
    "cispo": CLIPS,
    "dro": {"dro_beta": 1.7},
    "gspo": {"clip_low_threshold": 0.97, "clip_high_threshold": 1.02},
}


@pytest.mark.parametrize("loss_fn", sorted(THRESHOLDS))
def test_every_loss_reaches_the_service_with_its_thresholds(
    client: mint.ServiceClient, settings: Settings, metrics: Rows, loss_fn: str
) -> None:
    cfg = settings(
        loss_fn=loss_fn, temperature=1.0, learning_rate=0.0, max_tokens=6, **THRESHOLDS[loss_fn]
    )
    with Run(Shaken(), cfg, client) as run:
        batch = run.sample(1)
        datums = run.train(batch, run.prefer(batch))
        run.record(batch, datums)
        answer = run.client.forward(datums, "cross_entropy").result()
    wanted = 0.0
    for datum, output in zip(datums, answer.loss_fn_outputs, strict=True):
        inside = values(datum, "weights") != 0
        lp = np.asarray(output["logprobs"].data, dtype=np.float64)
        inputs = lp[inside], values(datum, "logprobs")[inside], values(datum, "advantages")[inside]
        wanted += formula(loss_fn, cfg, *inputs)
    assert metrics()[0]["train/loss"] == pytest.approx(wanted, rel=1e-4, abs=1e-4)
    assert metrics()[0]["mismatch/mean"] > 0.1  # the ratios are not all 1, so thresholds matter


class Upright(Letters):
    """Makes every answer a good one, so that their losses do not cancel out."""

    def edit_datums(self, datums: list[types.Datum]) -> list[types.Datum]:
        return [replaced(d, advantages=np.abs(values(d, "advantages"))) for d in datums]


@pytest.mark.parametrize("aggregation", ["sum", "token", "sequence", "constant"])
@pytest.mark.parametrize("parts", [{}, {"mini_batches": 3}, {"mini_batches": 3, "substeps": 2}])
def test_a_mean_over_the_batch_is_a_mean_over_its_parts_on_average(
    client: mint.ServiceClient,
    settings: Settings,
    metrics: Rows,
    aggregation: str,
    parts: dict[str, int],
) -> None:
    """At ratio 1 the loss is -sum(weight * advantage): the weights can be read off it."""
    cfg = settings(
        aggregation=aggregation, temperature=1.0, learning_rate=0.0, batch_size=3, **parts
    )
    with Run(Upright(), cfg, client) as run:
        batch = run.sample(1)
        run.record(batch, run.train(batch, run.prefer(batch)))
    counted = [r for group in run.useful(batch) for r in group.counted]
    n = np.asarray([r.length for r in counted], dtype=np.float64)
    a = np.abs([r.advantage for r in counted])
    wanted = {
        "sum": (n * a).sum(),
        "token": (n * a).sum() / n.sum(),
        "sequence": a.sum() / len(n),
        "constant": (n * a).sum() / (len(n) * cfg.max_tokens),
    }[aggregation]
    updates = cfg.mini_batches * cfg.substeps
    assert metrics()[0]["train/updates"] == updates
    per_update = metrics()[0]["train/loss"] / (cfg.substeps if aggregation == "sum" else updates)
    assert per_update == pytest.approx(-wanted, rel=1e-3, abs=1e-4)
