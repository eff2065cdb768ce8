"""``mint eval``: a base model, a checkpoint, or the best one of a run directory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .conftest import ROOT, TASK, Command

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


def test_a_checkpoint_that_is_none_is_a_mistake(evaluated: Command) -> None:
    ended = evaluated("checkpoint=nowhere")
    assert ended.code == 2
    assert "neither a run directory with a checkpoint nor a path" in ended.err


def test_a_path_that_the_service_does_not_have_is_a_mistake(evaluated: Command) -> None:
    ended = evaluated(*TASK, "checkpoint=tinker://no-such-run/weights/final")
    assert ended.code == 2
    assert "Traceback" not in ended.err


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
    assert "nowhere is no run directory" in ended.err


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
