"""The end of a run: whether training helped on the holdout, and which weights to use."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mint
from mint.rl import Evaluation, RLConfig, evaluate, run_grpo
from mint.rl.evaluation.scores import advice, verdict
from mint.watch.directory.recorder import EVENTS, read_rows
from tests.rl.loop.test_guard_runs import Hackable

Settings = Callable[..., RLConfig]
PATHS = {4: "tinker://x/weights/step-000004", 8: "tinker://x/weights/step-000008"}


def result(right: int, count: int = 40) -> Evaluation:
    return evaluate([[1.0]] * right + [[0.0]] * (count - right), threshold=1.0)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (4, 24, "Training helped on the holdout: pass@1 10.0% before, 60.0% after"),
        (24, 4, "Training made the model worse on the holdout: pass@1 60.0% before"),
        (10, 12, "No clear effect on the holdout: pass@1 25.0% before, 30.0% after"),
        (0, 0, "No clear effect on the holdout: pass@1 0.0% before, 0.0% after"),
        (40, 40, "No clear effect on the holdout: pass@1 100.0% before, 100.0% after"),
    ],
)
def test_the_end_says_plainly_whether_training_helped(before: int, after: int, said: str) -> None:
    text = verdict(result(before), result(after))
    assert text.startswith(said)
    assert "95% interval" in text


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (0.4, 0.9, "Training raised the reward on the holdout, with no clear effect on pass@1: "),
        (0.9, 0.4, "Training lowered the reward on the holdout, with no clear effect on pass@1: "),
    ],
)
def test_a_reward_that_moved_is_named_where_pass_at_1_did_not(
    before: float, after: float, said: str
) -> None:
    """Partial credit below the success threshold, a little different for each prompt."""
    start, end = (
        evaluate([[mean + 0.001 * n] for n in range(14)], threshold=1.0) for mean in (before, after)
    )
    assert verdict(start, end).startswith(said)


def test_a_few_equal_rewards_are_no_certain_ones() -> None:
    """Three prompts with the same reward each say little, although it does not vary."""
    start, end = (evaluate([[reward]] * 3, threshold=1.0) for reward in (0.5, 0.6))
    assert verdict(start, end).startswith("No clear effect on the holdout: ")
    assert end.reward_low < 0.6 < end.reward_high


def test_a_single_prompt_says_nothing_about_the_reward() -> None:
    start, end = (evaluate([[reward]], threshold=1.0) for reward in (0.2, 0.5))
    assert verdict(start, end).startswith("No clear effect on the holdout: ")
    gain = end.estimate("reward").above(start.estimate("reward"))
    assert (gain.low, gain.high) == (-math.inf, math.inf)


@pytest.mark.parametrize("reward", [-2.0, 0.0, 0.3, 1.0, 7.0])
def test_the_interval_of_equal_rewards_contains_them_and_narrows_with_their_number(
    reward: float,
) -> None:
    few, many = (evaluate([[reward]] * count, threshold=1.0) for count in (5, 500))
    for each in (few, many):
        assert each.reward_low <= reward <= each.reward_high
    assert 0 < many.reward_high - many.reward_low < (few.reward_high - few.reward_low) / 5
    low, high = evaluate([[1.0]] * 20, threshold=1.0).estimate("pass_1").low, 1.0
    found = evaluate([[1.0]] * 20, threshold=1.0).estimate("reward")
    assert (found.low, found.high) == pytest.approx((low, high))


@pytest.mark.parametrize(
    ("right", "said"),
    [
        ({0: 20, 4: 12, 8: 18}, "the model before training, some/model. Use that one."),
        ({0: 12, 4: 20, 8: 18}, f"step 4, {PATHS[4]}. Use that one."),
        ({0: 12, 4: 18, 8: 20}, "the last step, 8. Use the weights below."),
        ({0: 12, 4: 12, 8: 12}, "the model before training, some/model. Use that one."),
    ],
)
def test_the_best_weights_are_named_and_the_model_before_training_takes_part(
    right: dict[int, int], said: str
) -> None:
    found = {step: result(count) for step, count in right.items()}
    assert advice(found, PATHS, "some/model")[-1] == f"Best on the holdout: {said}"


def test_without_a_holdout_nothing_is_reported() -> None:
    assert advice({}, PATHS, "some/model") == []


def test_a_run_that_made_its_model_worse_says_so(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path, capsys: Any
) -> None:
    cfg = settings(steps=3, eval_every=3, success_threshold=0.9)
    path = run_grpo(Hackable(), cfg, service=client)
    out = capsys.readouterr().out
    assert "pass@1 100.0% before, 0.0% after" in out
    assert f"Best on the holdout: the model before training, {cfg.base_model}" in out
    saved = out.index(f"Saved: {path}")
    assert out.index("Best on the holdout") < saved < out.index(f"mint sample -m {cfg.run_dir} ")
    assert "before training" in read_rows(tmp_path / "run" / EVENTS)[-1]["text"]
