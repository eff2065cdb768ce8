"""The options of the loop, each on a live service for a step or two."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import mint
from mint import types
from mint.rewards import Score, TooManyFailures
from mint.rl import Chat, RLConfig, RunStopped, run_grpo
from mint.rl.datums.datum import replaced, values
from mint.rl.settings.fields import Advantage, Aggregation, LossName
from mint.watch.directory.reader import open_run
from mint.watch.directory.recorder import EVENTS, read_rows
from tests.rl.conftest import Letters
from tests.rl.stepping import stepping

Settings = Callable[..., RLConfig]
Rows = Callable[[], list[dict[str, Any]]]


def one_step(adapter: Any, cfg: RLConfig, client: mint.ServiceClient) -> tuple[Any, Any, Any]:
    """The batch and the datums of the first step."""
    with stepping(adapter, cfg, client) as run:
        batch = run.sample(1)
        datums = run.train(batch, run.build_datums(batch))
        run.record(batch, datums)
        return batch, datums, run


@pytest.mark.parametrize("loss_fn", get_args(LossName))
def test_every_loss_trains(
    client: mint.ServiceClient, settings: Settings, metrics: Rows, loss_fn: str
) -> None:
    thresholds = {"clip_low_threshold": 0.7, "clip_high_threshold": 1.4, "dro_beta": 0.1}
    one_step(Letters(), settings(loss_fn=loss_fn, temperature=1.0, **thresholds), client)
    (row,) = metrics()
    assert row["train/grad_norm"] > 0
    assert row["mismatch/mean"] < 1e-3


@pytest.mark.parametrize("advantage", get_args(Advantage))
def test_every_advantage_trains(
    client: mint.ServiceClient, settings: Settings, metrics: Rows, advantage: str
) -> None:
    batch, _, run = one_step(Letters(), settings(advantage=advantage), client)
    assert metrics()[0]["train/grad_norm"] > 0
    compared = [group.rollouts for group in run.useful(batch)]
    if run.cfg.compares_batch:
        compared = [[rollout for group in batch.groups for rollout in group.rollouts]]
    for rollouts in compared:
        assert sum(rollout.advantage for rollout in rollouts) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_every_aggregation_weighs_its_tokens(
    client: mint.ServiceClient, settings: Settings, aggregation: str
) -> None:
    _, datums, run = one_step(Letters(), settings(aggregation=aggregation), client)
    total = sum(float(values(datum, "weights").sum()) for datum in datums)
    tokens = sum(int((values(datum, "weights") != 0).sum()) for datum in datums)
    constant = tokens / (len(datums) * run.cfg.max_tokens)
    wanted = {"sum": tokens, "token": 1.0, "sequence": 1.0, "constant": constant}
    assert total == pytest.approx(wanted[aggregation], rel=1e-5)


def test_mini_batches_and_substeps_are_optimizer_steps(
    client: mint.ServiceClient, settings: Settings, metrics: Rows
) -> None:
    cfg = settings(loss_fn="ppo", mini_batches=2, substeps=2, temperature=1.0)
    one_step(Letters(), cfg, client)
    assert metrics()[0]["train/updates"] == 4
    assert metrics()[0]["train/drift"] > 0
    assert metrics()[0]["mismatch/mean"] < 1e-3  # measured before the first update


def test_truncated_importance_takes_the_temperature_out_of_the_ratio(
    client: mint.ServiceClient, settings: Settings, metrics: Rows
) -> None:
    one_step(Letters(), settings(truncated_importance=2.0, temperature=0.5), client)
    assert metrics()[0]["mismatch/mean"] > 0.05
    assert metrics()[0]["train/grad_norm"] > 0


class Hopeless(Letters):
    """Gives no reward on odd prompts."""

    def build_dataset(self) -> list[str]:
        return [f"{i}:" for i in range(8)]

    def compute_reward(self, response: str, sample: str) -> Any:
        return 0.0 if int(sample[:-1]) % 2 == 0 else super().compute_reward(response, sample)


def test_groups_without_signal_are_refilled_from_other_prompts(
    client: mint.ServiceClient, settings: Settings, metrics: Rows
) -> None:
    batch, _, run = one_step(Hopeless(), settings(batch_size=3, max_refills=3), client)
    assert len(run.useful(batch)) == 3
    assert metrics()[0]["groups/refilled"] >= 1
    assert metrics()[0]["groups/all_wrong"] >= 1
    assert len({group.identity for group in batch.everything}) == len(batch.everything)


def test_samples_that_cannot_be_compared_are_refilled_too(
    client: mint.ServiceClient, settings: Settings
) -> None:
    class Vectors(Hopeless):
        def build_dataset(self) -> list[Any]:
            return [np.asarray([i, i]) for i in range(8)]

        def make_prompt(self, sample: Any, tokenizer: Any) -> list[int]:
            return super().make_prompt(f"{sample[0]}:", tokenizer)

        def compute_reward(self, response: str, sample: Any) -> Any:
            return super().compute_reward(response, f"{sample[0]}:")

    batch, _, run = one_step(Vectors(), settings(batch_size=3, max_refills=3), client)
    assert len(run.useful(batch)) == len(batch.groups) == 3
    assert len(batch.everything) == len({group.identity for group in batch.everything})


def test_cut_off_answers_can_be_left_out(client: mint.ServiceClient, settings: Settings) -> None:
    batch, datums, _ = one_step(Letters(), settings(mask_truncated=True), client)
    cut = [r for group in batch.groups for r in group.rollouts if r.truncated]
    assert cut
    assert all(r.masked and r.advantage == 0.0 for r in cut)
    assert len(datums) < 8


def test_long_answers_pay_for_the_last_tokens(
    client: mint.ServiceClient, settings: Settings
) -> None:
    cfg = settings(overlong_buffer=2, overlong_limit=0.5)
    batch, _, _ = one_step(Letters(), cfg, client)
    for rollout in (r for group in batch.groups for r in group.rollouts):
        assert rollout.penalty == pytest.approx(-0.5 * max(0, rollout.length - 2) / 2)


def test_overlong_applies_to_the_longest_reply_of_a_conversation(
    client: mint.ServiceClient, settings: Settings
) -> None:
    class Talk:
        def build_dataset(self) -> list[int]:
            return [1, 2]

        async def rollout(self, task: int, chat: Chat) -> float:
            for _ in range(4):
                chat.user("go on")
                await chat.reply(max_tokens=task)
            return float(len(set(chat.text)))

    cfg = settings(overlong_buffer=2, overlong_limit=0.5, max_tokens=3)
    batch, _, _ = one_step(Talk(), cfg, client)
    for group in batch.groups:
        for rollout in group.rollouts:
            assert rollout.length > 3 or group.sample == 1
            assert rollout.penalty == pytest.approx(-0.25 * (group.sample - 1))


def test_one_step_off_policy_samples_ahead_and_never_more(
    client: mint.ServiceClient, settings: Settings, metrics: Rows
) -> None:
    run_grpo(Letters(), settings(steps=4, max_staleness=1, temperature=1.0), service=client)
    assert [row["staleness/max"] for row in metrics()] == [0, 1, 1, 1]
    assert [row["step"] for row in metrics()] == [1, 2, 3, 4]
    assert metrics()[0]["mismatch/mean"] < 1e-3 < metrics()[-1]["mismatch/mean"]


def test_schedules_reach_sampling_training_and_rewards(
    client: mint.ServiceClient, settings: Settings, metrics: Rows, tmp_path: Path
) -> None:
    class Parts(Letters):
        def compute_reward(self, response: str, sample: str) -> Any:
            letters = super().compute_reward(response, sample)
            return Score(9.0, {"letters": letters, "constant": 1.0})

    cfg = settings(
        steps=3,
        temperature=1.0,
        temperature_end=0.5,
        temperature_schedule="linear",
        lr_schedule="linear",
        learning_rate=0.01,
        reward_weights={"letters": 1.0, "constant": 0.0},
        reward_weights_end={"letters": 1.0, "constant": 1.0},
    )
    run_grpo(Parts(), cfg, service=client)
    assert [row["policy/temperature"] for row in metrics()] == pytest.approx([1.0, 0.75, 0.5])
    rates = [row["train/learning_rate"] for row in metrics()]
    assert rates == pytest.approx([0.01, 0.005, 0.0])
    for row in open_run(tmp_path / "run").rollouts():
        wanted = row["components"]["letters"] + (row["step"] - 1) / 2
        assert row["reward"] == pytest.approx(wanted)


class Failing(Letters):
    """Raises, gives NaN, or has no opinion, for some answers."""

    def __init__(self, share: float) -> None:
        self.calls = 0
        self.share = share

    def compute_reward(self, response: str, sample: str) -> Any:
        self.calls += 1
        if self.calls % 8 < 8 * self.share:
            if self.calls % 2:
                raise ZeroDivisionError("no letters")
            return math.nan
        return super().compute_reward(response, sample)


def test_rewards_that_fail_are_counted_logged_and_left_out(
    client: mint.ServiceClient, settings: Settings, metrics: Rows, tmp_path: Path, caplog: Any
) -> None:
    cfg = settings(steps=1, batch_size=4, max_reward_failures=0.5)
    caplog.set_level(logging.INFO, "mint.rl")  # each kind is printed once, with its traceback
    run_grpo(Failing(0.25), cfg, service=client)
    rows = open_run(tmp_path / "run").rollouts()
    failed = [row for row in rows if row["error"]]
    assert len(failed) == metrics()[0]["reward/failures"] == 4
    assert {row["error"].partition(":")[0] for row in failed} == {"ZeroDivisionError", "ValueError"}
    assert all(row["reward"] is None and row["advantage"] == 0 for row in failed)
    assert metrics()[0]["datums"] <= 12
    assert "no letters" in caplog.text
    assert "sample" in caplog.text
    assert not [r for r in caplog.records if r.levelno > logging.INFO and r.name == "mint.rl"]
    events = read_rows(tmp_path / "run" / EVENTS)
    assert any(event.get("name") == "reward_errors" for event in events)


def test_too_many_failing_rewards_stop_the_run(
    client: mint.ServiceClient, settings: Settings
) -> None:
    with pytest.raises(TooManyFailures, match="max_reward_failures") as ended:
        run_grpo(Failing(0.5), settings(batch_size=8), service=client)
    assert isinstance(ended.value, SystemExit)  # a script ends with the text alone
    assert str(ended.value.code).endswith("Nothing was saved yet.")


def test_rewards_may_be_async_in_threads_or_of_a_whole_group(
    client: mint.ServiceClient, settings: Settings, metrics: Rows, tmp_path: Path
) -> None:
    class Async(Letters):
        async def compute_reward(self, response: str, sample: str) -> Any:
            await asyncio.sleep(0)
            return super().compute_reward(response, sample)

    class Ranked(Letters):
        def compute_rewards(self, responses: Any, sample: str) -> Any:
            return [index / len(responses) for index, _ in enumerate(responses)]

    one_step(Async(), settings(run_dir=str(tmp_path / "async")), client)
    one_step(Letters(), settings(run_dir=str(tmp_path / "threads"), reward_workers=2), client)
    batch, _, _ = one_step(Ranked(), settings(), client)
    assert [r.reward for r in batch.groups[0].rollouts] == [0.0, 0.25, 0.5, 0.75]


def test_every_group_of_a_step_is_in_flight_and_scored_at_once(
    client: mint.ServiceClient, settings: Settings, metrics: Rows
) -> None:
    class Together(Letters):
        """No reward is given before every group of the step has answers to score."""

        def __init__(self) -> None:
            self.arrived: set[str] = set()
            self.everybody = asyncio.Event()

        async def compute_reward(self, response: str, sample: str) -> Any:
            self.arrived.add(sample)
            if len(self.arrived) == 4:
                self.everybody.set()
            async with asyncio.timeout(60):
                await self.everybody.wait()
            return super().compute_reward(response, sample)

    one_step(Together(), settings(batch_size=4), client)
    assert metrics()[0]["reward/failures"] == 0


def test_a_prompt_that_the_service_refuses_never_kills_the_step(
    client: mint.ServiceClient, settings: Settings, metrics: Rows, tmp_path: Path
) -> None:
    class TooLong(Letters):
        def build_dataset(self) -> list[str]:
            return ["a" * 5000, *(f"{i}:" for i in range(5))]

    one_step(TooLong(), settings(batch_size=6, data_order="first"), client)
    assert metrics()[0]["reward/failures"] == 4
    assert metrics()[0]["train/grad_norm"] > 0
    rows = open_run(tmp_path / "run").rollouts()
    assert "RequestFailedError" in rows[0]["error"]


def test_the_curriculum_drops_solved_and_hopeless_prompts_and_shows_its_pools(
    client: mint.ServiceClient, settings: Settings, metrics: Rows, capsys: Any
) -> None:
    class HalfSolved(Letters):
        def build_dataset(self) -> list[str]:
            return [f"{i}:" for i in range(5)]

        def compute_reward(self, response: str, sample: str) -> Any:
            always = {0: 1.0, 1: 1.0, 4: 0.0}.get(int(sample[:-1]))
            return super().compute_reward(response, sample) if always is None else always

    cfg = settings(steps=8, batch_size=4, curriculum=True, success_threshold=0.7)
    cfg.learning_rate = 0.0
    with stepping(HalfSolved(), cfg, client) as run:
        for step in run:
            batch = run.sample(step)
            run.record(batch, run.train(batch, run.build_datums(batch)))
    pools = ("learning", "saturated", "hopeless")
    assert [metrics()[-1][f"curriculum/{pool}"] for pool in pools] == [2, 2, 1]
    assert "  curriculum: 2 learning, 2 saturated, 1 hopeless" in capsys.readouterr().out
    assert {"2:", "3:"} <= {group.sample for group in batch.groups}  # the others fill the batch


def test_training_on_prompt_tokens_stops_the_run_before_it_happens(
    client: mint.ServiceClient, settings: Settings, metrics: Rows
) -> None:
    class Unmasked(Letters):
        def edit_datums(self, datums: list[types.Datum]) -> list[types.Datum]:
            return [replaced(d, weights=np.ones(len(values(d, "weights")))) for d in datums]

    with pytest.raises(RunStopped, match="masked_loss"):
        run_grpo(Unmasked(), settings(), service=client)
    assert metrics() == []


def test_a_gradient_that_is_not_finite_stops_the_run_and_names_the_last_checkpoint(
    client: mint.ServiceClient, settings: Settings
) -> None:
    class Exploding(Letters):
        steps = 0

        def edit_datums(self, datums: list[types.Datum]) -> list[types.Datum]:
            self.steps += 1
            if self.steps < 2:
                return datums
            return [replaced(d, logprobs=values(d, "logprobs") - 200.0) for d in datums]

    with pytest.raises(RunStopped, match=r"not_finite.*last good checkpoint is .*step-000001"):
        run_grpo(Exploding(), settings(steps=3, checkpoint_every=1), service=client)


def test_a_step_without_signal_trains_nothing_and_says_why(
    client: mint.ServiceClient, settings: Settings, metrics: Rows, capsys: Any
) -> None:
    class Same(Letters):
        def compute_reward(self, response: str, sample: str) -> Any:
            return 1.0

    run_grpo(Same(), settings(steps=1), service=client)
    assert (metrics()[0]["datums"], metrics()[0]["groups/all_right"]) == (0, 2)
    assert "no_signal: datums=0: 2 groups are all right" in capsys.readouterr().out
