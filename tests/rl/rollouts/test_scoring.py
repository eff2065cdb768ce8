"""Rewards as they arrive: those that are not numbers are counted and never trained on."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from mint.rewards import Score
from mint.rl.rollouts.rollout import Rollout
from mint.rl.rollouts.scoring import apply_score, score_responses
from tests.rl.conftest import Letters


def scored(value: Any, weights: dict[str, float] | None = None) -> Rollout:
    rollout = Rollout([], "text")
    apply_score(rollout, value, weights)
    return rollout


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, "good", "0.5", ZeroDivisionError("x"), [1.0]]
)
def test_only_numbers_are_rewards(value: Any) -> None:
    rollout = scored(value)
    assert rollout.reward is None
    assert rollout.error


@pytest.mark.parametrize("weights", [None, {"style": 1.0}, {"truth": 1.0}])
def test_a_component_that_is_not_a_number_is_a_failed_reward(
    weights: dict[str, float] | None,
) -> None:
    rollout = scored(Score(1.0, {"style": math.nan, "truth": 1.0}), weights)
    assert rollout.reward is None
    assert "style" in str(rollout.error)
    assert rollout.components == {}


def test_weights_take_the_place_of_the_total() -> None:
    score = Score(9.0, {"style": 0.5, "truth": 1.0})
    assert scored(score).reward == 9.0
    assert scored(score, {"style": 2.0, "truth": -1.0}).reward == 0.0
    assert "tone" in str(scored(score, {"tone": 1.0}).error)


@pytest.mark.parametrize("value", [None, 0.5, [1.0]])
def test_a_wrong_number_of_rewards_is_a_failure_of_each_answer(value: Any) -> None:
    class Judged(Letters):
        def compute_rewards(self, responses: Any, sample: str) -> Any:
            return value

    found = asyncio.run(score_responses(Judged(), ["a", "b"], "sample"))
    assert len(found) == 2
    assert all("compute_rewards gave" in scored(each).error for each in found)  # type: ignore[operator]
