"""Why a component got its value: filled by rewards, kept by composition."""

from __future__ import annotations

from dataclasses import dataclass, field

from mint.rewards import Score, clip, gated, shaped, weighted
from mint.rewards.score import read_score


def polite(response: str) -> Score:
    return Score(0.5, {"words": 1.0}, {"total": "no greeting", "words": "one of two"})


def plain(response: str) -> float:
    return 1.0


def test_reasons_are_no_part_of_what_a_score_is_compared_by() -> None:
    assert Score(1.0, {}, {"total": "a"}) == Score(1.0)
    assert repr(Score(1.0, {}, {"total": "a"})) == "Score(total=1.0, components={})"


def test_a_weighted_sum_keeps_the_reasons_of_its_components() -> None:
    score = weighted({"polite": (0.5, polite), "plain": (0.5, plain)})("x")
    assert score is not None
    assert score.reasons == {"polite": "no greeting", "polite/words": "one of two"}
    assert set(score.reasons) <= set(score.components)


def test_a_gate_says_whether_the_reward_was_counted() -> None:
    closed, opened = gated(plain, polite)("x"), gated(polite, plain)("x")
    assert closed is not None
    assert opened is not None
    assert closed.reasons["total"] == "not counted: the gate is below 0.8"
    assert closed.reasons["gate"] == "no greeting"
    assert opened.reasons["total"] == "counted: the gate is at least 0.8"


def test_shaping_and_clipping_say_what_they_changed() -> None:
    score = shaped(polite, {"extra": (1.0, plain)}, limit=0.3)("x")
    assert score is not None
    assert score.reasons == {
        "base": "no greeting",
        "words": "one of two",
        "shaping": "1, limited to 0.3 either way",
    }
    clipped = clip(polite, 0.0, 0.25)("x")
    assert clipped is not None
    assert clipped.reasons["total"] == "clip: 0.5 became 0.25"
    assert clipped.reasons["unchanged"] == "no greeting"


@dataclass
class Breakdown:
    total: float
    right: float
    reasons: dict[str, str] = field(default_factory=dict)


def test_mappings_and_dataclasses_may_carry_reasons() -> None:
    found = read_score(Breakdown(1.0, 0.5, {"right": "half"}))
    assert found == Score(1.0, {"right": 0.5})
    assert found is not None
    assert found.reasons == {"right": "half"}
    mapping = read_score({"score": 1, "reasons": {"total": "yes"}})
    assert mapping is not None
    assert mapping.reasons == {"total": "yes"}
