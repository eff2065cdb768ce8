"""The verdict on runs that learn, stall, diverge and hack the reward, and on meaningless series."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mint.watch.dashboard.run_index import DEMO
from mint.watch.directory.files import read_rows
from mint.watch.verdict.verdict import NEEDED, VERDICTS, VerdictHistory, judge

Rows = list[dict[str, Any]]


def run(steps: int, reward: Any, noise: float = 0.05, seed: int = 0, **more: Any) -> Rows:
    """Metrics of a run whose mean reward is a function of the step."""
    rng = random.Random(seed)
    rows = []
    for step in range(1, steps + 1):
        row = {"step": step, "reward/mean": reward(step) + rng.gauss(0, noise)}
        row["reward/success"] = max(0.0, min(1.0, row["reward/mean"]))
        row |= {"groups": 8.0, "groups/signal": 6.0}
        row |= {name: f(step) if callable(f) else f for name, f in more.items()}
        rows.append(row)
    return rows


def rising(step: int) -> float:
    return 0.15 + 0.6 * (1 - math.exp(-step / 25))


def evaluated(rows: Rows, rates: dict[int, float]) -> Rows:
    for row in rows:
        if row["step"] in rates:
            rate = rates[row["step"]]
            row |= {"holdout/pass@1": rate, "holdout/pass@1_low": rate - 0.08}
            row |= {"holdout/pass@1_high": rate + 0.08, "holdout/reward": rate}
    return rows


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("steps", [30, 45])
def test_a_reward_that_rises_through_its_noise_is_learning(seed: int, steps: int) -> None:
    found = judge(run(steps, rising, seed=seed))
    assert found.verdict == "learning"
    assert found.since is not None
    assert "rose from" in found.evidence


# ---- a rise that ended ----


def ramp(start: int, end: int, low: float = 0.15, high: float = 0.75) -> Any:
    return lambda step: low + (high - low) * min(1.0, max(0.0, (step - start) / (end - start)))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("noise", [0.02, 0.1])
@pytest.mark.parametrize(("start", "end", "steps"), [(0, 30, 90), (40, 60, 200), (0, 400, 3000)])
def test_a_rise_that_ended_is_flat_since_about_its_end(
    seed: int, noise: float, start: int, end: int, steps: int
) -> None:
    found = judge(run(steps, ramp(start, end), noise=noise, seed=seed))
    assert found.verdict == "flat"
    assert found.since is not None
    assert abs(found.since - end) <= max(10, steps // 25)
    told = f"was learning until step {found.since}: success rose from"
    assert found.evidence.startswith(told)
    assert found.evidence.endswith(f"; flat for the {steps - found.since} steps since.")
    assert "Stop here, or change something" in found.advice


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("steps", [60, 200, 3000])
def test_a_steady_rise_is_never_flat(seed: int, steps: int) -> None:
    assert judge(run(steps, ramp(0, steps), noise=0.1, seed=seed)).verdict == "learning"
    slower = judge(run(steps, lambda s: 0.2 + 0.4 * min(1, 5 * s / steps) + 0.2 * s / steps, 0.03))
    assert slower.verdict == "learning"


def test_one_metric_that_still_rises_is_learning() -> None:
    flat, slow = ramp(0, 30), lambda step: step / 200
    rows = run(120, flat, noise=0.02, **{"reward/success": slow})
    assert judge(rows).evidence.startswith("success rose from")
    rows = run(120, slow, noise=0.02, **{"reward/success": flat})
    assert str(judge(rows)).startswith("learning: reward rose from")


def test_a_flat_run_that_is_nearly_solved_is_advised_to_stop() -> None:
    found = judge(run(120, ramp(0, 40, high=0.97), noise=0.01))
    assert (found.verdict, found.advice[:13]) == ("flat", "Nearly solved")


def test_the_recorded_run_learns_and_is_flat_once_its_last_steps_repeat() -> None:
    """The noise is that of a real run: after its rise, steps are drawn from its last ones."""
    [path] = DEMO.glob("*/metrics.jsonl")
    names = ("step", "reward/mean", "reward/success")
    rows = [{name: row[name] for name in names} for row in read_rows(path) if row["step"] > 0]
    assert judge(rows).verdict == "learning"
    last = len(rows)
    found = []
    for seed in range(20):
        rng = random.Random(seed)
        more = [{**rng.choice(rows[-15:]), "step": last + n} for n in range(1, 3 * last)]
        found.append(judge([*rows, *more]))
    flat = [each for each in found if each.verdict == "flat"]
    assert len(flat) >= 18  # chance alone may draw a rise
    assert all(each.since is not None and each.since <= last + 5 for each in flat)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("steps", [25, 60, 200])
def test_noise_alone_is_neither_learning_nor_diverging(seed: int, steps: int) -> None:
    found = judge(run(steps, lambda step: 0.3, noise=0.1, seed=seed))
    assert found.verdict == "stalled"
    assert "within its noise" in found.evidence


def test_groups_without_a_difference_are_a_stall_with_its_share() -> None:
    rows = run(30, lambda step: 0.02, noise=0.0)
    for row in rows[10:]:
        row |= {"groups": 25.0, "groups/signal": 2.0, "groups/all_wrong": 23.0}
    found = judge(rows)
    assert str(found) == "stalled: 92% of the groups have equal rewards, all wrong."
    assert found.since == 11
    assert "partial credit" in found.advice


def test_a_solved_task_stalls_with_advice_to_stop() -> None:
    rows = run(40, lambda step: 1.0, noise=0.0)
    for row in rows:
        row |= {"groups/signal": 1.0, "groups/all_right": 7.0}
    found = judge(rows)
    assert found.evidence == "88% of the groups have equal rewards, all right."
    assert "harder" in found.advice


def test_groups_with_equal_rewards_between_wrong_and_right_are_called_neither() -> None:
    rows = run(40, lambda step: 0.6, noise=0.0)
    for row in rows:
        row |= {"groups": 8.0, "groups/signal": 1.0, "groups/all_equal": 6.0, "groups/all_wrong": 1}
    found = judge(rows)
    equal = "88% of the groups have equal rewards, most neither all right nor all wrong."
    assert found.evidence == equal
    assert "success_threshold" in found.advice
    assert judge(VerdictHistory.of(rows, []).rows) == found


def test_a_run_that_failed_at_its_first_step_says_why_and_not_to_wait() -> None:
    data = {"event": "data", "text": "Data: shuffled."}
    stopped = {"event": "stopped", "name": "reward_errors", "text": "All 8 rewards are None."}
    events = VerdictHistory.of([], [data, stopped]).events
    found = judge([], events, "failed")
    assert str(found) == "too early to say: the run ended: All 8 rewards are None."
    assert found.advice == ""
    lost = judge([], [stopped, {"event": "lost", "text": "The service is gone."}], "failed")
    assert lost.evidence == "the run ended: The service is gone."
    again = judge(run(3, rising), [*events, data], "interrupted")
    assert again.evidence == "3 steps so far."
    assert "resume" in again.advice


def test_a_run_that_was_interrupted_while_it_learned_is_advised_to_resume() -> None:
    rows = run(60, rising)
    assert judge(rows).advice == "Let it run."
    found = judge(rows, [], "interrupted")
    assert (found.verdict, found.evidence) == ("learning", judge(rows).evidence)
    assert "resume" in found.advice


@pytest.mark.parametrize("seed", range(5))
def test_a_reward_that_is_lost_again_is_diverging_since_its_best_step(seed: int) -> None:
    rows = run(60, lambda step: rising(step) if step < 40 else 0.05, seed=seed)
    found = judge(rows)
    assert found.verdict == "diverging"
    assert found.since is not None
    assert 25 <= found.since <= 42


def test_what_went_along_with_a_fall_is_evidence() -> None:
    rows = run(60, lambda s: rising(s) if s < 40 else 0.0, **{"kl/k3": lambda s: s / 50})
    assert "while the KL rose from" in judge(rows).evidence


def test_numbers_that_are_not_finite_are_diverging() -> None:
    rows = run(12, rising)
    rows[-1]["train/loss"] = rows[-2]["train/loss"] = None
    found = judge(rows)
    assert (found.verdict, found.since) == ("diverging", 11)
    assert found.evidence == "train/loss is not finite since step 11."
    assert "learning rate" in found.advice


def test_a_nan_that_passed_is_forgotten() -> None:
    rows = run(40, rising)
    rows[5]["train/loss"] = None
    assert judge(rows).verdict == "learning"


def test_a_run_that_was_stopped_for_not_finite_numbers_says_so_after_few_steps() -> None:
    events = [{"event": "stopped", "name": "not_finite", "step": 2, "text": "The loss is nan."}]
    found = judge(run(2, rising), events, "failed")
    assert (found.verdict, found.evidence, found.since) == ("diverging", "The loss is nan.", 2)


def test_gradients_that_explode_are_diverging_while_the_reward_does_not_rise() -> None:
    norms = {"train/grad_norm": lambda step: 0.1 if step < 30 else 40.0}
    found = judge(run(40, lambda step: 0.3, **norms))
    assert (found.verdict, found.since) == ("diverging", 30)
    assert judge(run(40, rising, **norms)).verdict == "learning"


def test_a_reward_that_rises_while_the_holdout_falls_is_hacking() -> None:
    rows = evaluated(run(60, rising), {10: 0.5, 30: 0.45, 60: 0.2})
    found = judge(rows)
    assert found.verdict == "hacking the reward"
    assert "the holdout fell from 50% at step 10 to 20%" in found.evidence
    assert found.since == 10


def test_a_holdout_that_rises_too_is_learning() -> None:
    rows = evaluated(run(60, rising), {10: 0.2, 30: 0.4, 60: 0.6})
    assert judge(rows).verdict == "learning"


def test_a_reward_that_rises_while_success_falls_is_hacking() -> None:
    found = judge(run(60, rising, **{"reward/success": lambda step: 0.6 - step / 150}))
    assert found.verdict == "hacking the reward"
    assert "success fell from" in found.evidence


def test_a_holdout_alone_can_show_learning() -> None:
    rows = evaluated(run(16, lambda step: 0.3, noise=0.1), {1: 0.2, 16: 0.5})
    assert judge(rows).evidence == "the holdout rose from 20% to 50%."


def test_few_steps_are_too_early() -> None:
    assert str(judge([])) == "too early to say: 0 steps so far."
    assert str(judge(run(1, rising))) == "too early to say: 1 step so far."
    assert judge(run(9, lambda step: 0.3)).verdict == "too early to say"


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (run(40, rising), "It learned: success rose"),
        (run(120, ramp(0, 40)), "It was learning until step "),
        (run(60, lambda step: 0.3), "It had stopped learning: reward moved by"),
        (run(3, rising), "All 3 steps are done, too few to tell."),
    ],
)
def test_a_finished_run_says_what_came_of_it(rows: Rows, says: str) -> None:
    found = judge(rows, status="finished")
    assert found.verdict == "finished"
    assert found.evidence.startswith(says)


BEFORE_THE_END = (
    "Use the checkpoint of step 20: it is the best on the holdout, 60% (95% interval 52% to 68%); "
)
ENDS = [
    ({0: 0.2, 20: 0.6, 40: 0.7}, "Use the final weights: they are the best on the holdout, 70% "),
    ({0: 0.2, 20: 0.6, 40: 0.55}, f"{BEFORE_THE_END}the final weights reach 55% (95% interval "),
    ({20: 0.6, 40: 0.6}, f"{BEFORE_THE_END}the final weights reach the same rate."),
    ({0: 0.2, 20: 0.6}, f"{BEFORE_THE_END}the final weights were not evaluated."),
    ({0: 0.6, 20: 0.5, 40: 0.55}, "Use the model before training: it is the best on the holdout, "),
    ({}, "Evaluate the final weights on a holdout. "),
]


@pytest.mark.parametrize(("rates", "advice"), ENDS)
def test_a_finished_run_names_the_weights_to_use(rates: dict[int, float], advice: str) -> None:
    rows = evaluated([{"step": 0}, *run(40, rising)], rates)
    assert judge(rows, status="finished").advice.startswith(advice)
    assert "holdout" not in judge(rows, status="running").advice


def test_in_a_tie_the_higher_reward_decides_and_an_interval_may_be_missing() -> None:
    rows = run(40, rising)
    rows[19] |= {"holdout/pass@1": 0.6, "holdout/reward": 0.6}
    rows[29] |= {"holdout/pass@1": 0.6, "holdout/reward": 0.7}
    advice = judge(rows, status="finished").advice
    assert advice.startswith("Use the checkpoint of step 30: it is the best on the holdout, 60%; ")


@pytest.mark.parametrize("steps", [3, 60])
def test_a_finished_run_that_did_not_learn_names_its_best_weights_too(steps: int) -> None:
    rows = evaluated(run(steps, lambda step: 0.3), {steps: 0.3})
    advice = judge(rows, status="finished").advice
    assert advice.startswith("Use the final weights: they are the best on the holdout, 30% ")
    assert "Train longer" in advice or "For another run: Raise the learning rate" in advice


def test_the_recorded_run_has_the_verdict_of_this_code() -> None:
    [path] = DEMO.glob("*/summary.json")
    rows, events = (read_rows(path.with_name(name)) for name in ("metrics.jsonl", "events.jsonl"))
    found = judge(list(rows), list(events), "finished")
    assert json.loads(path.read_text())["verdict"] == found.as_dict()


def test_a_finished_run_that_hacked_its_reward_is_still_reported() -> None:
    rows = evaluated(run(60, rising), {10: 0.5, 60: 0.2})
    assert judge(rows, status="finished").verdict == "hacking the reward"


def test_a_falling_loss_is_learning_where_there_is_no_reward() -> None:
    rows = [{"step": n, "loss_per_token": 3 * math.exp(-n / 10)} for n in range(1, 31)]
    found = judge(rows)
    assert found.verdict == "learning"
    assert found.evidence.startswith("loss fell from ")


def test_rewards_of_any_scale_are_judged_alike() -> None:
    for scale in (1e-4, 1.0, 1e4):
        rows = [{"step": n, "reward": scale * rising(n)} for n in range(1, 61)]
        assert judge(rows).verdict == "learning"


def test_what_the_recorder_keeps_is_enough_for_the_same_verdict() -> None:
    rows = evaluated(run(60, rising), {10: 0.5, 60: 0.2})
    rows = [{**row, "other/metric": 1.0} for row in rows]
    kept = VerdictHistory.of(rows, [{"event": "checkpoint"}])
    assert set(kept.rows[0]) <= set(NEEDED)
    assert (kept.events, kept.last) == ([], rows[-1])
    assert judge(kept.rows, kept.events) == judge(rows)


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=3),
    st.integers(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.lists(st.integers(), max_size=2),
)


@example(rows=[{"step": math.nan, "reward/mean": None}], events=[], status="running")
@example(rows=[{"reward/mean": None}], events=[], status="running")
@given(
    rows=st.lists(st.dictionaries(st.sampled_from(NEEDED), odd, max_size=8), max_size=40),
    events=st.lists(
        st.fixed_dictionaries(
            {},
            optional={"event": st.sampled_from(["finding", "stopped"]), "name": odd, "step": odd},
        ),
        max_size=4,
    ),
    status=st.sampled_from(["running", "finished", "interrupted", "failed"]),
)
def test_any_series_gets_a_verdict(rows: Rows, events: Rows, status: str) -> None:
    found = judge(rows, events, status)
    assert found.verdict in VERDICTS
    assert found.since is None or isinstance(found.since, int)
    for bad in ("nan", "none"):
        assert bad not in found.evidence.lower() or any(e.get("text") for e in events)
