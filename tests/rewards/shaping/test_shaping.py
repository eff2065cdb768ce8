"""Patterns, penalties, instruction checks, normalisation and curricula keep their bounds."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mint.rewards import (
    RunningNormaliser,
    Score,
    SkillCurriculum,
    check_instructions,
    check_json,
    find_reward,
    linear_weights,
    normalise_by_group,
    staged_weights,
    z_scores,
)
from mint.rewards.registry import RANGES
from tests.rewards.bombs import ARGUMENTS, FORMAT, GOLD

BOUNDS = {
    name: tuple(
        float(end)
        for end in text.replace(" or ", " ").replace(" to ", " ").replace(",", "").split()
    )
    for name, text in RANGES.items()
}
TRACE = {
    "tool_calls": [{"name": "search", "arguments": str(n % 3)} for n in range(30)],
    "messages": ["m"] * 40,
}
rewards_strategy = st.lists(st.floats(-100, 100), min_size=2, max_size=20)


@pytest.mark.parametrize("name", RANGES)
@given(response=st.text(max_size=400))
@settings(max_examples=30, deadline=None)
def test_every_reward_stays_in_the_range_that_is_documented(name: str, response: str) -> None:
    metadata: dict[str, Any] = {**GOLD, **FORMAT, "trace": TRACE, **ARGUMENTS.get(name, {})}
    score = find_reward(name)(response, metadata.get("prompt", ""), metadata)
    assert score is not None
    assert min(BOUNDS[name]) <= score.total <= max(BOUNDS[name]) + 1e-12


@given(rewards=rewards_strategy)
def test_z_scores_have_mean_zero_and_deviation_one_or_are_all_zero(rewards: list[float]) -> None:
    scores = z_scores(rewards)
    if statistics.pstdev(rewards) > 1e-6:
        assert statistics.fmean(scores) == pytest.approx(0.0, abs=1e-6)
        assert statistics.pstdev(scores) == pytest.approx(1.0, abs=1e-6)
    assert all(abs(score) <= 1.5 for score in z_scores(rewards, clip=1.5))


def test_a_group_is_normalised_by_itself() -> None:
    assert normalise_by_group([1.0, 3.0, 100.0], ["a", "a", "b"], scale=False) == [-1.0, 1.0, 0.0]
    with pytest.raises(ValueError, match="2 rewards and 1 groups"):
        normalise_by_group([1.0, 2.0], ["a"])


@given(rewards=rewards_strategy)
def test_the_running_normaliser_agrees_with_the_whole(rewards: list[float]) -> None:
    normaliser = RunningNormaliser()
    for reward in rewards:
        normaliser.update([reward])
    assert normaliser.mean == pytest.approx(statistics.fmean(rewards), abs=1e-6)
    assert normaliser.std == pytest.approx(statistics.pstdev(rewards), abs=1e-6)
    resumed = RunningNormaliser()
    resumed.load(normaliser.state())
    assert resumed.normalise([1.0]) == normaliser.normalise([1.0])


def test_weights_follow_the_step() -> None:
    linear = linear_weights({"a": 0.0}, {"a": 1.0}, 10)
    assert [linear(step)["a"] for step in (-1, 0, 5, 10, 99)] == [0.0, 0.0, 0.5, 1.0, 1.0]
    with pytest.raises(ValueError, match="begins at step 0"):
        staged_weights({5: {"a": 1.0}})


def test_a_skill_curriculum_goes_up_and_down() -> None:
    curriculum = SkillCurriculum(["easy", "middle", "hard"], window=4)
    curriculum.record([1.0] * 8)
    assert curriculum.level == "hard"
    curriculum.record([0.0] * 4)
    assert curriculum.level == "middle"
    curriculum.record([0.5] * 100)
    assert curriculum.level == "middle"


@pytest.mark.parametrize("text", ["NaN", "-Infinity", '{"x": NaN}'])
def test_a_number_that_is_not_finite_is_not_json(text: str) -> None:
    assert check_json(text) == 0.0


def test_a_percentage_that_is_right_gets_the_whole_continuous_reward() -> None:
    assert find_reward("continuous_reward")("50%", metadata={"answer": "0.5"}) == Score(1.0)


def test_a_fence_inside_a_string_does_not_hide_the_json_around_it() -> None:
    assert check_json('{"a": "```",\n "b": 1}') == 1.0


def test_json_is_found_after_a_block_in_another_language() -> None:
    response = '```python\nx = 1\n```\nIt prints:\n```json\n{"x": 1}\n```'
    assert check_json(response) == 1.0


@pytest.mark.parametrize("number", ["1e999", "1" + "0" * 400])
def test_a_number_too_large_for_the_schema_does_not_follow_it(number: str) -> None:
    schema = {"type": "object", "properties": {"x": {"multipleOf": 0.01}}}
    assert check_json(f'{{"x": {number}}}', schema) == 0.5


@pytest.mark.parametrize("name", ["tool_cost_penalty", "tool_spam_penalty", "step_count_penalty"])
def test_a_trace_may_say_that_there_are_none(name: str) -> None:
    trace = {"tool_calls": None, "messages": None}
    assert find_reward(name)("", metadata={"trace": trace}) == Score(0.0)


def test_repetition_is_counted_in_words_when_only_the_number_of_tokens_is_known() -> None:
    words = find_reward("repetition_penalty")("no " * 300)
    assert find_reward("repetition_penalty")("no " * 300, metadata={"tokens": 600}) == words


def test_an_unknown_check_is_refused() -> None:
    with pytest.raises(ValueError, match="known are length, keywords"):
        check_instructions("x", [{"check": "colour"}])
