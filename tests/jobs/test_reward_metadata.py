"""A reward that needs metadata which a task lacks is rejected before any request to a service."""

from __future__ import annotations

from pathlib import Path

import pytest

from mint.commands.training.train import main
from mint.jobs.job import check_rewards
from mint.rewards import Sandbox, SandboxUnavailable
from mint.rl import ConfigError

from .conftest import CONF, TASK, Command
from .test_configuration import composed

REWARDS = """
import json, re
from mint.rewards import CodeReward, check_answer, schedule, weighted

def looks_it_up(response, prompt, metadata):
    return float(response == metadata["gold"])

async def awaited(response, prompt, metadata):
    return float(response == metadata["gold"])

def to_the_answer(response, prompt, metadata):
    return float(response == metadata["answer"])

def named(response, gold):
    return float(response == gold)

def batched(prompts, completions, gold):
    return [float(text == right) for text, right in zip(completions, gold)]

combined = weighted({"right": (0.5, check_answer), "gold": (0.5, looks_it_up)})
moving = schedule(lambda step: {"right": step}, {"right": check_answer})

def of_words(response, prompt, metadata):
    return {"yes": 1.0, "no": 0.0}[response]

def of_fields(response, prompt, metadata):
    return float(dict(re.findall(r"(\\w+): (.*)", response))["final"] == metadata["answer"])

def of_json(response, prompt, metadata):
    return float(json.loads(response)["final"] == metadata["answer"])

def optional(response, prompt, metadata):
    return float(metadata.get("gold", "7") in response)

def with_default(response, answer, gold="7"):
    return float(gold in response)

def raises(response):
    raise RuntimeError("no judge today")

class Tests(CodeReward):
    def __init__(self):
        self.made = None

    async def outcomes(self, samples):
        if self.made is None:
            self.made = CodeReward()
        return await self.made.outcomes(samples)

code = Tests()
"""
SOME_HAVE_IT = """
from letters import Letters

class Mixed(Letters):
    def build_dataset(self):
        return [{"question": "1", "answer": "7"}, {"question": "2", "answer": "7", "gold": "7"}]
"""


@pytest.fixture
def rewards(tmp_path: Path, folder: Path) -> Path:
    (folder / "mine.py").write_text(REWARDS)
    (folder / "mixed.py").write_text(SOME_HAVE_IT)
    return folder


def checked(reward: str, *task: str) -> None:
    job = composed(*(task or TASK), f"training.reward_function=mine.py:{reward}").job
    check_rewards([job])


@pytest.mark.parametrize("reward", ["looks_it_up", "awaited", "named", "batched", "combined"])
def test_metadata_that_a_reward_lacks_is_reported(reward: str, rewards: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        checked(reward)
    assert f"training.reward_function=mine.py:{reward} asks for 'gold', and a sample of " in str(
        refused.value
    )
    assert "letters.py:Letters has only 'answer', 'question'." in str(refused.value)


def test_own_data_without_the_column_that_a_reward_asks_for_says_how_to_name_it(
    rewards: Path,
) -> None:
    (rewards / "own.csv").write_text("prompt,solution\n1 + 1,2\n2 + 2,4\n")
    with pytest.raises(ConfigError, match=r"task\.arguments\.answer_column=NAME") as refused:
        checked("to_the_answer", "task=jsonl", "task.arguments.file=own.csv")
    assert "build_dataset" not in str(refused.value)


def test_a_reward_for_programs_needs_tests(rewards: Path) -> None:
    try:
        Sandbox()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with pytest.raises(ConfigError, match="asks for 'tests'"):
        checked("code")
    checked("code", "task=code")


@pytest.mark.parametrize(
    "reward", ["of_words", "of_fields", "of_json", "optional", "with_default", "raises"]
)
def test_what_else_a_reward_fails_of_is_left_to_the_run(reward: str, rewards: Path) -> None:
    checked(reward)


def test_samples_of_which_some_have_it_are_left_to_the_run(rewards: Path) -> None:
    checked("named", "task=custom", "task.adapter=mixed.py:Mixed")


def test_a_task_is_rejected_before_the_first_request(
    rewards: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINT_BASE_URL", "http://127.0.0.1:9")
    typed = ["--config-dir", str(CONF), "-m", *TASK]
    assert main([*typed, "training.reward_function=check_answer,mine.py:named"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("mint: training.reward_function=mine.py:named asks for 'gold'")
    assert said.out == ""
    assert not (rewards / "runs").exists()


def test_the_dataset_of_a_run_does_not_depend_on_the_check(train: Command, rewards: Path) -> None:
    counting = """
from letters import Letters

class Counting(Letters):
    calls = 0

    def build_dataset(self):
        self.calls += 1
        return [{"question": f"call {self.calls}", "answer": "7"}]
"""
    (rewards / "counting.py").write_text(counting)
    arguments = ["task=custom", "task.adapter=counting.py:Counting", "training.steps=1"]
    arguments += ["logging.samples=1", "evaluation.holdout_fraction=0"]
    out = train(*arguments, "training.reward_function=mine.py:optional").out
    assert "prompt: 'call 1'" in out


def test_a_schedule_that_would_not_move_is_refused(rewards: Path) -> None:
    with pytest.raises(ConfigError, match=r"would never change here.*reward_weights_end"):
        checked("moving")
