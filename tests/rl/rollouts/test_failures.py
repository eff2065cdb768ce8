"""Failures of a task's own code: counted over recent rollouts, shown once, and kept."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mint
from mint.rewards import TooManyFailures
from mint.rl import Chat, Environment, RLConfig, Rollout, run_grpo, run_tools, tool
from mint.rl.messages.tool_calls import ToolCall
from mint.rl.rollouts.failures import CodeFailure, FailureLog, noting
from mint.rl.rollouts.rollout import Group
from mint.rl.rollouts.scoring import FailureCounter, apply_score
from mint.watch.directory.reader import open_run
from mint.watch.directory.recorder import EVENTS, read_rows
from tests.rl.conftest import Letters

Settings = Callable[..., RLConfig]


def step_of(counter: FailureCounter, *rewards: Any, group_size: int = 4) -> None:
    """A step whose answers get these rewards, or raise these exceptions."""
    rollouts = [Rollout([], "text") for _ in rewards]
    for rollout, reward in zip(rollouts, rewards, strict=True):
        apply_score(rollout, reward)
        counter.record("sample", rollout)
    parts = [rollouts[i : i + group_size] for i in range(0, len(rollouts), group_size)]
    counter.check([Group("sample", str(i), "prompt", part) for i, part in enumerate(parts)])


@pytest.mark.parametrize("good_steps", [0, 10, 400])
def test_a_reward_that_always_fails_stops_the_run_at_once_however_long_it_worked(
    good_steps: int,
) -> None:
    counter = FailureCounter(max_share=0.2)
    for _ in range(good_steps):
        step_of(counter, *[1.0] * 8)
    with pytest.raises(TooManyFailures, match=r"8 of 8 rollouts .*KeyError \(8×\)"):
        step_of(counter, *[KeyError("answer")] * 8)


@pytest.mark.parametrize("good_steps", [10, 400])
def test_failures_of_some_answers_are_counted_over_recent_ones_only(good_steps: int) -> None:
    counter = FailureCounter(max_share=0.2)
    for _ in range(good_steps):
        step_of(counter, *[1.0] * 20)
    half = [*[1.0] * 10, *[KeyError("answer")] * 10]
    for _ in range(4):
        step_of(counter, *half)
    with pytest.raises(TooManyFailures, match="50 of the last 200 rollouts"):
        step_of(counter, *half)


def test_a_share_of_failures_that_is_allowed_never_stops_a_run() -> None:
    counter = FailureCounter(max_share=0.2)
    for _ in range(100):
        step_of(counter, *[1.0] * 9, ValueError("x"))


def test_one_prompt_that_fails_whole_stops_nothing_once_others_were_scored() -> None:
    counter = FailureCounter(max_share=0.2)
    step_of(counter, *[1.0] * 40)
    step_of(counter, *[ValueError("too long")] * 4)


def test_none_for_every_answer_is_a_forgotten_return() -> None:
    with pytest.raises(TooManyFailures, match=r"All 8 rewards of the step are None.*return"):
        step_of(FailureCounter(max_share=1.0), *[None] * 8)


def test_none_where_a_reward_does_not_apply_stops_nothing() -> None:
    counter = FailureCounter(max_share=0.2)
    step_of(counter, *[None] * 4, *[1.0] * 4)
    step_of(counter, *[None] * 8)


def test_a_failure_counter_resumes_from_its_state() -> None:
    first, second = FailureCounter(0.2), FailureCounter(0.2)
    step_of(first, *[1.0] * 30, *[ValueError("x")] * 5)
    second.load(first.state())
    assert second.state() == first.state()
    with pytest.raises(TooManyFailures, match="9 of 39"):
        step_of(second, *[ValueError("x")] * 4)


def test_a_failure_names_the_line_of_the_tasks_code_and_not_of_a_library() -> None:
    def reward() -> float:
        return float(re.compile("(").groups)

    try:
        reward()
    except re.error as error:
        failure = CodeFailure.of(error)
    assert re.fullmatch(rf"{re.escape(__file__)}:\d+", failure.place)
    assert "re.compile" in failure.traceback


def test_the_same_failure_is_shown_and_kept_once(capsys: pytest.CaptureFixture[str]) -> None:
    kept: list[str] = []
    log = FailureLog(lambda failure, step, sampled_for: kept.append(failure.place))
    here, there = (CodeFailure("ValueError: x", f"a.py:{i}", f"Traceback {i}") for i in (1, 2))
    for failure in (here, here, there):
        log.see(failure, 1, "training")
    shown = capsys.readouterr().out
    assert kept == ["a.py:1", "a.py:2"]
    assert shown.count("Traceback 1") == shown.count("Traceback 2") == 1
    assert "failed in training at a.py:1, shown once: ValueError: x" in shown


def test_an_exception_in_a_tool_is_noted_and_one_that_it_means_to_raise_is_not() -> None:
    def open_page(page: int) -> str:
        "Open a page."
        return ["first"][page]

    found: list[CodeFailure] = []

    async def calls() -> list[str]:
        with noting(found):
            wanted = [ToolCall("open_page", {"page": page}) for page in (0, 7, "x")]
            return await run_tools({"open_page": tool(open_page)}, wanted)

    answers = asyncio.run(calls())
    assert answers[:2] == ["first", "error: IndexError: list index out of range"]
    assert [failure.error for failure in found] == ["IndexError: list index out of range"]
    assert found[0].place.startswith(__file__)


def test_what_failed_is_in_the_run_directory_with_its_answers_and_tracebacks(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path, capsys: Any
) -> None:
    class Broken(Letters):
        def compute_reward(self, response: str, sample: str) -> Any:
            return {"a": 1.0}[response]

    with pytest.raises(TooManyFailures, match=r"8 of 8 rollouts .*KeyError"):
        run_grpo(Broken(), settings(), service=client)
    out = capsys.readouterr().out
    assert out.count("Traceback (most recent call last)") == 1
    rows = open_run(tmp_path / "run").rollouts()
    assert len(rows) == 8
    assert all(row["response"] and __file__ in row["traceback"] for row in rows)
    (event,) = [e for e in read_rows(tmp_path / "run" / EVENTS) if e["event"] == "failure"]
    assert event["place"].startswith(__file__)
    assert "KeyError" in event["traceback"]


def test_a_forgotten_return_ends_the_run_with_a_message(
    client: mint.ServiceClient, settings: Settings
) -> None:
    class Forgetful(Letters):
        def compute_reward(self, response: str, sample: str) -> Any:
            super().compute_reward(response, sample)

    with pytest.raises(TooManyFailures, match="rewards of the step are None"):
        run_grpo(Forgetful(), settings(), service=client)


def test_a_tool_that_fails_is_shown_and_its_rollout_still_counts(
    client: mint.ServiceClient, settings: Settings, tmp_path: Path, capsys: Any
) -> None:
    def look_up(word: str) -> str:
        "Look up a word."
        raise LookupError(word)

    class Reader(Environment):
        def build_dataset(self) -> list[str]:
            return ["a", "b"]

        async def rollout(self, task: str, chat: Chat) -> float:
            chat.user(task)
            reply = await chat.reply()
            await run_tools({"look_up": tool(look_up)}, [ToolCall("look_up", {"word": task})])
            return len(set(reply.text)) / 10

    run_grpo(Reader(), settings(steps=1), service=client)
    assert capsys.readouterr().out.count("raise LookupError(word)") == 1
    rows = open_run(tmp_path / "run").rollouts()
    assert all(row["reward"] is not None and "LookupError" in row["traceback"] for row in rows)


def test_equal_rewards_above_0_are_not_all_wrong() -> None:
    def kind(*rewards: float) -> str:
        rollouts = [Rollout([], "text", reward=reward) for reward in rewards]
        return Group("sample", "id", "prompt", rollouts).kind(threshold=1.0)

    assert kind(0.5, 0.5) == "all_equal"
    assert kind(0.0, 0.0) == kind(-0.5, -0.5) == "all_wrong"
    assert kind(1.0, 1.0) == "all_right"
    assert kind(0.0, 0.5) == "signal"
