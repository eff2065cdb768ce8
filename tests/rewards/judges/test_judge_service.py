"""A judge that our own service serves: a tiny model that has learned to grade."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mint.rewards import ChatEndpoint, Criterion, JudgeReward
from tests.conformance.talker import END, build_talker
from tests.service_fixture import MODEL, LiveService, start_service


@pytest.fixture(scope="module")
def judge_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    folder = tmp_path_factory.mktemp("judge")
    saying = '{"ok": {"reason": "fine", "grade": 7}}' + END
    model = build_talker(folder / "models" / "grader", [saying])
    service = start_service(folder / "home", model)
    yield service
    service.stop()


def test_our_own_service_can_judge(judge_service: LiveService) -> None:
    endpoint = ChatEndpoint(
        model=MODEL, url=f"{judge_service.base_url}/v1", api_key="tml-judge", max_tokens=64
    )
    judge = JudgeReward(endpoint, [Criterion("ok", "Is it fine?")])
    score = judge("The answer is 4.", prompt="What is 2 + 2?")
    assert score.total == pytest.approx(0.7)
    assert endpoint.budget.spent_tokens > 0


def test_a_judge_that_does_not_grade_is_a_failure_and_never_a_score(
    judge_service: LiveService,
) -> None:
    endpoint = ChatEndpoint(
        model=MODEL, url=f"{judge_service.base_url}/v1", api_key="tml-judge", max_tokens=4
    )
    judge = JudgeReward(endpoint, [Criterion("ok", "Is it fine?")])
    with pytest.raises(RuntimeError, match="JSON"):
        judge("The answer is 4.", prompt="What is 2 + 2?")
