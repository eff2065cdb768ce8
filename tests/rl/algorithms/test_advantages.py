"""Advantages, in floats."""

from __future__ import annotations

import math
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mint.rl.algorithms.advantage import advantages, has_signal
from mint.rl.settings.fields import Advantage

REWARDS = st.lists(st.floats(-100, 100), min_size=1, max_size=16)
GROUPS = st.lists(REWARDS, min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("centre", [[0.5, -0.5], [0.25, -0.25, -0.25, 0.25]]),
        ("dr_grpo", [[0.5, -0.5], [0.25, -0.25, -0.25, 0.25]]),
        ("standardise", [[1.0, -1.0], [1.0, -1.0, -1.0, 1.0]]),
        ("leave_one_out", [[1.0, -1.0], [1 / 3, -1 / 3, -1 / 3, 1 / 3]]),
        ("batch", [[math.sqrt(2), -math.sqrt(2)], [x / math.sqrt(2) for x in (1, -1, -1, 1)]]),
        ("global", [[x / math.sqrt(5) for x in g] for g in ([4, -2], [1, -2, -2, 1])]),
    ],
)
def test_each_way_of_comparing_gives_its_numbers(kind: str, expected: list[list[float]]) -> None:
    found = advantages([[1.0, 0.0], [0.5, 0.0, 0.0, 0.5]], kind)
    for group, wanted in zip(found, expected, strict=True):
        assert group == pytest.approx(wanted, rel=1e-5)


def formula(rewards_P_G: list[list[float]], kind: str) -> list[list[float]]:
    """The same in plain sums, from the definitions."""

    def spread(numbers: list[float]) -> float:
        mean = math.fsum(numbers) / len(numbers)
        return math.sqrt(math.fsum((x - mean) ** 2 for x in numbers) / len(numbers))

    centred = [[r - math.fsum(group) / len(group) for r in group] for group in rewards_P_G]
    batch = spread([x for group in centred for x in group])
    everything = [r for group in rewards_P_G for r in group]
    if kind == "global":
        mean, scale = math.fsum(everything) / len(everything), spread(everything) + 1e-6
        equal = max(everything) - min(everything) <= 1e-9
        return [[0.0 if equal else (r - mean) / scale for r in group] for group in rewards_P_G]
    found = []
    for group, differences in zip(rewards_P_G, centred, strict=True):
        total, count = math.fsum(group), len(group)
        if max(group) - min(group) <= 1e-9:
            found.append([0.0] * count)
        elif kind == "leave_one_out":
            found.append([r - (total - r) / (count - 1) for r in group])
        else:
            scale = {"standardise": spread(group) + 1e-6, "batch": batch + 1e-6}.get(kind, 1.0)
            found.append([x / scale for x in differences])
    return found


@given(GROUPS, st.sampled_from(get_args(Advantage)))
@example([[0.7], [0.1, 0.1, 0.1], [1.0, 0.0]], "leave_one_out")
@example([[0.7], [0.1, 0.1, 0.1]], "batch")
def test_every_way_of_comparing_is_its_definition(groups: list[list[float]], kind: str) -> None:
    found, wanted = advantages(groups, kind), formula(groups, kind)
    for group, numbers in zip(found, wanted, strict=True):
        assert group == pytest.approx(numbers, rel=1e-6, abs=1e-6)


def test_leaving_one_out_is_the_difference_to_the_others_mean() -> None:
    rewards = [0.1, 0.7, 0.2]
    others = [sum(rewards[:i] + rewards[i + 1 :]) / 2 for i in range(3)]
    assert advantages([rewards], "leave_one_out")[0] == pytest.approx(
        [r - o for r, o in zip(rewards, others, strict=True)]
    )


@given(GROUPS, st.sampled_from(get_args(Advantage)))
def test_advantages_are_finite_sum_to_nothing_and_keep_the_order(
    rewards_P_G: list[list[float]], kind: str
) -> None:
    found = advantages(rewards_P_G, kind)
    for rewards, values in zip(rewards_P_G, found, strict=True):
        assert len(values) == len(rewards)
        assert all(math.isfinite(value) for value in values)
        if kind != "global":
            assert sum(values) == pytest.approx(0.0, abs=1e-3 * (1 + max(map(abs, values))))
        if has_signal(rewards):
            best, worst = rewards.index(max(rewards)), rewards.index(min(rewards))
            assert values[best] > values[worst]
    largest = max(abs(value) for values in found for value in values)
    everything = sum(value for values in found for value in values)
    assert everything == pytest.approx(0.0, abs=1e-2 * (1 + largest))


@given(st.floats(-5, 5), st.integers(1, 9))
def test_equal_rewards_have_no_signal(reward: float, count: int) -> None:
    assert not has_signal([reward] * count)
    assert advantages([[reward] * count], "standardise")[0] == pytest.approx([0.0] * count)
