"""The service trains as the settings say: each loss against its formula in float64."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mint
from mint import types
from mint.rl import RLConfig, run_grpo
from mint.rl.datums.datum import replaced, tensor, values
from mint.watch.directory.recorder import METRICS, read_rows
from tests.rl.conftest import Letters
from tests.rl.stepping import stepping
from tests.service_fixture import MODEL

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
    with stepping(Shaken(), cfg, client) as run:
        batch = run.sample(1)
        datums = run.train(batch, run.build_datums(batch))
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


def test_a_loss_is_an_argument_of_the_loop(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path
) -> None:
    """One that asks for ppo trains as loss_fn=ppo does, whatever loss_fn is."""
    asked = []

    def own(
        trainer: mint.TrainingClient, datums: list[types.Datum], cfg: RLConfig, temperature: float
    ) -> Awaitable[types.ForwardBackwardOutput]:
        asked.append((cfg.loss_fn, temperature))
        return trainer.forward_backward(datums, "ppo", {**CLIPS})

    wanted = {"temperature": 1.0, "substeps": 2, "learning_rate": 0.05}
    named, passed = (str(tmp_path / name) for name in ("named", "passed"))
    run_grpo(Letters(), settings(**wanted, loss_fn="ppo", **CLIPS, run_dir=named), service=client)
    run_grpo(Letters(), settings(**wanted, run_dir=passed), service=client, loss=own)
    assert asked == [("importance_sampling", 1.0)] * 4
    for one, other in zip(*(read_rows(Path(f, METRICS)) for f in (named, passed)), strict=True):
        for name in ("train/loss", "train/grad_norm", "train/drift"):
            assert other[name] == pytest.approx(one[name], rel=1e-3, abs=1e-4)


class Shy(Shaken):
    """Pays the answers to one prompt as much as each other."""

    def build_dataset(self) -> list[str]:
        return ["even:", "odd:"]

    def compute_reward(self, response: str, sample: str) -> Any:
        return 1.0 if sample == "even:" else super().compute_reward(response, sample)


@pytest.mark.parametrize("loss_fn", ["dro", "importance_sampling"])
def test_answers_without_an_advantage_keep_the_penalty_of_dro_and_nothing_else(
    client: mint.ServiceClient, settings: Settings, metrics: Rows, loss_fn: str
) -> None:
    beta = 1.7
    cfg = settings(
        loss_fn=loss_fn,
        temperature=1.0,
        learning_rate=0.0,
        max_tokens=6,
        **({"dro_beta": beta} if loss_fn == "dro" else {}),
    )
    with stepping(Shy(), cfg, client) as run:
        batch = run.sample(1)
        datums = run.train(batch, run.build_datums(batch))
        run.record(batch, datums)
        answer = run.client.forward(datums, "cross_entropy").result()
    silent = [datum for datum in datums if not values(datum, "advantages").any()]
    if loss_fn != "dro":
        assert not silent
        assert 0 < len(datums) <= cfg.group_size
        return
    assert len(silent) >= cfg.group_size
    assert len(datums) == 2 * cfg.group_size
    wanted = 0.0
    for datum, output in zip(datums, answer.loss_fn_outputs, strict=True):
        lp = np.asarray(output["logprobs"].data, dtype=np.float64)
        for w, p, q, a in zip(
            values(datum, "weights"),
            lp,
            values(datum, "logprobs"),
            values(datum, "advantages"),
            strict=True,
        ):
            wanted -= w * (p * a - beta / 2 * (p - q) ** 2)
    assert metrics()[0]["train/loss"] == pytest.approx(wanted, rel=1e-4, abs=1e-4)


def test_the_service_keeps_the_penalty_of_dro_without_weights(client: mint.ServiceClient) -> None:
    tokens, q, beta = [5, 6, 7, 8, 9], [-1.0, -3.0, -0.25, -2.0], 0.7
    plain = {"target_tokens": tensor(tokens[1:], "int64")}
    given = {**plain, "logprobs": tensor(q), "advantages": tensor([0.0] * 4)}
    weighed = {**given, "weights": tensor([1.0] * 4)}
    one, other = (
        types.Datum(
            model_input=types.ModelInput.from_ints(tokens=tokens[:-1]), loss_fn_inputs=inputs
        )
        for inputs in (given, weighed)
    )
    trainer = client.create_lora_training_client(base_model=MODEL, rank=4)
    settings: dict[str, float | str] = {"beta": beta}
    alone = trainer.forward([one], "dro", settings).result()
    lp = np.asarray(alone.loss_fn_outputs[0]["logprobs"].data, dtype=np.float64)
    wanted = sum(beta / 2 * (a - b) ** 2 for a, b in zip(lp, q, strict=True))
    assert alone.metrics["loss:sum"] == pytest.approx(wanted, rel=1e-4)
    assert wanted > 1.0
    both = trainer.forward([one, other], "dro", settings).result()  # weights for one of them
    assert both.metrics["loss:sum"] == pytest.approx(2 * wanted, rel=1e-4)
    for loss_fn in ("importance_sampling", "ppo", "cispo"):
        silent = trainer.forward([one], loss_fn).result()
        assert silent.metrics["loss:sum"] == 0.0


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
    with stepping(Upright(), cfg, client) as run:
        batch = run.sample(1)
        run.record(batch, run.train(batch, run.build_datums(batch)))
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
