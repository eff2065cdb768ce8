"""Training from the command line: the rewards page's commands, rewards, how runs end and resume."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mint.jobs.job import JOB, load_adapter, make_config, read_job
from mint.rl.recording.report import ANALYSIS, count_kinds
from mint.watch.directory.reader import open_run
from mint.watch.directory.recorder import METRICS, RunDirectory, read_rows
from tests.needs import need_sandbox

from .conftest import CONF, LETTERS, ROOT, SMALL, SMOLLM2, TASK, Command, run_directory

CUSTOM = '''

def custom_reward_function(response: str, prompt: str, metadata: dict) -> float:
    """
    Compute reward for a response.
    """
    expected = metadata.get("answer", "")
    assert prompt.startswith("What is ") and int(expected) >= 0 and isinstance(response, str)
    return len(set(response)) / 10
'''
REWARDS = """
import asyncio

def of_the_page(response, prompt, metadata):
    return 0.25 if prompt.endswith(":") and metadata["answer"] == "7" else 1.0

def with_ground_truth(response, ground_truth):
    return 0.25 if ground_truth == "7" else 1.0

async def awaited(response, **metadata):
    await asyncio.sleep(0)
    return 0.25

def batched(prompts, completions, **columns):
    assert len(completions) == 4
    return [0.25] * len(completions)

def fails(response):
    raise RuntimeError("no judge today")
"""
INTERRUPTING = """
import os, signal
from letters import Letters

class Interrupting(Letters):
    def compute_reward(self, response, sample):
        if not os.path.exists("interrupted") and self.done == 2:
            open("interrupted", "w").close()
            os.kill(os.getpid(), signal.SIGINT)
        return super().compute_reward(response, sample)

    done = 0

    def evaluate(self, step, rewards, num_datums):
        Interrupting.done = step
"""


def rewards_in(folder: Path) -> set[float]:
    return {row["reward"] for row in open_run(folder).rollouts()}


def test_the_plain_command_trains_on_arithmetic_and_leaves_nothing_but_its_run(
    train: Command, folder: Path
) -> None:
    ended = train()
    assert ended.code == 0, ended.err
    assert "Saved: tinker://" in ended.out
    written = run_directory(ended.out)
    assert [row["step"] for row in read_rows(written / METRICS)] == [1, 2]
    assert {path.name for path in folder.iterdir()} == {"runs", "letters.py"}

    job = read_job(written)
    assert make_config(job).stop == ("\n",)
    assert type(load_adapter(job)).__name__ == "VerifiableMathAdapter"


@pytest.mark.parametrize("task", ["gym", "chat", "code", "tools", "game", "hackable"])
def test_every_task_of_the_configuration_trains(task: str, train: Command, folder: Path) -> None:
    if task == "gym":
        pytest.importorskip("reasoning_gym")
    if task == "code":
        need_sandbox()
    ended = train(f"task={task}", "training.steps=1", "sampling.max_tokens=4")
    assert ended.code == 0, ended.err
    (row,) = read_rows(run_directory(ended.out) / METRICS)
    assert row["reward/failures"] == 0


def test_log_rewards_prints_every_batch_and_the_run(train: Command) -> None:
    out = train("training.log_rewards=true", *TASK).out
    assert "rewards of step 1: 8 answers, mean 0." in out
    assert "rewards of the run: 16 answers, mean 0." in out
    assert "highest 0." in out


def test_save_reward_analysis_writes_the_report_and_says_where(
    train: Command,
) -> None:
    out = train("training.save_reward_analysis=true").out
    written = run_directory(out)
    assert f"Reward analysis: {written / ANALYSIS}.txt" in out
    data = json.loads((written / f"{ANALYSIS}.json").read_text())
    assert {"skewness", "variance", "failure_patterns", "highest", "lowest"} <= data.keys()
    assert sum(data["failure_patterns"].values()) == 16
    assert sum(kind["count"] for kind in data["response_types"]) == 16
    assert "response types, by their mean reward:" in (written / f"{ANALYSIS}.txt").read_text()


@pytest.mark.parametrize(
    ("response", "truncated", "kind"),
    [
        ("It is 7.", False, "right"),
        ("It is 7 and", True, "right"),
        ("It is eight and not more", True, "truncated"),
        ("It is 8 and not any more", False, "wrong"),
        ("8", False, "off by one"),
        ("8", True, "truncated"),
        (" ", False, "empty"),
    ],
)
def test_a_response_is_truncated_when_it_was_cut_off_and_not_when_it_looks_so(
    response: str, truncated: bool, kind: str
) -> None:
    row = {"identity": "a", "response": response, "truncated": truncated}
    (found,) = count_kinds([{**row, "error": None, "reward": 1.0}], {"a": "7"})
    assert found["type"] == kind


@pytest.mark.slow
def test_a_reward_written_into_the_rewards_module_is_found_by_its_name(
    service: str, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "src" / "agent_tunix", tmp_path / "agent_tunix")
    with open(tmp_path / "agent_tunix" / "rewards.py", "a") as file:
        file.write(CUSTOM)
    command = [sys.executable, str(ROOT / "run_training.py")]
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    done = subprocess.run(
        [*command, "+training.reward_function=custom_reward_function"],
        cwd=tmp_path,
        env={**os.environ, **SMALL, "MINT_BASE_URL": service, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    written = tmp_path / run_directory(done.stdout)
    assert read_job(written)["training"]["reward_function"] == "custom_reward_function"
    assert [row["reward/failures"] for row in read_rows(written / METRICS)] == [0, 0]


@pytest.mark.parametrize(
    "name",
    ["of_the_page", "with_ground_truth", "awaited", "batched", "with_ground_truth in threads"],
)
def test_a_reward_function_of_any_signature_takes_the_place_of_the_tasks_own(
    name: str, train: Command, folder: Path
) -> None:
    (folder / "mine.py").write_text(REWARDS)
    name, _, threads = name.partition(" ")
    more = ["training.reward_workers=2"] if threads else []
    steps = "training.steps=1"
    out = train(*TASK, steps, f"training.reward_function=mine.py:{name}", *more).out
    assert rewards_in(folder / run_directory(out)) == {0.25}


def test_a_module_of_the_current_folder_can_be_named(train: Command, folder: Path) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "scores.py").write_text(REWARDS)
    (folder / "package" / "tasks.py").write_text(LETTERS)
    arguments = ["task=custom", "task.adapter=package.tasks:Letters", "training.steps=1"]
    out = train(*arguments, "training.reward_function=package.scores:with_ground_truth").out
    assert rewards_in(folder / run_directory(out)) == {0.25}


def test_a_built_in_reward_scores_an_answer_of_the_task(train: Command, folder: Path) -> None:
    out = train("+training.reward_function=mint.rewards:stable_reward", "training.steps=1").out
    assert min(rewards_in(folder / run_directory(out))) == 0.1


def test_another_reward_is_another_run(train: Command, folder: Path) -> None:
    (folder / "mine.py").write_text(REWARDS)
    first = train(*TASK, "training.steps=1", "logging.run_dir=here")
    assert first.code == 0
    again = train(*TASK, "training.steps=1", "logging.run_dir=here", "training.log_rewards=true")
    assert again.code == 0
    reward = "training.reward_function=mine.py:of_the_page"
    refused = train(*TASK, "training.steps=1", "logging.run_dir=here", reward)
    assert refused.code == 2
    assert "here contains a run with training.reward_function=None (now mine.py:of_the_page)" in (
        refused.err
    )


def test_the_same_command_beside_a_running_one_says_that_it_is_another_run(
    train: Command, folder: Path
) -> None:
    first = Path(run_directory(train(*TASK, "training.steps=1").out))
    (first / "state.json").unlink()
    with RunDirectory(first):
        beside = train(*TASK, "training.steps=1")
    said = f"Another process is writing to runs/{first.name}: this is a separate run."
    assert said in beside.out.splitlines()
    assert f"run directory: runs/{first.name}-2" in beside.out


def test_samples_are_printed_with_prompt_reward_and_length(train: Command) -> None:
    out = train(*TASK, "logging.samples=3", "training.steps=1").out
    assert out.count("  prompt: ") == out.count("  answer: ") == 3
    assert out.count("length: 4 tokens") == 3


def test_ctrl_c_ends_with_130_and_the_same_command_resumes(train: Command, folder: Path) -> None:
    (folder / "interrupting.py").write_text(INTERRUPTING)
    arguments = ["task=custom", "task.adapter=interrupting.py:Interrupting", "training.steps=4"]
    arguments += ["training.save_reward_analysis=true", "training.log_rewards=true"]
    ended = train(*arguments)
    assert ended.code == 130
    assert "The same command resumes after step 2." in ended.out
    assert "Traceback" not in ended.err

    ended = train(*arguments)
    assert ended.code == 0
    assert "Resuming after step 2." in ended.out
    assert "rewards of the run: 32 answers" in ended.out
    written = run_directory(ended.out)
    assert [row["step"] for row in read_rows(written / METRICS)] == [1, 2, 3, 4]
    data = json.loads((written / f"{ANALYSIS}.json").read_text())
    assert sum(data["failure_patterns"].values()) == 32


def test_sigterm_saves_completed_work_as_ctrl_c_does_and_ends_with_143(folder: Path) -> None:
    program = INTERRUPTING.replace("SIGINT", "SIGTERM")
    (folder / "interrupting.py").write_text(program)
    task = ["task=custom", "task.adapter=interrupting.py:Interrupting"]
    asked = ["training.steps=4", "training.checkpoint_every=10", "logging.run_dir=preempted"]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "mint.cli", "train", "--config-dir", str(CONF), *task, *asked],
            capture_output=True,
            text=True,
            timeout=120,
        )

    ended = run()
    assert ended.returncode == 143, ended.stderr
    assert ended.stdout.splitlines()[-1] == "Interrupted. The same command resumes after step 2."
    assert ended.stderr == ""

    ended = run()
    assert ended.returncode == 0, ended.stderr
    assert "Resuming after step 2." in ended.stdout
    assert [row["step"] for row in read_rows(folder / "preempted" / METRICS)] == [1, 2, 3, 4]


def test_a_run_that_a_guard_stops_is_one_message(train: Command, folder: Path) -> None:
    (folder / "mine.py").write_text(REWARDS)
    arguments = ["training.reward_function=mine.py:awaited", "training.stop_on=[no_signal]"]
    shown = ["training.save_reward_analysis=true", "training.log_rewards=true"]
    ended = train(*TASK, *arguments, *shown)
    assert ended.code == 1
    assert ended.err.startswith("mint: no_signal")
    assert "Traceback" not in ended.err
    assert "rewards of step 1: 8 answers" in ended.out
    data = json.loads((run_directory(ended.out) / f"{ANALYSIS}.json").read_text())
    assert sum(data["failure_patterns"].values()) == data["count"] == 8


def test_rewards_that_all_fail_are_one_message(train: Command, folder: Path) -> None:
    (folder / "mine.py").write_text(REWARDS)
    ended = train(*TASK, "training.reward_function=mine.py:fails")
    assert ended.code == 1
    assert "8 of 8 rollouts could not be scored" in ended.err
    assert "Traceback" not in ended.err


def test_a_run_directory_that_cannot_be_created_is_a_user_error(
    train: Command, folder: Path
) -> None:
    (folder / "file").touch()
    for typed in (["logging.run_dir=file"], ["-m", "training.seed=0,1", "logging.run_dir=file/x"]):
        ended = train(*TASK, *typed)
        assert ended.code == 2
        assert "cannot be created: " in ended.err
        assert "Traceback" not in ended.err


def test_a_missing_model_is_reported_with_the_services_message(train: Command) -> None:
    ended = train("model.base_model=no/such-model")
    assert ended.code == 2
    assert "mint: There is no model 'no/such-model'. Looked in:" in ended.err
    assert "request_id" not in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.slow
def test_the_quick_test_runs_on_a_service_of_its_own(tiny_model: Path, tmp_path: Path) -> None:
    variables = {
        "MINT_HOME": str(tmp_path / "home"),
        "MINT_MODELS": f"{SMOLLM2}={tiny_model}",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "run_training.py", "+experiment=quick_test"]
    done = subprocess.run(
        [*command, f"logging.run_dir={tmp_path / 'run'}"],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Step 0: pass@1=" in done.stdout
    assert (tmp_path / "run" / JOB).is_file()
    assert not (ROOT / "outputs").exists()
