"""Signatures, composition, scoring and the registry."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import mint.rewards as rewards
import mint.rl
from mint.rewards import (
    Failure,
    RewardFailed,
    Sample,
    Score,
    Scorer,
    SignatureError,
    TooManyFailures,
    as_reward,
    check_answer,
    check_numbers,
    clip,
    compute_reward_breakdown,
    find_reward,
    floored,
    gated,
    list_rewards,
    match_format_exactly,
    multi_task,
    register,
    schedule,
    shaped,
    weighted,
)
from mint.rewards.registry import RewardNotFound

SAMPLE = Sample("It is 4.", "What is 2 + 2?", {"answer": "4", "format": "The answer is [NUM]."})


def page_style(response: str, prompt: str, metadata: dict[str, Any]) -> float:
    assert prompt == SAMPLE.prompt
    return float(metadata["answer"] in response)


def by_name(response: str, answer: str) -> float:
    return float(answer in response)


def with_any(response: str, **metadata: Any) -> float:
    return float(metadata["answer"] in response)


def batched(prompts: list[str], completions: list[str], **columns: Any) -> list[float | None]:
    return [float(a in c) for c, a in zip(completions, columns["answer"], strict=True)]


def batched_by_name(completions: list[str], answer: list[str]) -> list[float]:
    return [float(a in c) for c, a in zip(completions, answer, strict=True)]


async def asynchronous(response: str, prompt: str, metadata: dict[str, Any]) -> float:
    await asyncio.sleep(0)
    return page_style(response, prompt, metadata)


async def asynchronous_batch(prompts: list[str], completions: list[str], **columns: Any) -> Any:
    await asyncio.sleep(0)
    return batched(prompts, completions, **columns)


class Callable_:
    def __call__(self, response: str, answer: str) -> bool:
        return answer in response


@pytest.mark.parametrize(
    "function",
    [
        *(page_style, by_name, with_any, batched, batched_by_name, asynchronous),
        *(asynchronous_batch, Callable_(), check_answer),
    ],
)
def test_every_known_signature_is_a_reward(function: Callable[..., Any]) -> None:
    assert as_reward(function).score([SAMPLE, SAMPLE]) == [Score(1.0), Score(1.0)]


@pytest.mark.parametrize(
    "function", [lambda: 1.0, lambda *args: 1.0, lambda prompt, response: 1.0, lambda x, /: 1.0]
)
def test_any_other_signature_is_refused_with_the_known_ones(function: Callable[..., Any]) -> None:
    with pytest.raises(SignatureError, match=r"def reward\(response, prompt, metadata\)"):
        as_reward(function)


def test_rewards_work_inside_a_running_event_loop() -> None:
    async def scored() -> Any:
        return as_reward(asynchronous).score([SAMPLE])

    assert asyncio.run(scored()) == [Score(1.0)]


@pytest.mark.parametrize(
    ("function", "score"),
    [
        (lambda response: compute_reward_breakdown("4", 4).total, 1.0),
        (lambda response: compute_reward_breakdown("4", 4), 1.0),
        (lambda response: check_numbers("4", [4]), 1.0),
        (lambda response: {"score": np.float32(0.5)}, 0.5),
        (lambda response: True, 1.0),
        (lambda response: Score(0.25), 0.25),
    ],
)
def test_what_a_reward_may_return(function: Callable[..., Any], score: float) -> None:
    assert as_reward(function)("4").total == score  # type: ignore[union-attr]


@pytest.mark.parametrize("value", ["0.5x", [1.0], float("nan"), float("inf"), object()])
def test_what_a_reward_may_not_return(value: Any) -> None:
    with pytest.raises(RewardFailed):
        as_reward(lambda response: value)("4")


def test_the_first_parameter_is_the_response_whatever_the_metadata_has() -> None:
    def reward(completion: str, **metadata: Any) -> float:
        return float(completion == "4" and metadata["response"] == "old")

    score = as_reward(reward)("4", metadata={"completion": "5", "response": "old"})
    assert score == Score(1.0)


def test_a_batched_reward_finds_the_answer_under_its_other_name() -> None:
    def reward(completions: list[str], ground_truth: list[str] | None = None) -> list[float]:
        return [float(c == g) for c, g in zip(completions, ground_truth or [], strict=True)]

    assert as_reward(reward)("4", metadata={"answer": "4"}) == Score(1.0)


def test_a_composed_total_that_is_not_finite_is_a_failure() -> None:
    reward = weighted({"large": (10.0, lambda response: 1e308)})
    [outcome] = asyncio.run(reward.outcomes([SAMPLE]))
    assert isinstance(outcome, Failure)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(RewardFailed, match="'ground_truth'"):
        as_reward(check_answer)("4", metadata={"other": 1})


def test_a_batch_of_the_wrong_length_fails_every_sample() -> None:
    reward = as_reward(lambda prompts, completions: [1.0])
    outcomes = asyncio.run(reward.outcomes([SAMPLE, SAMPLE]))
    assert all(isinstance(outcome, Failure) for outcome in outcomes)


def test_weighted_keeps_every_component_beside_the_total() -> None:
    inner = weighted({"right": (1.0, check_answer)})
    reward = weighted({"format": (0.3, match_format_exactly), "answer": (0.7, inner)})
    assert reward.score([SAMPLE]) == [
        Score(0.7, {"format": 0.0, "answer": 1.0, "answer/right": 1.0})
    ]


def test_a_component_that_does_not_apply_adds_nothing() -> None:
    reward = weighted({"a": (0.5, lambda response: 1.0), "b": (0.5, lambda response: None)})
    assert reward("x") == Score(0.5, {"a": 1.0})
    assert weighted({"a": (1.0, lambda response: None)})("x") is None


def test_a_component_that_raises_is_a_failure_and_never_a_zero() -> None:
    def broken(response: str) -> float:
        raise ZeroDivisionError("on purpose")

    for reward in (
        weighted({"a": (0.5, check_answer), "b": (0.5, broken)}),
        gated(check_answer, broken),
        shaped(check_answer, {"b": (0.1, broken)}),
        clip(broken),
    ):
        with pytest.raises(RewardFailed, match="on purpose"):
            reward.score([SAMPLE])


def test_gated_counts_a_reward_only_above_the_gate() -> None:
    reward = gated(check_answer, match_format_exactly)
    assert reward.score([SAMPLE])[0] == Score(0.0, {"reward": 1.0, "gate": 0.0})
    right = Sample("The answer is 4.", "", SAMPLE.metadata)
    assert float(reward.score([right])[0] or 0) == 1.0


def test_shaping_never_outweighs_its_limit() -> None:
    reward = shaped(check_answer, {"bonus": (5.0, lambda response: 1.0)}, limit=0.3)
    score = reward.score([SAMPLE])[0]
    assert score is not None
    assert score.total == 1.3
    assert score.components["shaping"] == 0.3


def test_clip_and_floor() -> None:
    assert float(clip(lambda response: -3.0)("x") or 0) == 0.0
    assert float(floored(lambda response: 0.0, 0.2)("x") or 0) == 0.2


def test_a_schedule_follows_the_step_through_nested_rewards() -> None:
    moving = schedule(lambda step: {"one": float(step)}, {"one": lambda response: 1.0})
    nested = clip(weighted({"moving": (1.0, moving)}), 0.0, 100.0)
    assert [float(nested.at(step)("x") or 0) for step in (0, 3, 7)] == [0.0, 3.0, 7.0]


def test_multi_task_mixes_by_name() -> None:
    reward = multi_task({"math": check_answer, "short": lambda response: float(len(response) < 3)})
    samples = [
        Sample("4", "", {"task": "math", "answer": "4"}),
        Sample("long", "", {"task": "short"}),
        Sample("4", "", {"task": "unknown"}),
    ]
    assert reward.score(samples) == [Score(1.0), Score(0.0), None]


def test_a_sample_that_cannot_be_scored_is_left_out_and_logged() -> None:
    logged: list[str] = []
    scorer = Scorer(
        lambda response: 1 / len(response),
        max_failure_share=0.5,
        on_failure=lambda sample, failure: logged.append(str(failure)),
    )
    scored = scorer.score([Sample("ab"), Sample("")])
    assert [one.counts for one in scored] == [True, False]
    assert logged == ["<lambda>: ZeroDivisionError: division by zero"]
    assert scorer.metrics() == {"reward/failures": 1.0, "reward/failure_share": 0.5}


def test_a_run_whose_rewards_fail_too_often_stops_and_says_why() -> None:
    scorer = Scorer(lambda response: 1 / 0, max_failure_share=0.1, min_samples=5)
    scorer.score([Sample("x")] * 4)
    with pytest.raises(TooManyFailures, match=r"5 of 5 samples.*ZeroDivisionError \(5×\)"):
        scorer.score([Sample("x")])


def test_rewards_are_found_by_name_by_path_and_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("def reward(response, answer):\n    return float(answer in response)\n")
    for name in ("check_answer", "mint.rewards.check_answer", f"{path}:reward"):
        assert float(find_reward(name).score([SAMPLE])[0] or 0) == 1.0


def test_a_registered_reward_is_found_and_listed() -> None:
    @register("for_this_test")
    def one(response: str) -> float:
        """Always one."""
        return 1.0

    assert float(find_reward("for_this_test")("x") or 0) == 1.0
    assert ("for_this_test", "Always one.") in [(r.name, r.summary) for r in list_rewards()]


def test_a_composed_reward_is_registered_under_its_own_name() -> None:
    register()(floored(check_answer))
    assert find_reward("floored")("5", metadata={"answer": "4"}).total == 0.1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("check_anwser", "Did you mean check_answer"),
        ("no.such.module.reward", "mint rewards list"),
        ("mint.rewards.answers.checks.chek_answer", "Did you mean check_answer"),
        ("missing.py:reward", "There is no file missing.py"),
        (".reward", "mint rewards list"),
        (f"{__file__}:regster", f"There is no 'regster' in {__file__}. Did you mean register"),
    ],
)
def test_an_unknown_reward_says_what_to_type(name: str, hint: str) -> None:
    with pytest.raises(RewardNotFound, match=hint):
        find_reward(name)


def test_agent_tunix_offers_the_same_names() -> None:
    import agent_tunix.rewards

    for name in rewards.__all__:
        assert getattr(agent_tunix.rewards, name) is getattr(rewards, name)


def test_the_library_imports_no_torch_and_its_top_level_nothing_heavy() -> None:
    code = (
        "import sys, mint.rewards as r\n"
        "from mint.rewards import RewardBreakdown, compute_reward_breakdown, extract_prediction\n"
        "print(*{'httpx', 'typer', 'sympy', 'asyncio', 'tinker'} & sys.modules.keys())\n"
        "[getattr(r, name) for name in r.__all__]\n"
        "print(*{'torch', 'transformers'} & sys.modules.keys())\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []


@pytest.mark.parametrize("package", [rewards, mint.rl])
def test_type_checkers_see_every_name_that_is_loaded_late(package: ModuleType) -> None:
    stub = Path(str(package.__file__)).with_suffix(".pyi").read_text(encoding="utf-8")
    imports = [n for n in ast.walk(ast.parse(stub)) if isinstance(n, ast.ImportFrom)]
    assert {name.asname for each in imports for name in each.names} == set(package.__all__)
    for each in imports:
        module = import_module(f"{package.__name__}.{each.module}")
        for name in each.names:
            assert getattr(package, name.name) is getattr(module, name.name)
