"""The recipes as people run them: a process of their own, on a service with a tiny model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mint.watch.directory.recorder import METRICS, read_rows
from tests.service_fixture import MODEL, LiveService

from .conftest import DEMOS, SAVED, Recipe, numbers

pytestmark = pytest.mark.slow

RECIPES = sorted(path.name for path in DEMOS.glob("*.py"))


def test_sft_teaches_the_demonstrations_and_rl_starts_from_them(recipe: Recipe) -> None:
    printed = recipe(
        "sft_then_rl.py",
        MINT_SFT_STEPS="20",
        MINT_SFT_LR="1e-2",
        MINT_SFT_EVAL="8",
        MINT_RL_STEPS="2",
        MINT_RL_MAX_TOKENS="6",
    )
    losses = numbers(r"SFT step \d+: loss per token=([\d.]+)", printed)
    assert len(losses) == 20
    assert losses[-1] < losses[0] / 2
    told = re.findall(r"^(Before|After SFT|After RL): form=[\d.]+% accuracy=[\d.]+%", printed, re.M)
    assert told == ["Before", "After SFT", "After RL"]
    assert numbers(r"RL step (\d): form=", printed) == [1, 2]
    assert "Saved: tinker://" in printed.split("After SFT")[0]
    assert SAVED.search(printed)


def test_a_cold_start_teaches_solutions_and_mint_train_starts_from_it(
    recipe: Recipe, service: str, tmp_path: Path
) -> None:
    pytest.importorskip("reasoning_gym")
    overrides = ["+experiment=countdown", f"model.base_model={MODEL}", "model.rank=4"]
    printed = recipe(
        "cold_start.py",
        *overrides,
        MINT_SFT_EXAMPLES="24",
        MINT_SFT_EPOCHS="10",
        MINT_SFT_BATCH="24",
        MINT_SFT_LR="1e-2",
    )
    losses = numbers(r"loss per token=([\d.]+)", printed)
    assert losses[-1] < losses[0] / 2
    saved = SAVED.search(printed)
    assert saved
    folder = tmp_path / "run"
    short = ["training.steps=1", "training.batch_size=2", "evaluation.eval_every=0"]
    short += [f"model.start_from={saved[1]}", f"logging.run_dir={folder}"]
    trained = subprocess.run(
        [sys.executable, "-m", "mint.cli", "train", *overrides, *short],
        env={**os.environ, "MINT_BASE_URL": service},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert trained.returncode == 0, trained.stdout + trained.stderr
    (row,) = read_rows(folder / METRICS)
    assert row["step"] == 1


def test_dpo_makes_chosen_answers_likelier_than_rejected_ones(recipe: Recipe) -> None:
    printed = recipe("preference_dpo.py", MINT_DPO_STEPS="6", MINT_DPO_LR="1e-2")
    losses = numbers(r"step \d+: loss=([\d.]+)", printed)
    assert losses[0] == pytest.approx(0.693, abs=2e-3), "the policy begins as the reference"
    assert losses[-1] < losses[0]
    assert numbers(r"step 6: loss=[\d.]+ margin=([-\d.]+)", printed)[0] > 0
    assert re.search(r"^20 held-out pairs: margin=[-\d.]+ accuracy=[\d.]+%$", printed, re.M)
    assert re.search(r"^Before: [\d.]+ letters per word", printed, re.M)
    assert re.search(r"^After: [\d.]+ letters per word", printed, re.M)
    assert SAVED.search(printed)


def test_distillation_brings_the_student_to_its_teacher(recipe: Recipe) -> None:
    printed = recipe(
        "distillation.py",
        MINT_DISTILL_STEPS="8",
        MINT_DISTILL_LR="3e-3",
        MINT_DISTILL_EVAL="4",
    )
    kl = numbers(r"step \d+: KL per answer=([-\d.]+)", printed)
    assert len(kl) == 8
    assert sum(kl[-2:]) < sum(kl[:2])
    for who in ("Teacher", "Student before", "Student after"):
        assert re.search(rf"^{who}: accuracy=[\d.]+% on 4 held-out countries$", printed, re.M)
    assert SAVED.search(printed)


def test_a_killed_run_ends_like_an_uninterrupted_one(recipe: Recipe) -> None:
    printed = recipe("resume.py", MINT_RL_BATCH="2", MINT_RL_MAX_TOKENS="4", MINT_RL_STEPS="5")
    whole, killed, again = re.split(r"^(?:Killed after|The same command).*$", printed, flags=re.M)
    assert "Step 5/" in whole
    assert "  killed\n" in killed
    assert "Step 5" not in killed
    assert "Resuming after step 2." in again
    assert "metrics.jsonl: [1, 2, 3, 4, 5]" in again
    assert "Rollouts with the same prompt: 40 of 40" in again
    assert "Rollouts with the same response: 40 of 40" in again
    [difference] = numbers(r"Largest difference of any metric: (\S+)", printed)
    assert difference < 1e-3


def test_uploaded_weights_are_the_same_to_the_last_bit_and_train_on(
    recipe: Recipe, other_service: LiveService
) -> None:
    printed = recipe("upload_weights.py", MINT_UPLOAD_URL=other_service.base_url)
    assert "Logprobs from the archive: bit-equal" in printed
    assert "Logprobs from the folder: bit-equal" in printed
    assert "The run that moved is the same." in printed

    def losses(where: str) -> str:
        return re.findall(rf"^{where}: loss (.*)$", printed, re.M)[0]

    stayed, went, restarted = (
        losses("First service, continued"),
        losses("Second service, from the archive"),
        losses("Second service, from the folder"),
    )
    assert went == stayed
    assert restarted.split()[0] == stayed.split()[0]
    assert restarted != stayed, "its optimizer is a fresh one"


@pytest.mark.parametrize("name", RECIPES)
def test_the_settings_of_the_docstring_are_those_of_the_code(name: str) -> None:
    source = (DEMOS / name).read_text()
    documented = dict(re.findall(r"^    (MINT_\w+) +(\S+)", source.split('"""')[1], re.M))
    read = dict(re.findall(r'os\.environ\.get\("(MINT_\w+)", "([^"]*)"\)', source))
    assert read
    assert {key: documented[key] for key in read} == read


def test_the_readme_has_every_recipe() -> None:
    readme = (DEMOS / "README.md").read_text()
    for name in RECIPES:
        assert f"({name})" in readme
        assert re.search(rf"python demos/{name}", readme)
