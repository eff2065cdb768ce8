"""Every guard rail, triggered on purpose, and quiet when all is well."""

from __future__ import annotations

import json
import math
import re
from typing import Any, get_args

import numpy as np
import pytest

from mint.rl import RLConfig
from mint.rl.evaluation.scores import evaluate, wilson
from mint.rl.guards import _GUARDS, Finding, Guards
from mint.rl.settings.fields import Guard

HEALTHY: dict[str, float] = {
    "datums": 32.0,
    "datums/unmasked": 0.0,
    "rollouts": 32.0,
    "reward/mean": 0.5,
    "reward/success": 0.4,
    "reward/failures": 0.0,
    "groups/all_right": 1.0,
    "groups/all_wrong": 1.0,
    "groups/unscored": 0.0,
    "length/mean": 40.0,
    "length/truncated": 0.1,
    "policy/entropy": 1.0,
    "policy/repetition": 0.1,
    "policy/temperature": 1.0,
    "staleness/max": 0.0,
    "mismatch/mean": 0.001,
    "kl/k3": 0.01,
    "component/format": 0.3,
    "component/correct": 0.4,
}


def held(pass_1: float, reward: float) -> dict[str, float]:
    return {
        "holdout/pass@1": pass_1,
        "holdout/pass@1_low": pass_1 - 0.05,
        "holdout/pass@1_high": pass_1 + 0.05,
        "holdout/reward": reward,
    }


def after(guards: Guards, *rows: dict[str, float], healthy: int = 4) -> list[Finding]:
    """What is found at the last of these steps, after some healthy ones."""
    for _ in range(healthy):
        assert guards.check(HEALTHY) == []
    findings: list[Finding] = []
    for row in rows:
        findings = guards.check({**HEALTHY, **row})
    return findings


TROUBLE: dict[str, tuple[list[dict[str, float]], str]] = {
    "no_signal": ([{"datums": 0.0, "groups/all_wrong": 8.0}], "too hard"),
    "reward_hacking": (
        [{"reward/mean": 0.5, **held(0.6, 0.6)}]
        + [{"reward/mean": 0.8}] * 5
        + [{"reward/mean": 0.9, **held(0.3, 0.3)}],
        "best checkpoint",
    ),
    "length_runaway": ([{"length/mean": 200.0}] * 5, "no more of them are right"),
    "component_runaway": (
        [{"component/format": 1.0, "component/correct": 0.1}] * 5,
        "'format' rose",
    ),
    "masked_loss": ([{"datums/unmasked": 3.0}], "tokens of the prompt"),
    "truncation": (
        [{"length/truncated": 0.9, "reward/truncated": 0.1, "reward/untruncated": 0.8}],
        "raise max_tokens",
    ),
    "entropy_collapse": ([{"policy/entropy": 0.01}] * 6, "explore|temperature"),
    "kl_runaway": ([{"kl/k3": 3.0}], "kl_penalty_coef"),
    "repetition": ([{"policy/repetition": 0.9}], "repeats"),
    "reward_errors": ([{"reward/failures": 2.0}], "2 of 32"),
    "not_finite": ([{"train/loss": math.nan}], "train/loss"),
    "mismatch": ([{"mismatch/mean": 0.4}], "truncated_importance"),
}


@pytest.mark.parametrize("name", sorted(TROUBLE))
def test_trouble_is_named_and_explained_with_what_to_change(name: str) -> None:
    rows, said = TROUBLE[name]
    findings = {finding.name: finding for finding in after(Guards(RLConfig()), *rows)}
    assert name in findings
    assert re.search(said, str(findings[name]))
    assert findings[name].advice


def test_every_guard_is_known_to_the_settings_and_tested() -> None:
    assert sorted(guard.__name__ for guard in _GUARDS) == sorted(get_args(Guard)) == sorted(TROUBLE)


def test_a_healthy_run_has_no_findings() -> None:
    assert after(Guards(RLConfig()), *[{**held(0.5, 0.5)}] * 3) == []


def test_a_holdout_that_fell_under_the_base_models_is_reward_hacking() -> None:
    guards = Guards(RLConfig())
    guards.begin(held(0.6, 0.6))
    for reward in (0.3, 0.3, 0.3, 0.9, 0.9, 0.9, 0.9):
        assert guards.check({**HEALTHY, "reward/mean": reward}) == []
    (finding,) = guards.check({**HEALTHY, "reward/mean": 0.9, **held(0.1, 0.1)})
    assert finding.name == "reward_hacking"
    assert "rose from 0.300 to 0.900 while the holdout fell from 60.0% to 10.0%" in finding.seen


def test_a_holdout_that_falls_with_the_reward_is_not_reward_hacking() -> None:
    guards = Guards(RLConfig())
    guards.begin(held(0.6, 0.6))
    rows = [{**HEALTHY, "reward/mean": reward} for reward in (0.5, 0.45, 0.4, 0.2)]
    assert [guards.check(row) for row in rows] == [[], [], [], []]
    assert guards.check({**HEALTHY, "reward/mean": 0.1, **held(0.1, 0.1)}) == []


@pytest.mark.parametrize(("prompts", "names"), [(16, []), (640, ["reward_hacking"])])
def test_a_small_holdout_that_falls_by_chance_is_not_reported_as_reward_hacking(
    prompts: int, names: list[str]
) -> None:
    def right(sixteenths: int) -> dict[str, float]:
        rewards = [[1.0]] * sixteenths + [[0.2]] * (16 - sixteenths)
        return evaluate(rewards * (prompts // 16), threshold=1.0).metrics()

    guards = Guards(RLConfig())
    guards.begin(right(9))
    for reward in (0.5, 0.5, 0.5, 0.7, 0.7, 0.7, 0.7):
        assert guards.check({**HEALTHY, "reward/mean": reward}) == []
    found = guards.check({**HEALTHY, "reward/mean": 0.7, **right(6)})
    assert [finding.name for finding in found] == names


def test_a_holdout_that_stays_behind_a_rising_reward_is_reward_hacking() -> None:
    rows = [{"reward/mean": 0.1, **held(0.2, 0.2)}] + [{"reward/mean": 0.9, **held(0.2, 0.2)}] * 5
    (finding,) = after(Guards(RLConfig()), *rows, healthy=0)
    assert finding.name == "reward_hacking"
    assert "did not rise" in finding.seen


def measured(share: float, count: int) -> dict[str, float]:
    low, high = wilson(share, count)
    return {
        "holdout/pass@1": share,
        "holdout/pass@1_low": low,
        "holdout/pass@1_high": high,
        "holdout/reward": share,
    }


def found_after(share: float, count: int, *rewards: float) -> list[Finding]:
    """What is found when the holdout of ``count`` prompts stays where it was at the start."""
    guards = Guards(RLConfig())
    guards.begin(measured(share, count))
    for reward in rewards[:-1]:
        assert guards.check({**HEALTHY, "reward/mean": reward}) == []
    return guards.check({**HEALTHY, "reward/mean": rewards[-1], **measured(share, count)})


def test_a_holdout_at_0_throughout_a_rising_reward_is_reward_hacking() -> None:
    for count in range(1, 513):
        (finding,) = found_after(0.0, count, 0.19, 0.2, 0.21, *[0.98] * 6)
        assert finding.name == "reward_hacking"
        assert "did not rise with it: from 0.0% to 0.0%" in finding.seen


def test_a_holdout_that_stays_at_100_has_not_fallen() -> None:
    for count in range(1, 513):
        assert found_after(1.0, count, 0.3, 0.4, 0.5, *[0.98] * 6) == []


def test_a_rounding_error_of_a_share_is_not_a_change() -> None:
    third, almost = 1 / 3, 1 / 3 - 1e-16
    fell = {**held(almost, third), "holdout/pass@1_high": almost}
    guards = Guards(RLConfig())
    guards.begin(held(third, third))
    for reward in (0.3, 0.3, 0.3, *[0.5] * 5):
        guards.check({**HEALTHY, "reward/mean": reward})
    assert guards.check({**HEALTHY, "reward/mean": 0.5, **fell}) == []


def test_a_policy_that_only_becomes_more_certain_has_no_finding() -> None:
    rows = [{"reward/mean": 0.3, **held(0.8, 0.8)}] + [{"reward/mean": 0.8, **held(0.8, 0.8)}] * 5
    assert after(Guards(RLConfig()), *rows, healthy=0) == []


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"groups/all_right": 8.0, "groups/all_wrong": 0.0}, "too easy"),
        ({"groups/all_right": 0.0, "groups/all_wrong": 8.0}, "too hard"),
        ({"groups/unscored": 8.0, "groups/all_wrong": 0.0, "groups/all_right": 0.0}, "excluded"),
        ({"groups/all_equal": 8.0}, "1 groups are all right, 1 all wrong, 8 equally good"),
        ({"groups/all_equal": 8.0}, "same reward above 0"),
    ],
)
def test_no_signal_distinguishes_all_right_from_all_wrong(
    metrics: dict[str, float], said: str
) -> None:
    findings = after(Guards(RLConfig()), {"datums": 0.0, **metrics})
    assert said in str(findings[0])


@pytest.mark.parametrize(
    "term", [{"kl_loss_coef": 0.04}, {"entropy_coef": 0.01}, {"loss_fn": "dro"}]
)
def test_no_signal_is_found_where_only_another_term_of_the_loss_is_trained(
    term: dict[str, Any],
) -> None:
    equal = {"datums": 32.0, "groups/signal": 0.0, "groups/all_right": 0.0, "groups/all_wrong": 8.0}
    (finding,) = after(Guards(RLConfig(**term)), equal)
    assert "groups/signal=0: 0 groups are all right, 8 all wrong" in str(finding)
    assert after(Guards(RLConfig(**term)), {**equal, "groups/signal": 1.0}) == []
    assert after(Guards(RLConfig(advantage="global", **term)), equal) == []  # they are compared


def test_no_signal_says_when_most_rewards_are_missing_or_datums_were_taken_away() -> None:
    few = {"datums": 0.0, "groups/all_right": 1.0, "groups/all_wrong": 0.0, "groups/unscored": 7.0}
    assert "excluded" in str(after(Guards(RLConfig()), few)[0])
    taken = {"datums": 0.0, "groups/signal": 3.0}
    assert "edit_datums" in str(after(Guards(RLConfig()), taken)[0])


ADVISED: list[tuple[str, dict[str, Any], str]] = [
    ("truncation", {"mask_truncated": True}, "mask_truncated=true"),
    ("entropy_collapse", {}, "clip_high_threshold"),
    ("entropy_collapse", {"kl_penalty_coef": 0.1}, "set kl_penalty_coef"),
    ("length_runaway", {"overlong_buffer": 4}, "set overlong_buffer"),
    ("length_runaway", {"advantage": "dr_grpo"}, "dr_grpo"),
    ("mismatch", {"truncated_importance": 2.0}, "set truncated_importance"),
    ("not_finite", {"grad_clip_norm": 1.0}, "grad_clip_norm"),
]


@pytest.mark.parametrize(("name", "settings", "unsaid"), ADVISED)
def test_advice_is_not_to_set_what_is_set_or_does_nothing(
    name: str, settings: dict[str, Any], unsaid: str
) -> None:
    rows, _ = TROUBLE[name]
    findings = after(Guards(RLConfig(**settings)), *rows)
    (advice,) = (finding.advice for finding in findings if finding.name == name)
    assert unsaid not in advice.lower()
    assert advice


def test_an_easy_step_with_a_curriculum_needs_harder_prompts() -> None:
    easy = {"datums": 0.0, "groups/all_right": 8.0, "groups/all_wrong": 0.0}
    (finding,) = after(Guards(RLConfig(curriculum=True)), easy)
    assert "curriculum" not in finding.advice


def test_what_is_noise_depends_on_the_scale_of_the_rewards() -> None:
    """Of rewards from 0 to 100, a tenth of a point more or less says nothing."""

    def judged(reward: float, held_out: float) -> dict[str, float]:
        parts = {"component/style": reward, "component/truth": 100 - reward}
        return {"reward/mean": reward, **parts, **held(0.5, held_out)}

    rows = [judged(50.0, 60.0), judged(50.2, 59.8), judged(50.3, 59.7)]
    assert after(Guards(RLConfig()), *rows, healthy=0) == []
    same = [judged(50.0, 40.0)] * 3 + [judged(50.4, 40.0)] * 5
    assert after(Guards(RLConfig()), *same, healthy=0) == []
    hacked = [judged(50.0, 60.0)] * 3 + [judged(70.0, 30.0)] * 5
    names = {finding.name for finding in after(Guards(RLConfig()), *hacked, healthy=0)}
    assert names == {"reward_hacking", "component_runaway"}


def components(style: float, truth: float, draw: np.random.Generator) -> dict[str, float]:
    """The components of a step of 8 prompts with 4 answers each, whose probabilities these are."""
    return {
        "component/style": float(draw.binomial(4, draw.beta(style * 4, 4 - style * 4, 8)).mean())
        / 4,
        "component/truth": float(draw.binomial(4, draw.beta(truth * 4, 4 - truth * 4, 8)).mean())
        / 4,
    }


def test_components_that_vary_by_chance_are_not_reported() -> None:
    for seed in range(10):
        draw, guards = np.random.default_rng(seed), Guards(RLConfig())
        for _ in range(100):
            assert guards.check({**HEALTHY, **components(0.4, 0.5, draw)}) == []


def test_a_component_that_rises_at_the_cost_of_another_is_found_in_noisy_steps() -> None:
    for seed in range(10):
        draw, guards, names = np.random.default_rng(seed), Guards(RLConfig()), set[str]()
        for step in range(100):
            traded = min(1.0, step / 50)
            guards.load(json.loads(json.dumps(guards.state())))  # as a run that is resumed
            row = {**HEALTHY, **components(0.2 + 0.6 * traded, 0.6 - 0.5 * traded, draw)}
            names |= {finding.name for finding in guards.check(row)}
        assert names == {"component_runaway"}


def test_growing_answers_that_are_right_more_often_are_no_trouble() -> None:
    rows = [{"length/mean": 200.0, "reward/success": 0.9}] * 5
    assert after(Guards(RLConfig()), *rows) == []


def test_a_mismatch_is_expected_at_other_temperatures_and_with_stale_weights() -> None:
    for reason in ({"policy/temperature": 0.8}, {"staleness/max": 1.0}):
        assert after(Guards(RLConfig()), {"mismatch/mean": 0.4, **reason}) == []


def test_a_finding_is_news_once_until_it_has_been_gone_for_a_while() -> None:
    guards = Guards(RLConfig())
    wrong: dict[str, Any] = {**HEALTHY, "policy/repetition": 0.9}
    rows = [wrong, wrong, HEALTHY, wrong, *[HEALTHY] * 6, wrong]
    told = [len(guards.news(guards.check(row))) for row in rows]
    assert told == [1] + [0] * 9 + [1]


def test_only_what_the_config_says_is_fatal() -> None:
    wrong = {**HEALTHY, "policy/repetition": 0.9}
    assert (lambda g: g.fatal(g.check(wrong)))(Guards(RLConfig())) is None
    strict = Guards(RLConfig(stop_on=("repetition",)))
    fatal = strict.fatal(strict.check(wrong))
    assert fatal is not None
    assert fatal.name == "repetition"


def test_guards_resume_from_their_state() -> None:
    whole, first, second = (Guards(RLConfig()) for _ in range(3))
    rows = [HEALTHY] * 4 + [{**HEALTHY, "policy/entropy": 0.01}] * 6
    found = [whole.check(row) for row in rows]
    for row in rows[:4]:
        first.check(row)
    second.load(first.state())
    assert [second.check(row) for row in rows[4:]] == found[4:]


def test_a_policy_that_solves_its_task_may_be_sure_of_itself() -> None:
    sure = {"policy/entropy": 0.01}
    assert [f.name for f in after(Guards(RLConfig()), *[sure] * 6)] == ["entropy_collapse"]
    assert after(Guards(RLConfig()), *[{**sure, "reward/success": 0.95}] * 6) == []
