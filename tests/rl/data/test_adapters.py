"""The demo tasks by themselves: their prompts, their rewards, what they reject."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from mint import types
from mint.jobs.compose import compose_jobs, find_conf
from mint.jobs.job import load_adapter, make_config
from mint.rewards import Task
from mint.rl.data.prompts import Data
from tests.service_fixture import MODEL
from tests.tiny import build_tokenizer

FOLDER = Path(__file__).parents[3] / "demos" / "rl" / "adapters"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"adapter_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_reward_of_the_tool_agent_is_the_outcome_minus_costs() -> None:
    tools = load("tool_use")
    environment, task = tools.ToolUseEnvironment(), tools.Purchase("bread", 3)

    def reward(answer: str, *seen: tuple[str, str]) -> dict[str, float]:
        conduct = tools.Conduct()
        for tool, result in seen:
            conduct.saw(task, tool, result)
        return dict(environment.reward(task, answer, conduct).components)

    lookup, sum_ = ("search", "bread: One bread costs 7 coins."), ("calculate", "21")
    best = reward("<answer>21</answer>", lookup, sum_)
    assert best == {"outcome": 1.0, "tool_cost": -0.02, "failed_calls": 0.0, "rules": 0.0}
    assert reward("<answer>21</answer>")["rules"] == pytest.approx(-0.3)
    assert reward("?", ("search", "nothing found"))["rules"] == pytest.approx(-0.2)
    assert reward("?", lookup)["rules"] == pytest.approx(-0.1)
    assert reward("?", ("calculate", "error: no"))["failed_calls"] == pytest.approx(-0.02)


def test_the_example_of_the_tool_agent_is_one_its_own_parser_reads() -> None:
    from mint.rl import parse_tool_calls

    tools = load("tool_use")
    said = [content for role, content in tools.EXAMPLES if role == "assistant"]
    names = [call.name for content in said for call in parse_tool_calls(content)]
    assert names == ["search", "calculate"] * 2


def test_unknown_tools_and_datasets_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no tool 'serach'; choose from search"):
        load("tool_use").ToolUseEnvironment(["serach"])
    with pytest.raises(ValueError, match="no dataset 'prgrams'"):
        load("code_execution").CodeExecutionAdapter("prgrams")


def test_solved_examples_of_a_gym_task_are_never_asked() -> None:
    pytest.importorskip("reasoning_gym")
    adapter = load("verifiable_math").VerifiableMathAdapter(
        "gym:countdown", shots=2, options={"min_numbers": 2, "max_numbers": 2, "min_target": 1}
    )
    random.seed(0)
    asked = {task.prompt for _ in range(20) for task in adapter.build_dataset()}
    shown = {task.prompt for task in adapter.shown}
    assert len(shown) == 2
    assert not shown & asked
    assert adapter.examples.count("\nA: ") == 2


def test_the_examples_of_a_gym_task_are_chosen_by_their_seed() -> None:
    pytest.importorskip("reasoning_gym")
    make = load("verifiable_math").VerifiableMathAdapter
    options = {"min_numbers": 2, "max_numbers": 3, "max_value": 20, "min_target": 10}
    varied = make("gym:countdown", 6, options, examples_seed=2444000)
    answers = [task.metadata["answer"] for task in varied.shown]
    assert answers == ["13 + 8", "14*18", "8 + 13 - 1", "9*(16 + 10)", "10*17 - 6", "17 - 4"]
    assert varied.shown[0].prompt not in make("gym:countdown", 6, options).examples


COUNTDOWN = {"min_numbers": 2, "max_numbers": 3, "max_value": 20, "min_target": 10}


def test_countdown_asks_in_one_line_and_shows_its_examples_alike() -> None:
    pytest.importorskip("reasoning_gym")
    tokenizer = build_tokenizer()
    adapter = load("countdown").CountdownAdapter(2, COUNTDOWN, examples_seed=2444000)
    task: Task = adapter.build_dataset()[0]
    *examples, asked = tokenizer.decode(adapter.make_prompt(task, tokenizer)).split("\n")
    assert examples == [
        "Numbers: 13, 8. Target: 21. Expression: 13 + 8",
        "Numbers: 14, 18. Target: 252. Expression: 14*18",
    ]
    given = task.metadata["entry"]["metadata"]
    assert asked.endswith(f"Target: {given['target']}. Expression:")


def test_countdown_gives_partial_credit_only_if_set_and_never_in_the_holdout() -> None:
    pytest.importorskip("reasoning_gym")
    make = load("countdown").CountdownAdapter
    strict, lenient = make(0, COUNTDOWN), make(0, COUNTDOWN, partial_credit=True)
    task: Task = make(4, COUNTDOWN, examples_seed=2444000).shown[3]
    assert task.metadata["answer"] == "9*(16 + 10)"
    paid = {
        text: lenient.compute_reward(text, task)
        for text in ("9*(16 + 10)", "9*16 + 10", "9 + 16 + 10", "9 + 16", "9*(16 + 10", "ten")
    }
    assert paid["9*(16 + 10)"] == 1.0
    assert 0.5 > paid["9*16 + 10"] > paid["9 + 16 + 10"] > 0.1 > paid["9 + 16"]
    for text, reward in paid.items():
        gym = task.score(text).total
        assert strict.compute_reward(text, task) == gym
        assert lenient.holdout_reward(text, task).total == gym
        assert reward >= gym


def test_the_cold_start_of_countdown_shows_no_problem_that_its_experiment_holds_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("reasoning_gym")
    monkeypatch.setenv("MINT_SFT_EXAMPLES", "200")
    cold_start = load("../../cold_start")
    overrides = ["+experiment=countdown", "model.start_from=null", "evaluation.holdout_size=100"]
    (composed,) = compose_jobs(find_conf(None), overrides)
    cfg, adapter = make_config(composed.job), load_adapter(composed.job)
    tokenizer = build_tokenizer()
    held = {item.identity for item in Data(adapter, tokenizer, cfg).holdout()}
    texts = [
        tokenizer.decode(datum.model_input.to_ints())
        for datum in cold_start.solutions(adapter, tokenizer, cfg)
    ]
    found = [re.match(r"Numbers: (.*)\. Target: (\d+)\. Expression: ", text) for text in texts]
    shown = {f"{sorted(map(int, f[1].split(', ')))} {f[2]}" for f in found if f is not None}
    assert (len(held), len(shown)) == (100, 200)
    assert not held & shown


def test_countdown_holds_out_a_problem_in_every_order_and_wording() -> None:
    pytest.importorskip("reasoning_gym")
    adapter = load("countdown").CountdownAdapter(0, COUNTDOWN)
    random.seed(0)
    tasks = [task for _ in range(20) for task in adapter.build_dataset()]
    by_identity: dict[str, set[str]] = {}
    for task in tasks:
        by_identity.setdefault(adapter.identity(task), set()).add(task.prompt)
    assert max(map(len, by_identity.values())) > 1
    assert len(by_identity) > len(tasks) / 3


def test_the_hackable_reward_counts_what_the_holdout_does_not() -> None:
    adapter = load("hackable_math").HackableMathAdapter()
    task: Task = adapter.build_dataset()[0]
    right = task.metadata["answer"]
    listed = f"{right} or maybe {int(right) + 50}, so the answer is {int(right) + 99}"
    assert adapter.compute_reward(listed, task) == 1.0
    assert adapter.holdout_reward(listed, task).total < 1.0
    assert adapter.holdout_reward(right, task).total == 1.0


def test_the_judge_learns_to_prefer_short_complete_answers_on_the_subject() -> None:
    chat = load("preference_chat")
    question = next(q for q in chat.questions(held_out=False) if q.text == "Why do cats purr?")
    assert chat.wanted("Cats purr when they are happy.", question)
    assert not chat.wanted("Cats purr when they are happy", question)
    assert not chat.wanted("Dogs bark when they are happy.", question)
    assert not chat.wanted("Cats purr.", question)
    assert not chat.wanted("Cats purr, " + "and purr, " * 5 + "and purr.", question)


def test_questions_are_held_out_of_the_judge_and_of_the_policy_alike() -> None:
    chat = load("preference_chat")
    trained, held_out = chat.questions(held_out=False), chat.questions(held_out=True)
    assert (len(trained), len(held_out)) == (48, 16)
    assert not {q.text for q in trained} & {q.text for q in held_out}
    adapter = chat.PreferenceChatAdapter("some/judge")
    assert sorted(adapter.build_dataset()) == sorted(trained)
    assert adapter.build_holdout() == held_out


def test_a_verdict_is_the_judges_own_logprobs_in_both_orders(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINT_BASE_URL", service)
    chat = load("preference_chat")
    judge, (x, y) = chat.Judge(MODEL), ("Because.", "No idea, really.")

    def first_is_better(a: str, b: str) -> float:
        prompts = chat.verdicts("Why?", a, b, judge.tokenizer)
        assert prompts[0][:-1] == prompts[1][:-1]
        inputs = [types.ModelInput.from_ints(tokens) for tokens in prompts]
        scored = [judge.client.compute_logprobs(each).result()[-1] for each in inputs]
        says_a, says_b = (math.exp(logprob or 0.0) for logprob in scored)
        return says_a / (says_a + says_b)

    sure = asyncio.run(judge.prefers("Why?", x, y))
    expected = (first_is_better(x, y) + 1 - first_is_better(y, x)) / 2
    assert sure == pytest.approx(expected, abs=1e-4)
    assert asyncio.run(judge.prefers("Why?", y, x)) == pytest.approx(1 - sure, abs=1e-4)


def test_an_answer_is_rewarded_for_beating_the_reference(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINT_BASE_URL", service)
    chat = load("preference_chat")
    adapter, question = chat.PreferenceChatAdapter(MODEL), chat.questions(held_out=True)[0]
    reference = question.reference

    def rewards(*answers: str) -> list[float]:
        scores = asyncio.run(adapter.compute_rewards(answers, question))
        assert [score.components for score in scores] == [{"wanted": 0.0}] * len(answers)
        return [score.total for score in scores]

    assert rewards(reference, reference) == pytest.approx([0.5, 0.5], abs=1e-4)
    sure = asyncio.run(adapter.judge.prefers(question.text, "Bread.", reference))
    tie = 0.1  # what bradley_terry adds, so that no score is infinite
    assert rewards("Bread.") == pytest.approx([(sure + tie / 2) / (1 + tie)], abs=1e-3)
