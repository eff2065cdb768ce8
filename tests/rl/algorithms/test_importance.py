"""Importance weights of tokens and answers, truncated or masked, against plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import mint
from mint.rl import RLConfig, Segment, run_grpo
from mint.rl.algorithms.importance import Correction
from mint.rl.datums.datum import make_datum, values
from mint.rl.datums.ratios import corrected, masked_share
from tests.rl.conftest import Letters
from tests.rl.stepping import stepping

TRAINER = [math.log(p) for p in (0.5, 0.9, 0.06, 0.2)]
SAMPLER = [math.log(p) for p in (0.4, 0.3, 0.12, 0.25)]


def wanted(level: str, rule: str, limit: float, low: float) -> list[float]:
    ratios = [math.exp(p) / math.exp(q) for p, q in zip(TRAINER, SAMPLER, strict=True)]
    if level == "sequence":
        ratios = [math.prod(ratios)] * len(ratios)
    elif level == "geometric":
        ratios = [math.prod(ratios) ** (1 / len(ratios))] * len(ratios)
    if rule == "truncate":
        return [min(ratio, limit) for ratio in ratios]
    return [ratio if low <= ratio <= limit else 0.0 for ratio in ratios]


@pytest.mark.parametrize("limit", [1.1, 2.0, 5.0])
@pytest.mark.parametrize("low", [0.0, 0.6])
@pytest.mark.parametrize("rule", ["truncate", "mask"])
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_weights_follow_the_formula(level: str, rule: str, low: float, limit: float) -> None:
    correction = Correction(limit, level, rule, low)
    found = correction.weights(np.asarray(TRAINER), np.asarray(SAMPLER))
    assert found == pytest.approx(wanted(level, rule, limit, low), rel=1e-12)


def test_weights_of_whole_answers_make_a_mean_under_the_sampler_one_under_the_trainer() -> None:
    """All answers of two tokens: sum of q(s) w(s) f(s) is sum of p(s) f(s), by enumeration."""
    rng = np.random.default_rng(4)
    p1, q1 = rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(3))
    p2, q2 = rng.dirichlet(np.ones(3), 3), rng.dirichlet(np.ones(3), 3)
    value = rng.normal(size=(3, 3))
    correction = Correction(1e9, level="sequence")
    exact = estimate = 0.0
    for a, b in product(range(3), repeat=2):
        p, q = np.asarray([p1[a], p2[a, b]]), np.asarray([q1[a], q2[a, b]])
        weight = correction.weights(np.log(p), np.log(q))[-1]
        exact += p.prod() * value[a, b]
        estimate += q.prod() * weight * value[a, b]
    assert estimate == pytest.approx(exact, rel=1e-9)


def test_masked_tokens_have_no_weight_and_are_counted() -> None:
    datum = make_datum(Segment.of([1, 2], [3, 4], [math.log(0.5), math.log(0.1)]), advantage=1.0)
    trainer = np.log([0.9, 0.25, 0.4])
    after = corrected([datum], [trainer], Correction(2.0, rule="mask"))
    assert values(after[0], "weights") == pytest.approx([0.0, 0.5, 0.0])
    assert masked_share([datum], after) == 0.5
    whole = corrected([datum], [trainer], Correction(3.0, level="sequence"))
    assert values(whole[0], "weights") == pytest.approx([0.0, 2.0, 2.0])


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_run_says_how_much_it_left_out(
    client: mint.ServiceClient,
    settings: Callable[..., RLConfig],
    metrics: Callable[[], list[dict[str, Any]]],
    level: str,
) -> None:
    cfg = settings(
        steps=1,
        temperature=0.5,  # far from the trainer's, so that there is something to leave out
        truncated_importance=1.5,
        importance_rule="mask",
        importance_level=level,
        importance_low=0.1,
    )
    run_grpo(Letters(), cfg, service=client)
    (row,) = metrics()
    assert 0.0 < row["mismatch/masked"] <= 1.0
    assert math.isfinite(row["train/loss"])


def test_kl_in_the_loss_is_that_to_the_reference(
    client: mint.ServiceClient,
    settings: Callable[..., RLConfig],
    metrics: Callable[[], list[dict[str, Any]]],
) -> None:
    cfg = settings(
        steps=2, temperature=1.0, kl_loss_coef=0.7, kl_loss="k2", learning_rate=0.05, batch_size=1
    )
    with stepping(Letters(), cfg, client) as run:
        batch = run.sample(1)
        run.record(batch, run.train(batch, run.build_datums(batch)))  # away from the reference
        batch = run.sample(2)
        datums = run.build_datums(batch)
        trainer = run.client.forward(datums, "cross_entropy").result()
        base = client.create_sampling_client(base_model=cfg.base_model)
        loss, k1, k3 = 0.0, [], []
        for datum, output in zip(datums, trainer.loss_fn_outputs, strict=True):
            targets = [int(t) for t in datum.loss_fn_inputs["target_tokens"].data]
            tokens = [*datum.model_input.to_ints(), targets[-1]]
            theirs = base.compute_logprobs(mint.types.ModelInput.from_ints(tokens)).result()[1:]
            inputs = (values(datum, "weights"), values(datum, "advantages"))
            for lp, ref, q, w, a in zip(
                output["logprobs"].data, theirs, values(datum, "logprobs"), *inputs, strict=True
            ):
                if w:
                    assert ref is not None
                    loss += w * (-math.exp(lp - q) * a + 0.7 * (lp - ref) ** 2 / 2)
                    k1.append(lp - ref)
                    k3.append(math.exp(ref - lp) - 1 - (ref - lp))
        run.record(batch, run.train(batch, datums))
    row = metrics()[1]
    assert len(datums) == cfg.group_size
    assert row["kl/k3"] == pytest.approx(np.mean(k3), rel=1e-3, abs=1e-6)
    assert row["kl/k3"] > 1e-3
    assert row["kl/k1"] == pytest.approx(np.mean(k1), rel=1e-3, abs=1e-4)
    assert row["train/loss"] == pytest.approx(loss, rel=1e-3, abs=1e-3)
