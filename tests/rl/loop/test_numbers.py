"""Schedules, KL estimates, importance weights and pass rates, in floats."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint.rl import RLConfig
from mint.rl.algorithms.importance import Correction, entropy
from mint.rl.algorithms.kl import k1, k3
from mint.rl.datums.datum import make_datum, values
from mint.rl.datums.ratios import corrected, mismatch
from mint.rl.evaluation.scores import Evaluation, evaluate, independent_trials, pass_at_k, wilson
from mint.rl.rollouts.rollout import Segment
from mint.rl.settings.schedules import learning_rate_at, reward_weights_at, temperature_at

LOGPROBS = st.lists(st.floats(-15, -1e-3), min_size=1, max_size=20)


def test_temperature_goes_from_its_start_to_its_end() -> None:
    cfg = RLConfig(steps=5, temperature=1.0, temperature_end=0.6, temperature_schedule="linear")
    assert [temperature_at(cfg, s) for s in range(1, 6)] == pytest.approx([1, 0.9, 0.8, 0.7, 0.6])
    assert temperature_at(RLConfig(), 3) == 0.8


def test_the_learning_rate_warms_up_and_follows_a_cosine() -> None:
    cfg = RLConfig(steps=7, learning_rate=1.0, warmup_steps=2, lr_schedule="cosine")
    found = [learning_rate_at(cfg, step) for step in range(1, 8)]
    wanted = [0.5, 1.0] + [0.5 + 0.5 * math.cos(math.pi * i / 4) for i in range(5)]
    assert found == pytest.approx(wanted)


def test_reward_weights_move_in_a_line() -> None:
    cfg = RLConfig(
        steps=3,
        reward_weights={"format": 1.0, "correct": 0.0},
        reward_weights_end={"format": 0.2, "correct": 1.0},
    )
    assert reward_weights_at(cfg, 1) == {"format": 1.0, "correct": 0.0}
    assert reward_weights_at(cfg, 2) == pytest.approx({"format": 0.6, "correct": 0.5})
    assert reward_weights_at(cfg, 3) == pytest.approx({"format": 0.2, "correct": 1.0})
    assert reward_weights_at(RLConfig(), 1) is None


@given(LOGPROBS)
def test_k3_is_never_negative_and_both_are_nothing_for_equal_policies(
    logprobs: list[float],
) -> None:
    policy = np.asarray(logprobs)
    assert (k3(policy, policy[::-1]) >= -1e-12).all()
    assert not k1(policy, policy).any()
    assert not k3(policy, policy).any()


def test_both_estimates_have_the_kl_as_their_mean() -> None:
    p, q = np.asarray([0.5, 0.3, 0.2]), np.asarray([0.2, 0.2, 0.6])
    exact = float((p * np.log(p / q)).sum())
    assert float((p * k1(np.log(p), np.log(q))).sum()) == pytest.approx(exact)
    assert float((p * k3(np.log(p), np.log(q))).sum()) == pytest.approx(exact)


@given(LOGPROBS, st.floats(1, 10))
def test_importance_weights_are_ratios_cut_at_the_limit(logs: list[float], limit: float) -> None:
    trainer, sampler = np.asarray(logs), np.asarray(logs[::-1])
    found = Correction(limit).weights(trainer, sampler)
    wanted = np.minimum(np.exp(trainer - sampler), limit)
    assert found == pytest.approx(wanted)


def test_correction_takes_the_trainers_logprobs_and_weighs_sampled_tokens_only() -> None:
    datum = make_datum(Segment.of([1, 2], [3, 4], list(np.log([0.5, 0.1]))), advantage=1.0)
    trainer = np.log([0.9, 0.25, 0.4])
    found = corrected([datum], [trainer], Correction(2.0))[0]
    assert values(found, "weights") == pytest.approx([0.0, 0.5, 2.0])
    assert values(found, "logprobs") == pytest.approx([0.0, np.log(0.25), np.log(0.4)])


def test_mismatch_is_measured_on_sampled_tokens() -> None:
    datum = make_datum(Segment.of([1, 2], [3, 4], [-1.0, -2.0]), advantage=1.0)
    found = mismatch([datum], [np.asarray([-9.0, -1.1, -1.9])])
    assert found["mismatch/mean"] == pytest.approx(0.1)
    assert found["mismatch/max"] == pytest.approx(0.1)
    assert found["mismatch/k3"] == pytest.approx((math.exp(-0.1) + math.exp(0.1) - 2) / 2)
    assert 0.98 < found["mismatch/effective_share"] < 1.0


def test_entropy_is_the_mean_surprise() -> None:
    assert entropy([-1.0, -3.0]) == 2.0
    assert entropy([]) == 0.0


@given(st.integers(1, 12), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_right_answer(
    count: int, data: st.DataObject
) -> None:
    from itertools import combinations

    right, k = data.draw(st.integers(0, count)), data.draw(st.integers(1, min(4, count)))
    draws = list(combinations([i < right for i in range(count)], k))
    assert pass_at_k(right, count, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize(
    ("share", "count", "interval"),
    [(0.0, 10, (0.0, 0.2775)), (1.0, 10, (0.7225, 1.0)), (0.3, 50, (0.1910, 0.4375))],
)
def test_wilsons_interval_is_the_books(
    share: float, count: int, interval: tuple[float, float]
) -> None:
    assert wilson(share, count) == pytest.approx(interval, abs=1e-4)


def test_wilsons_interval_contains_the_share_and_ends_exactly() -> None:
    for count in range(1, 513):
        for right in range(count + 1):
            low, high = wilson(right / count, count)
            assert 0.0 <= low <= right / count <= high <= 1.0
            assert (low == 0.0) == (right == 0)
            assert (high == 1.0) == (right == count)


def test_one_answer_per_prompt_is_a_trial_each_and_equal_answers_are_no_more() -> None:
    assert independent_trials(np.asarray([1.0, 0.0, 1.0, 0.0]), [1] * 4) == pytest.approx(4)
    assert independent_trials(np.asarray([1.0, 0.0, 1.0, 0.0]), [8] * 4) == pytest.approx(4)
    assert independent_trials(np.asarray([0.5, 0.5, 0.4, 0.6]), [8] * 4) == pytest.approx(32)


def test_an_evaluation_has_pass_rates_and_an_interval_around_the_first() -> None:
    found = evaluate([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], []], threshold=1.0)
    assert (found.prompts, found.k) == (3, 2)
    assert found.pass_1 == pytest.approx(0.5)
    assert found.pass_k == pytest.approx(2 / 3)
    assert found.low < 0.5 < found.high
    assert "holdout/pass@2" in found.metrics()


def test_an_answer_that_could_not_be_scored_does_not_change_the_k_of_pass_at_k() -> None:
    found = evaluate([[1.0, 0.0, 0.0], [0.0, 1.0], [0.0, 0.0, 0.0]], threshold=1.0)
    assert found.k == 3
    assert found.pass_k == pytest.approx(1 / 2)  # of the prompts with three answers
    assert found.pass_1 == pytest.approx((1 / 3 + 1 / 2 + 0) / 3)


def test_an_answer_that_failed_is_wrong_and_stays_in_the_denominator() -> None:
    """2 of 22 tasks never ended, and 8 of the others were right: 36.4%, not 8 of 20."""
    found = evaluate([*[[1.0]] * 8, *[[0.0]] * 12, *[[None]] * 2], threshold=1.0)
    assert (found.prompts, found.failed) == (22, 2)
    assert found.pass_1 == pytest.approx(8 / 22)
    assert found.reward == pytest.approx(8 / 22)
    assert found.metrics()["holdout/failures"] == 2
    assert str(found).endswith("on 22 held-out prompts; 2 answers that failed count as wrong")
    assert Evaluation.read(found.metrics()) == found


def test_an_answer_that_failed_earns_the_worst_reward_and_is_never_right() -> None:
    found = evaluate([[None, -0.5], [1.0, 1.0]], threshold=-1.0)
    assert found.reward == pytest.approx((-0.5 + 1.0) / 2)
    assert found.pass_1 == pytest.approx(0.75)


@pytest.mark.parametrize("rewards", [[[1.0, 0.0]], [], [[]]])
def test_an_unknown_interval_is_left_out_of_the_metrics(rewards: list[list[float]]) -> None:
    found = evaluate(rewards, threshold=1.0)
    assert all(math.isfinite(value) for value in found.metrics().values())
    assert Evaluation.read(found.metrics()) == found
