"""Sampling ahead by several steps: which weights sampled each token, and what is too old."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mint
from mint import types
from mint.rewards import Score
from mint.rl import Chat, ConfigError, RLConfig, run_grpo
from mint.rl.datums.datum import values
from mint.rl.datums.reference import score_by_version
from mint.rl.sampling.batch import Batch
from mint.rl.settings.schedules import reward_weights_at
from mint.watch.directory.reader import open_run
from tests.rl.conftest import Letters
from tests.rl.loop.test_resume import FULL, Crashed
from tests.rl.stepping import stepping

Settings = Callable[..., RLConfig]
Rows = Callable[[], list[dict[str, Any]]]
HELD = (0, 1)
"""The task that takes longer than the others: call and number."""


class Talks:
    """Two replies to every task. Between those to the held one, a task of a later call begins."""

    def __init__(self, release_at: int) -> None:
        self.release_at = release_at
        self.calls = 0
        self.released, self.ended = asyncio.Event(), asyncio.Event()

    def build_dataset(self) -> list[tuple[int, int]]:
        self.calls += 1
        return [(self.calls - 1, number) for number in range(2)]

    async def rollout(self, task: tuple[int, int], chat: Chat) -> float:
        if task[0] >= self.release_at:
            self.released.set()
        if task[0] > self.release_at:  # by now the held one is complete
            await self.ended.wait()
        chat.user(f"{task}")
        await chat.reply()
        if task == HELD:
            await self.released.wait()
        chat.user("go on")
        reply = await chat.reply()
        if task == HELD:
            asyncio.get_running_loop().call_later(0, self.ended.set)
        return sum(character < "\x80" for character in reply.text) / max(1, len(reply.text))


def steps(task: Any, cfg: RLConfig, client: mint.ServiceClient) -> list[Batch]:
    """Run a task, and return the batches of its steps."""
    batches = []
    with stepping(task, cfg, client) as run:
        for step in run:
            batch = run.sample(step)
            run.record(batch, run.train(batch, run.build_datums(batch)))
            batches.append(batch)
        run.finish()
    return batches


def logprobs(client: mint.SamplingClient, tokens: list[int]) -> list[float | None]:
    return client.compute_logprobs(types.ModelInput.from_ints(tokens)).result()


def test_every_token_has_the_version_of_the_weights_that_made_it(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path
) -> None:
    wanted = {"steps": 5, "max_staleness": 2, "temperature": 1.0, "learning_rate": 0.05}
    cfg = settings(**wanted, staleness_rule="correct", truncated_importance=2.0)
    batches = steps(Talks(release_at=3), cfg, client)
    clients = {v: p.client for batch in batches for v, p in batch.policies.items()}
    rollouts = [r for batch in batches for group in batch.groups for r in group.rollouts]
    assert len(rollouts) == 5 * 2 * 4
    seen, farthest = set(), 0.0
    for segment in (segment for rollout in rollouts for segment in rollout.segments):
        by_version = {v: logprobs(c, segment.tokens) for v, c in clients.items()}
        for index, version in enumerate(segment.versions):
            assert (version is not None) == segment.sampled[index]
            if version is None:
                continue
            seen.add(version)
            mine = by_version[version][index]
            assert segment.logprobs[index] == pytest.approx(mine, abs=2e-4)
            others = [found[index] for v, found in by_version.items() if v != version]
            farthest = max(farthest, *(abs((other or 0.0) - (mine or 0.0)) for other in others))
    assert farthest > 0.01  # the versions differ, so that a wrong one would be noticed
    assert len(seen) >= 3

    held = [g for batch in batches for g in batch.groups if g.sample == HELD]
    assert len(held) == 1
    assert all(set(rollout.versions) == {0, 1} for rollout in held[0].rollouts)
    assert held[0].version == 0
    for rollout in held[0].rollouts:
        (segment,) = rollout.segments
        by_version = asyncio.run(score_by_version(clients, segment.trimmed()))
        assert by_version == pytest.approx(np.asarray(rollout.sampled_logprobs), abs=2e-4)
    rows = open_run(tmp_path / "run").rollouts()
    recorded = sorted((row["segments"][0]["versions"] for row in rows), key=str)
    assert recorded == sorted((r.segments[0].versions for r in rollouts), key=str)
    digests = {v: c.weights_digest().result() for v, c in clients.items()}
    assert len(set(digests.values())) == len(digests)
    for row in rows:
        made_by = {v for segment in row["segments"] for v in segment["versions"]} - {None}
        assert row["digests"] == {version: digests[version] for version in made_by}


def test_answers_that_are_too_old_are_dropped_and_no_others(
    client: mint.ServiceClient, settings: Settings, metrics: Rows, tmp_path: Path
) -> None:
    batches = steps(Talks(release_at=5), settings(steps=7, max_staleness=2), client)
    for batch in batches:
        assert len(batch.groups) == 2
        assert all(batch.step - 1 - group.version <= 2 for group in batch.groups)
        assert all(batch.step - 1 - group.version > 2 for group in batch.stale)
    assert HELD in [group.sample for batch in batches for group in batch.stale]
    assert HELD not in [group.sample for batch in batches for group in batch.groups]
    assert [row["staleness/dropped"] for row in metrics()] == [len(b.stale) for b in batches]
    assert all(row["staleness/mean"] <= row["staleness/max"] <= 2 for row in metrics())
    held = [row for row in open_run(tmp_path / "run").rollouts() if row["prompt"] == f"{HELD}"]
    assert len(held) == 4
    assert all(row["replaced"] and row["advantage"] == 0.0 for row in held)


def test_an_answer_that_would_be_too_old_is_aborted(
    client: mint.ServiceClient, settings: Settings, metrics: Rows
) -> None:
    class Held(Letters):
        """The reward of one prompt never comes."""

        def build_dataset(self) -> list[str]:
            self.calls = getattr(self, "calls", 0) + 1
            return [f"{self.calls - 1},{number}:" for number in range(2)]

        async def compute_reward(self, response: str, sample: str) -> Any:
            if sample == "0,1:":
                await asyncio.Event().wait()
            return super().compute_reward(response, sample)

    batches = steps(Held(), settings(steps=5, max_staleness=2), client)
    assert [batch.aborted for batch in batches[:3]] == [0, 0, 0]
    assert batches[3].aborted >= 1
    assert [row["staleness/dropped"] for row in metrics()] == [
        batch.aborted + len(batch.stale) for batch in batches
    ]
    assert all(len(batch.groups) == 2 for batch in batches)
    assert "0,1:" not in [group.sample for batch in batches for group in batch.everything]


def test_old_answers_are_weighed_by_the_trainers_probability_over_the_samplers(
    client: mint.ServiceClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against min(exp(log p_trainer - log p_sampler), C) in float64, where log p_trainer comes from
    a sampler with the trainer's weights."""
    wanted = {"steps": 5, "max_staleness": 2, "temperature": 1.0, "learning_rate": 0.05}
    rule = {"staleness_rule": "correct", "truncated_importance": 1.5, "aggregation": "token"}
    cfg = settings(**wanted, **rule)
    checked, cut = 0, 0
    with stepping(Letters(), cfg, client) as run:
        sent: list[types.Datum] = []
        real = run.client.forward_backward

        def watched(datums: list[types.Datum], *more: Any) -> Any:
            sent.extend(datums)
            return real(datums, *more)

        monkeypatch.setattr(run.client, "forward_backward", watched)
        for step in run:
            batch = run.sample(step)
            trainer = batch.policies[step - 1].client
            datums = run.build_datums(batch)
            sent.clear()
            run.record(batch, run.train(batch, datums))
            assert len(sent) == len(datums)
            for before, after in zip(datums, sent, strict=True):
                tokens = [*before.model_input.to_ints(), int(values(before, "target_tokens")[-1])]
                mine = np.asarray(logprobs(trainer, tokens)[1:], dtype=np.float64)
                inside = values(before, "weights") != 0
                ratio = np.exp(mine[inside] - values(before, "logprobs")[inside])
                expected = values(before, "weights")[inside] * np.minimum(ratio, 1.5)
                got = values(after, "weights")
                assert got[inside] == pytest.approx(expected, rel=1e-3)
                assert not got[~inside].any()
                assert values(after, "logprobs")[inside] == pytest.approx(mine[inside], abs=2e-4)
                checked += int((np.abs(ratio - 1) > 0.01).sum())
                cut += int((ratio > 1.5).sum())
    assert checked > 10
    assert cut > 0


def test_the_correction_needs_its_limit() -> None:
    with pytest.raises(ConfigError, match=r"truncated_importance=2\.0"):
        RLConfig(max_staleness=3, staleness_rule="correct")


@pytest.mark.parametrize("how", ["ctrl-c", "crash"])
def test_what_was_in_flight_is_sampled_again_and_every_prompt_once(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path, how: str
) -> None:
    class Fixed(Letters):
        """Ends at the fourth step."""

        def __init__(self, how: str = "") -> None:
            self.how = how

        def build_dataset(self) -> list[str]:
            return [f"{number}:" for number in range(14)]

        def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
            if step == 4 and self.how == "ctrl-c":
                os.kill(os.getpid(), signal.SIGINT)
            elif step == 4 and self.how == "crash":
                raise Crashed

    wanted = {"steps": 6, "max_staleness": 3, "checkpoint_every": 2}
    run_grpo(Fixed(), settings(run_dir=str(tmp_path / "whole"), **wanted), service=client)
    broken = settings(run_dir=str(tmp_path / "broken"), **wanted)
    with pytest.raises((KeyboardInterrupt, Crashed)):
        run_grpo(Fixed(how), broken, service=client)
    state = json.loads((tmp_path / "broken" / "state.json").read_text())
    assert len(state["in_flight"]) == {"ctrl-c": 4, "crash": 6}[how]
    run_grpo(Fixed(), broken, service=client)
    whole, resumed = (open_run(tmp_path / name).rollouts() for name in ("whole", "broken"))
    for rows in (whole, resumed):
        prompts = [row["prompt"] for row in rows if row["index"] == 0]
        assert [row["step"] for row in rows if row["index"] == 0] == sorted([1, 2, 3, 4, 5, 6] * 2)
        assert len(set(prompts)) == len(prompts) == 12
    assert {row["prompt"] for row in whole} == {row["prompt"] for row in resumed}


def test_evaluation_kl_curriculum_refills_and_schedules_work_several_steps_ahead(
    client: mint.ServiceClient, settings: Settings, metrics: Rows
) -> None:
    cfg = settings(**{**FULL, "max_staleness": 3, "kl_penalty_coef": 0.1, "batch_size": 3})
    run_grpo(Letters(), cfg, service=client)
    rows = metrics()
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert all(row["staleness/max"] <= 3 for row in rows[1:])
    assert rows[1]["kl/k3"] < 1e-5 < rows[-1]["kl/k3"]
    assert {"holdout/pass@1", "curriculum/learning", "groups/refilled"} <= rows[-1].keys()


def test_schedules_follow_the_steps_although_refills_use_up_later_batches(
    client: mint.ServiceClient, settings: Settings
) -> None:
    class Plain(Letters):
        """Pays the same for all answers to most prompts."""

        def compute_reward(self, response: str, sample: str) -> Any:
            letters = super().compute_reward(response, sample)
            return Score(0.0, {"start": 1.0, "letters": letters if "1" in sample else 0.0})

    start, end = {"start": 1.0, "letters": 1e-3}, {"start": 0.0, "letters": 1e-3}
    weights = {"reward_weights": start, "reward_weights_end": end}
    cooling = {"temperature_schedule": "linear", "temperature_end": 0.2}
    cfg = settings(steps=9, max_staleness=2, max_refills=3, **weights, **cooling)
    drawn = []
    for batch in steps(Plain(), cfg, client):
        used = [r.reward for g in batch.everything for r in g.rollouts if r.reward is not None]
        ahead = reward_weights_at(cfg, batch.step + cfg.max_staleness)
        assert ahead is not None
        assert min(used) >= ahead["start"] - 1e-9
        drawn.append(len(batch.everything))
    assert sum(drawn) > 1.5 * 9 * cfg.batch_size
