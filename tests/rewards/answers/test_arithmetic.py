"""MinT's shaped reward, value by value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint.rewards import RewardBreakdown, Score, compute_reward_breakdown, find_reward


@pytest.mark.parametrize(
    ("response", "target", "parts"),
    [
        ("8", 8, (1.0, 0.2, 0.5, 0.3)),
        ("no number", 8, (0.0, 0.0, 0.0, 0.0)),
        ("", 8, (0.0, 0.0, 0.0, 0.0)),
        ("18", 8, (0.45, 0.2, 0.25, 0.0)),
        ("28", 8, (0.2, 0.2, 0.0, 0.0)),
        ("-8", 8, (0.3, 0.2, 0.1, 0.0)),
        ("150", 100, (0.45, 0.2, 0.25, 0.0)),
        ("-100", -100, (1.0, 0.2, 0.5, 0.3)),
        ("1" * 500, 8, (0.2, 0.2, 0.0, 0.0)),
    ],
)
def test_the_parts_are_as_documented(
    response: str, target: int, parts: tuple[float, float, float, float]
) -> None:
    breakdown = compute_reward_breakdown(response, target)
    found = (
        breakdown.total,
        breakdown.format_reward,
        breakdown.distance_reward,
        breakdown.exact_bonus,
    )
    assert found == pytest.approx(parts)


def test_the_answer_of_a_dataset_may_be_text() -> None:
    assert find_reward("compute_reward_breakdown")("18", metadata={"answer": "8"}) == Score(
        0.45, {"format_reward": 0.2, "distance_reward": 0.25, "exact_bonus": 0.0}
    )


@given(response=st.text(max_size=100), target=st.integers())
def test_the_total_stays_between_0_and_1(response: str, target: int) -> None:
    assert 0.0 <= compute_reward_breakdown(response, target).total <= 1.0


def test_a_breakdown_is_frozen() -> None:
    with pytest.raises(AttributeError):
        RewardBreakdown(1.0, 0.2, 0.5, 0.3).total = 0.0  # type: ignore[misc]
