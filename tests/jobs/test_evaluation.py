"""``mint eval``: a base model, a checkpoint, or the best one of a run directory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mint.jobs.job import JOB
from mint.watch.directory.recorder import CONFIG

from .conftest import LETTERS, ROOT, TASK, Command

FEW = ("evaluation.success_threshold=0.5",)


def test_a_base_model_is_evaluated(evaluated: Command) -> None:
    ended = evaluated(*TASK, *FEW)
    assert ended.code == 0, ended.err
    assert ended.out.startswith("tiny/llama on 4 held-out prompts\n")
    assert re.search(r"^pass@1 +[01]\.\d{3} +\d\.\d{3} to \d\.\d{3}$", ended.out, re.MULTILINE)
    assert re.search(r"^reward +[01]\.\d{3} ", ended.out, re.MULTILINE)


def test_a_run_directory_is_its_best_checkpoint_with_the_runs_own_settings(
    train: Command, evaluated: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINT_RL_MAX_TOKENS", "6")
    trained = train(*TASK, *FEW, "evaluation.eval_every=1", "logging.run_dir=run")
    monkeypatch.delenv("MINT_RL_MAX_TOKENS")
    found = {
        step: float(share)
        for step, share in re.findall(r"Step (\d): pass@1=([\d.]+)%", trained.out)
    }
    ended = evaluated("checkpoint=run")
    assert ended.code == 0, ended.err
    assert re.match(r"tinker://\S+/weights/step-00000\d on 4 held-out prompts", ended.out)
    (value,) = re.findall(r"^pass@1 +(\d\.\d{3})", ended.out, re.MULTILINE)
    assert float(value) == pytest.approx(max(found["1"], found["2"]) / 100, abs=1e-3)


def test_several_answers_give_pass_at_k_of_a_path(train: Command, evaluated: Command) -> None:
    trained = train(*TASK, "training.steps=1")
    (path,) = re.findall(r"Saved: (\S+)", trained.out)
    ended = evaluated(*TASK, *FEW, "evaluation=pass_at_k", f"checkpoint={path}")
    assert ended.out.startswith(f"{path} on 4 held-out prompts\n")
    assert re.search(r"^pass@8 +\d\.\d{3} +\d\.\d{3} to \d\.\d{3}$", ended.out, re.MULTILINE)


def test_a_name_without_a_checkpoint_is_a_user_error(evaluated: Command) -> None:
    ended = evaluated("checkpoint=nowhere")
    assert ended.code == 2
    assert "neither a run directory with a checkpoint nor a path" in ended.err


@pytest.mark.parametrize("path", ["tinker://no-such-run/weights/final", "tinker://x"])
def test_a_path_unknown_to_the_service_is_reported_with_its_message(
    path: str, evaluated: Command
) -> None:
    ended = evaluated(*TASK, f"checkpoint={path}")
    assert ended.code == 2
    assert ended.err.startswith("mint: ")
    assert "Traceback" not in ended.err
    assert "Error code" not in ended.err


def test_a_mistyped_checkpoint_argument_is_reported_with_the_right_name(evaluated: Command) -> None:
    ended = evaluated("chekpoint=runs/first")
    assert (ended.code, ended.err) == (
        2,
        "mint: There is no chekpoint=runs/first. Did you mean 'checkpoint'?\n",
    )


def test_the_run_of_a_script_does_not_say_what_to_evaluate(
    train: Command, evaluated: Command, folder: Path
) -> None:
    assert train(*TASK, "training.steps=1", "logging.run_dir=run").code == 0
    (folder / "run" / JOB).unlink()
    ended = evaluated("checkpoint=run")
    assert ended.code == 2
    assert "run has no job.yaml, so it was written by a script." in ended.err
    assert "mint eval checkpoint=tinker://" in ended.err


def test_an_experiment_cannot_be_added_to_a_run_that_exists(
    train: Command, evaluated: Command
) -> None:
    assert train(*TASK, "training.steps=1", "logging.run_dir=run").code == 0
    ended = evaluated("checkpoint=run", "+experiment=quick_test")
    assert ended.code == 2
    assert "experiment=quick_test selects all settings" in ended.err


@pytest.mark.parametrize("command", ["eval", "bisect"])
def test_a_service_that_does_not_answer_is_one_message(
    command: str, train: Command, evaluated: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(*TASK, "training.steps=1", "logging.run_dir=run").code == 0
    for file in (Path("run") / JOB, Path("run") / CONFIG):
        file.write_text(re.sub(r"service_timeout: \S+", "service_timeout: 0.1", file.read_text()))
    monkeypatch.setenv("MINT_BASE_URL", "http://127.0.0.1:9")
    asked = "checkpoint=run"
    ended = evaluated(asked) if command == "eval" else train("bisect", "run", "--prompts", "2")
    assert ended.code == 1
    assert ended.err == "mint: The service at http://127.0.0.1:9 has not responded for 0.1 s.\n"


@pytest.mark.parametrize("command", ["train", "eval"])
def test_the_help_of_the_mint_command_shows_what_to_type(command: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mint.cli", command, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"mint {command} " in done.stdout
    assert "sampling.temperature=0.8" in done.stdout
    assert "arithmetic, chat, code" in done.stdout


def test_bisect_is_passed_on_with_its_arguments(train: Command) -> None:
    ended = train("bisect", "nowhere")
    assert ended.code == 2
    assert "nowhere is not a run directory" in ended.err


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["--task", "nowhere.py:Task"], "there is no file nowhere.py here"),
        (["--task", "letters.py:Leters"], "Did you mean 'Letters'?"),
        (["--drop", "-0.1"], "--drop is -0.1; it must be above 0."),
        (["--drop", "nan"], "--drop is nan; it must be above 0."),
        (["--good", "7"], "There is no checkpoint of step 7."),
    ],
)
def test_a_mistake_in_what_to_bisect_is_one_message(
    typed: list[str], told: str, train: Command
) -> None:
    assert train(*TASK, "training.steps=1", "logging.run_dir=run").code == 0
    ended = train("bisect", "run", *typed)
    assert ended.code == 2
    assert told in ended.err
    assert "Traceback" not in ended.err


def test_a_run_without_a_drop_is_reported_without_a_negative_zero(train: Command) -> None:
    assert train(*TASK, "evaluation.eval_every=1", "logging.run_dir=run").code == 0
    ended = train("bisect", "run")
    assert "No drop: pass@1 did not fall from step 0 to step 2 (+0.000" in ended.out


BREAKING = """
from letters import Letters

class Breaking(Letters):
    done = 0

    def holdout_reward(self, response, sample):
        return super().compute_reward(response, sample)

    def compute_reward(self, response, sample):
        return super().compute_reward(response, sample) * (1 if Breaking.done < 3 else -1)

    def evaluate(self, step, rewards, num_datums):
        Breaking.done = step
"""


def test_a_reevaluated_run_is_still_compared_with_its_best_step(
    train: Command, folder: Path
) -> None:
    (folder / "breaking.py").write_text(BREAKING)
    arguments = ["task=custom", "task.adapter=breaking.py:Breaking", "logging.run_dir=run"]
    arguments += ["training.steps=6", "training.batch_size=8", "sampling.group_size=8"]
    arguments += ["training.learning_rate=0.03", "training.keep_every=1"]
    trained = train(*arguments, "evaluation.eval_every=3", "evaluation.holdout_size=16")
    assert "Best on the holdout: step 3" in trained.out
    ended = train("bisect", "run", "--prompts", "16", "--metric", "reward")
    assert "Evaluating step 3: tinker://" in ended.out
    assert "Evaluating step 0: the base model" not in ended.out
    assert "Good at step " in ended.out


def test_a_run_of_the_command_can_be_bisected(train: Command) -> None:
    arguments = ["evaluation.eval_every=1", "training.keep_every=1", "logging.run_dir=run"]
    assert train(*TASK, *FEW, *arguments).code == 0
    ended = train("bisect", "run", "--prompts", "4", "--metric", "reward")
    assert ended.code == 0, ended.err
    assert "Evaluating step 2: tinker://" in ended.out


def test_files_and_settings_can_be_changed_for_the_evaluation_of_a_run(
    train: Command, evaluated: Command
) -> None:
    train(*TASK, "training.steps=1", "logging.run_dir=run")
    asked = ("checkpoint=run", "evaluation=pass_at_k", "sampling.max_tokens=2", "--cfg", "job")
    job = yaml.safe_load(evaluated(*asked).out)
    assert job["task"]["adapter"] == "letters.py:Letters"
    assert (job["evaluation"]["eval_samples"], job["sampling"]["max_tokens"]) == (8, 2)


def test_two_checkpoints_are_compared_on_the_same_prompts(
    train: Command, evaluated: Command
) -> None:
    assert train(*TASK, *FEW, "training.steps=1", "logging.run_dir=run").code == 0
    ended = evaluated("checkpoint=run", "against=base")
    assert ended.code == 0, ended.err
    assert re.search(
        r"^holdout, against tiny/llama: pass@1 .* on the same 4 prompts: .* \(exact McNemar test\)",
        ended.out,
        re.MULTILINE,
    )


def test_a_named_set_is_evaluated_with_its_categories(evaluated: Command, folder: Path) -> None:
    sets = """
    def build_eval_sets(self):
        pairs = [(kind, n) for kind, digits in (("odd", "135"), ("even", "024")) for n in digits]
        return {"digits": [{"question": f"{n}:", "category": kind} for kind, n in pairs]}
"""
    (folder / "sets.py").write_text(LETTERS + sets)
    ended = evaluated("task=custom", "task.adapter=sets.py:Letters", *FEW, "set=digits")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("tiny/llama on 6 prompts of digits\n")
    assert "held-out" not in ended.out
    assert re.findall(r"^(\w+) +3 +\d\.\d{3} ", ended.out, re.MULTILINE) == ["even", "odd"]


def test_a_model_behind_an_endpoint_is_evaluated(
    evaluated: Command, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "tml-training")
    asked = (f"endpoint={service}/oai/api/v1", "model.base_model=tiny/llama")
    ended = evaluated(*TASK, *FEW, *asked, "evaluation=pass_at_k", "evaluation.eval_samples=3")
    assert ended.code == 0, ended.err
    assert ended.out.startswith(f"tiny/llama at {service}/oai/api/v1 on 4 held-out prompts\n")
    assert re.findall(r"^(\S+) +\d", ended.out, re.MULTILINE) == [
        *("pass@1", "pass@2", "pass@3", "majority@3", "reward")
    ]


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["set=nothing"], "set=nothing: the task has no such set. It has holdout."),
        (["endpoint=http://x", "checkpoint=run"], "leave out checkpoint="),
        (["endpoint=http://x", "against=base"], "leave out endpoint="),
        (["agains=base"], "Did you mean 'against'?"),
    ],
)
def test_a_mistake_in_what_to_evaluate_is_one_message(
    typed: list[str], told: str, evaluated: Command
) -> None:
    ended = evaluated(*TASK, *typed)
    assert ended.code == 2
    assert told in ended.err
    assert "Traceback" not in ended.err
