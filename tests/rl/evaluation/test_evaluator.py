"""Evaluation of checkpoints: the same prompts for each, scored by the holdout reward if any."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import mint
import mint.rl
from mint.rl import Chat, Evaluation, Evaluator, RLConfig, run_grpo
from mint.rl.evaluation.bisect import PastRun
from mint.rl.evaluation.evaluator import SetEvaluator, with_holdout_reward
from mint.rl.evaluation.scores import METRICS
from tests.rl.conftest import Letters

Settings = Callable[..., RLConfig]
Rows = Callable[[], list[dict[str, Any]]]


class Fooled(Letters):
    """Pays for any byte that training asks for; what is wanted is bytes below 128."""

    def compute_reward(self, response: str, sample: str) -> Any:
        return 1.0 - super().compute_reward(response, sample)

    def holdout_reward(self, response: str, sample: str) -> Any:
        return super().compute_reward(response, sample)


HELD = {"holdout_fraction": 0.3, "holdout_size": 6, "success_threshold": 0.6}


@pytest.mark.parametrize(
    "how", [{}, {"eval_samples": 3, "eval_temperature": 0.8}], ids=["greedy", "sampled"]
)
def test_a_checkpoint_evaluated_later_gets_what_the_run_itself_measured(
    client: mint.ServiceClient, settings: Settings, metrics: Rows, tmp_path: Any, how: Any
) -> None:
    cfg = settings(eval_every=1, keep_every=1, checkpoint_every=1, steps=2, **HELD, **how)
    final = run_grpo(Letters(), cfg, service=client)
    points = PastRun(tmp_path / "run").points()
    assert [point.step for point in points] == [0, 1, 2]
    evaluator = Evaluator(Letters(), cfg, client)
    for point in points:
        found = evaluator.of(point.path)
        assert found.metrics() == pytest.approx(point.evaluation.metrics(), abs=1e-6)  # type: ignore[union-attr]
    assert evaluator.of(final) == evaluator.of(points[-1].path)


def test_an_evaluation_is_read_back_from_the_metrics_file(
    client: mint.ServiceClient, settings: Settings, metrics: Rows
) -> None:
    cfg = settings(eval_every=1, steps=1, eval_samples=2, eval_temperature=0.8, **HELD)
    run_grpo(Letters(), cfg, service=client)
    read = [Evaluation.read(row) for row in metrics()]
    assert [found.metrics() for found in read if found] == [
        {k: v for k, v in row.items() if k.startswith("holdout/")} for row in metrics()
    ]
    for metric in METRICS:
        estimate = read[0].estimate(metric)  # type: ignore[union-attr]
        assert estimate.low <= estimate.value <= estimate.high


def test_evaluation_uses_the_holdout_reward(client: mint.ServiceClient, settings: Settings) -> None:
    cfg = settings(**HELD)
    wanted = Evaluator(Letters(), cfg, client).of(None)
    assert Evaluator(Fooled(), cfg, client).of(None) == wanted


def test_an_environment_is_evaluated_by_its_holdout_reward_after_the_same_conversation(
    client: mint.ServiceClient, settings: Settings
) -> None:
    class Shop:
        def build_dataset(self) -> list[str]:
            return ["a", "b"]

        def build_holdout(self) -> list[str]:
            return ["x", "y", "z"]

        async def rollout(self, task: str, chat: Chat) -> float:
            chat.user(task)
            await chat.reply()
            return 0.0

        async def holdout_reward(self, task: str, chat: Chat) -> float:
            assert chat.trace[0]["content"] == task
            return 1.0 if chat.turns == 1 and task != "z" else 0.0

    found = Evaluator(Shop(), settings(), client).of(None)
    assert found.prompts == 3
    assert found.pass_1 == pytest.approx(2 / 3)


def test_held_out_rollouts_that_raise_time_out_or_never_end_count_as_wrong(
    client: mint.ServiceClient, settings: Settings
) -> None:
    class Maze:
        def build_dataset(self) -> list[str]:
            return ["a", "b"]

        def build_holdout(self) -> list[str]:
            return ["raises", "hangs", "never ends", *(f"right {i}" for i in range(9))]

        async def rollout(self, task: str, chat: Chat) -> float:
            if task == "raises":
                raise LookupError(task)
            if task == "hangs":
                await asyncio.Event().wait()
            while task == "never ends":
                chat.user(task)
                await chat.reply()
            return 1.0

    cfg = settings(max_turns=2, rollout_timeout=5.0, max_reward_failures=0.5)
    found = Evaluator(Maze(), cfg, client).of(None)
    assert (found.prompts, found.failed) == (12, 3)
    assert found.pass_1 == pytest.approx(9 / 12)


def test_a_policy_that_always_reaches_the_turn_limit_is_wrong_and_stops_nothing(
    client: mint.ServiceClient, settings: Settings
) -> None:
    class Endless:
        def build_dataset(self) -> list[str]:
            return ["a", "b"]

        build_holdout = build_dataset

        async def rollout(self, task: str, chat: Chat) -> float:
            while True:
                chat.user(task)
                await chat.reply()

    cfg = settings(max_turns=1)
    found = Evaluator(Endless(), cfg, client).of(None)
    assert (found.prompts, found.failed, found.pass_1) == (2, 2, 0.0)
    assert SetEvaluator(Endless(), cfg).of(client, None)["holdout"].evaluation == found


class Mixed(Letters):
    """A mix of tasks: the reward applies to some prompts only."""

    applies = ("x1", "x2", "x3")

    def build_holdout(self) -> list[str]:
        return ["x1", "x2", "x3", "y1", "y2"]

    def holdout_reward(self, response: str, sample: str) -> Any:
        return 1.0 if sample in self.applies else None


def test_prompts_without_a_reward_are_left_out_counted_and_the_same_for_every_checkpoint(
    client: mint.ServiceClient, settings: Settings
) -> None:
    task = Mixed()
    evaluator = Evaluator(task, settings(), client)
    found = evaluator.of(None)
    assert (found.prompts, found.left_out, found.unrewarded, found.pass_1) == (3, 2, 0, 1.0)
    assert str(found).endswith(
        "on 3 held-out prompts; 2 prompts are left out: the reward of all their answers is None"
    )
    assert Evaluation.read(found.metrics()) == found
    task.applies = ("x1", "y1")  # as if the reward could not judge what a checkpoint answers
    later = evaluator.of(None)
    assert (later.prompts, later.left_out, later.unrewarded) == (3, 2, 2)
    assert later.pass_1 == pytest.approx(1 / 3)
    assert "2 answers without a reward (None) count as wrong; 2 prompts are left out" in str(later)


def test_an_answer_without_a_reward_is_wrong_where_another_to_the_same_prompt_has_one(
    client: mint.ServiceClient, settings: Settings
) -> None:
    class EverySecond(Letters):
        def build_holdout(self) -> list[str]:
            return ["a", "b"]

        def compute_rewards(self, responses: list[str], sample: str) -> list[float | None]:
            return [1.0 if sample == "a" and i % 2 == 0 else None for i in range(len(responses))]

    cfg = settings(eval_samples=4, eval_temperature=1.0)
    found = Evaluator(EverySecond(), cfg, client).of(None)
    assert (found.prompts, found.samples, found.left_out, found.unrewarded) == (1, 4, 1, 2)
    assert (found.pass_1, found.failed) == (0.5, 0)
    assert SetEvaluator(EverySecond(), cfg).of(client, None)["holdout"].evaluation == found


def test_a_resumed_run_leaves_out_the_prompts_of_its_first_evaluation(
    client: mint.ServiceClient, settings: Settings, metrics: Rows
) -> None:
    task = Mixed()
    run_grpo(task, settings(steps=1, eval_every=1, checkpoint_every=1), service=client)
    task.applies = ("x1", "y1")
    run_grpo(task, settings(steps=2, eval_every=1, checkpoint_every=1), service=client)
    shown = [(row["holdout/prompts"], row["holdout/left_out"]) for row in metrics()]
    assert shown == [(3, 2)] * 3
    assert [row["holdout/unrewarded"] for row in metrics()] == [0, 0, 2]
    assert [row["holdout/pass@1"] for row in metrics()] == pytest.approx([1, 1, 1 / 3])


def test_scripts_that_import_the_earlier_name_of_the_evaluator_still_run() -> None:
    assert mint.rl.Examiner is mint.rl.SetEvaluator


def test_a_task_without_a_holdout_reward_is_evaluated_by_its_reward() -> None:
    letters = Letters()
    assert with_holdout_reward(letters) is letters


def test_every_checkpoint_is_measured_with_the_weights_of_the_last_step(
    client: mint.ServiceClient, settings: Settings, metrics: Rows
) -> None:
    from mint.rewards import Score

    class Halves(Letters):
        def compute_reward(self, response: str, sample: str) -> Any:
            return Score(0.0, {"easy": 0.5 + len(response) / 1000, "real": 0.25})

    cfg = settings(
        steps=2,
        eval_every=1,
        reward_weights={"easy": 1.0, "real": 0.0},
        reward_weights_end={"easy": 0.0, "real": 1.0},
        **HELD,
    )
    run_grpo(Halves(), cfg, service=client)
    assert [row["holdout/reward"] for row in metrics()] == [0.25, 0.25, 0.25]
