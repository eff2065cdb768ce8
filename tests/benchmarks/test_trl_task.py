"""The comparison with TRL: both sides get the demo's task, and a side may fail."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.trl import task as the
from benchmarks.trl.__main__ import environment
from benchmarks.trl.picture import draw
from benchmarks.trl.runs import Comparison, Run
from benchmarks.trl.table import table
from benchmarks.trl.task import Problem, Scores, Settings, Task, digest
from tests.service_fixture import MODEL

REPOSITORY = Path(__file__).resolve().parents[2]
TRL = REPOSITORY / ".venvs/trl/bin/python"
SMALL = Settings(steps=2, prompts=2, group=4, held_out=3)
with_trl = pytest.mark.skipif(not TRL.exists(), reason="needs TRL's environment: make trl-env")


@pytest.fixture(scope="module")
def quickstart() -> ModuleType:
    path = REPOSITORY / "quickstart/custom_reward.py"
    spec = importlib.util.spec_from_file_location("custom_reward", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_problems_are_those_of_the_quickstart(quickstart: ModuleType) -> None:
    task = Task(Settings(steps=3), seed=5)
    problems = quickstart.Problems(5)
    [shot], held_out = problems.hold_out(1), problems.hold_out(64)
    draws = [[problems.draw() for _ in range(16)] for _ in range(3)]
    assert [p.question for p in task.held_out] == [p.question for p in held_out]
    assert [[p.question for p in step] for step in task.steps] == [
        [p.question for p in step] for step in draws
    ]
    assert task.prompt(Problem(1, 2)) == (
        f"{shot.question} {shot.answer}\n{quickstart.Problem(1, 2).question}"
    )


def test_the_settings_are_those_of_make_demo() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    demo = dict(re.findall(r"MINT_CUSTOM_REWARD_(\w+)=([\d.e-]+) ", makefile))
    assert {name: float(value) for name, value in demo.items()} == {
        "STEPS": Settings().steps,
        "BATCH": Settings().prompts,
        "GROUP": Settings().group,
        "EVAL": Settings().held_out,
        "LR": the.LEARNING_RATE,
        "MAX_TOKENS": the.MAX_TOKENS,
        "TEMPERATURE": the.TEMPERATURE,
        "SHOTS": 1,
    }


def test_scores_know_how_sure_they_are() -> None:
    scores = Scores.of([Problem(1, 1), Problem(2, 2)], [["2", "2"], ["4", "no number"]])
    assert scores.reward == pytest.approx(0.75)
    assert scores.exact == scores.format == 0.75
    assert scores.reward_error == pytest.approx(0.25)  # the second group's 0.5, over two groups


def compare(folder: Path, model: str, trl_python: str) -> tuple[Comparison, str, int]:
    """Run the command of the benchmark on a tiny model."""
    command = [sys.executable, "-m", "benchmarks.trl", "--seeds", "0", "--out", str(folder)]
    command += ["--model", model, "--trl-python", trl_python, *SMALL.arguments()]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return Comparison.load(folder / "results.json"), result.stdout, result.returncode


def prompts_of(run: Run) -> list[str]:
    return [row["prompts"] for row in run.steps]


@pytest.mark.slow
def test_mint_is_asked_the_prompts_of_the_task_and_a_failed_side_is_named(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINT_BASE_URL", service)
    comparison, output, code = compare(tmp_path, MODEL, "/bin/false")
    assert code == 1
    trl, mint = comparison.runs
    task = Task(SMALL, seed=0)
    assert mint.error is None
    assert prompts_of(mint) == [digest([task.prompt(p) for p in step]) for step in task.steps]
    assert trl.error == "exit code 1: it printed nothing"
    assert "TRL, seed 0, failed: exit code 1" in output
    assert re.search(r"^\| a step, s \| - \| [\d.]+ \| - \|$", output, re.M)


@with_trl
def test_both_sides_are_asked_the_same_prompts(tiny_model: Path, tmp_path: Path) -> None:
    comparison, output, code = compare(tmp_path, str(tiny_model), str(TRL))
    assert code == 0, output
    [(trl, mint)] = comparison.pairs()
    assert prompts_of(trl) == prompts_of(mint)
    assert trl.evaluation("before")["reward"] == mint.evaluation("before")["reward"]


@with_trl
def test_mint_and_trl_move_the_adapter_alike_given_the_same_answers(tiny_model: Path) -> None:
    result = subprocess.run(
        [TRL, "-m", "benchmarks.trl.check_update", tiny_model],
        cwd=REPOSITORY,
        env=environment(home=""),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert float(result.stdout.splitlines()[-1]) < 1e-4


def run_of(side: str, seed: int, seconds: float, **more: Any) -> Run:
    """A run of two steps that takes so many seconds for each, after one of start-up."""
    figures = {"reward": 0.4, "reward_error": 0.01, "tokens": 16, "prompts": "x"}
    steps = [
        {"kind": "step", "at": 1 + seconds * step, "began": 1 + seconds * (step - 1),
         "step": step, "sample": seconds / 4, "train": seconds * 3 / 4, **figures}
        for step in (1, 2)
    ]  # fmt: skip
    evaluations = [
        {"kind": "eval", "at": 1, "when": when, "exact": exact}
        for when, exact in (("before", 0.0), ("after", 0.5))
    ]
    rows = [{"kind": "ready", "at": 1, side: "1.0"}, *evaluations, *steps]
    return Run(side, seed, launched=0, ended=2 * seconds + 1, rows=rows, **more)


def test_the_table_has_ratios_within_each_seed() -> None:
    seconds = {("trl", 0): 40.0, ("mint", 0): 10.0, ("trl", 1): 20.0, ("mint", 1): 10.0}
    runs = [run_of(side, seed, each) for (side, seed), each in seconds.items()]
    text = table(Comparison(asdict(SMALL), {}, runs))
    trl, mint, ratio = "30.00 (20.00 to 40.00)", "10.00 (10.00 to 10.00)", "3.0 (2.0 to 4.0)"
    assert f"| a step, s | {trl} | {mint} | {ratio} |" in text
    assert "| held-out exact rate after | 50.0% (50.0% to 50.0%) |" in text


def test_rewards_are_compared_when_the_faster_side_is_done() -> None:
    trl, mint = run_of("trl", 0, 20.0), run_of("mint", 0, 10.0)
    trl.steps[0]["reward"], mint.steps[1]["reward"] = 0.2, 0.8
    text = table(Comparison(asdict(SMALL), {}, [trl, mint]))
    assert "| reward when the faster side is half through | - | 0.400 |" in text
    assert "| reward when the faster side is done | 0.200 | 0.600 |" in text


def test_a_seed_that_one_side_failed_has_no_ratio() -> None:
    failed = Run("trl", 0, 0, 5, [], error="exit code -9: out of memory")
    runs = [failed, run_of("mint", 0, 10.0), run_of("trl", 1, 20.0), run_of("mint", 1, 10.0)]
    text = table(Comparison(asdict(SMALL), {}, runs))
    assert "| a step, s | 20.00 | 10.00 (10.00 to 10.00) | 2.0 |" in text
    assert text.endswith("TRL, seed 0, failed: exit code -9: out of memory\n")


def test_a_table_of_failures_only_is_still_a_table() -> None:
    failed = [Run(side, 0, 0, 1, [], error="exit code 1") for side in ("trl", "mint")]
    assert "| a step, s | - | - | - |" in table(Comparison(asdict(SMALL), {}, failed))


def test_different_prompts_are_complained_about() -> None:
    trl, mint = run_of("trl", 0, 1.0), run_of("mint", 0, 1.0)
    mint.steps[1]["prompts"] = "y"
    [complaint] = Comparison(asdict(SMALL), {}, [trl, mint]).complaints()
    assert "did not have the same prompts" in complaint


def test_the_picture_shows_the_sides_that_finished(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    runs = [run_of("mint", 0, 1.0), run_of("mint", 1, 2.0)]
    draw(Comparison(asdict(SMALL), {"device": "CPU"}, runs), tmp_path / "reward.svg")
    picture = (tmp_path / "reward.svg").read_text()
    assert "mint 1.0" in picture
    assert "TRL" not in picture
