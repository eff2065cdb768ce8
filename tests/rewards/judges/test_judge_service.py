"""A judge that our own service serves: a tiny model that has learned to grade."""

from __future__ import annotations

import pytest

from mint.rewards import ChatEndpoint, Criterion, JudgeReward
from tests.conformance.talker import END, build_talker


@pytest.fixture(scope="module")
def grader(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that says one grade, by its folder."""
    saying = '{"ok": {"reason": "fine", "grade": 7}}' + END
    return str(build_talker(tmp_path_factory.mktemp("judge") / "grader", [saying]))


def test_our_own_service_can_judge(service: str, grader: str) -> None:
    endpoint = ChatEndpoint(model=grader, url=f"{service}/v1", api_key="tml-judge", max_tokens=64)
    judge = JudgeReward(endpoint, [Criterion("ok", "Is it fine?")])
    score = judge("The answer is 4.", prompt="What is 2 + 2?")
    assert score.total == pytest.approx(0.7)
    assert endpoint.budget.spent_tokens > 0


def test_a_judge_that_does_not_grade_is_a_failure_and_never_a_score(
    service: str, grader: str
) -> None:
    endpoint = ChatEndpoint(model=grader, url=f"{service}/v1", api_key="tml-judge", max_tokens=4)
    judge = JudgeReward(endpoint, [Criterion("ok", "Is it fine?")])
    with pytest.raises(RuntimeError, match="JSON"):
        judge("The answer is 4.", prompt="What is 2 + 2?")
