"""The unmodified tinker-cookbook 0.5.8 runs its recipes to their end on this service.

Every recipe below runs by its own command line, with a tiny model under a public name and a few
lines of local data.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.service_fixture import start_service

from .conftest import PUBLIC_NAME
from .cookbook_data import lay_out
from .environments import COOKBOOK
from .talker import build_talker

pytestmark = pytest.mark.slow

TEACHER = "Qwen/Qwen3.5-9B"
WRITER = "Qwen/Qwen3.6-35B-A3B"  # the model that create_data names, whatever its arguments are
POLICY = [f"model_name={PUBLIC_NAME}"]
SMALL = [*POLICY, "lora_rank=4", "learning_rate=1e-3"]
NEW = "behavior_if_log_dir_exists=delete"
AGAIN = "behavior_if_log_dir_exists=resume"

ARITHMETIC = [
    *["tinker_cookbook.recipes.math_rl.train", *SMALL],
    *["groups_per_batch=3", "group_size=8", "max_tokens=12"],
]
RECIPES: dict[str, list[str]] = {
    "sft_loop": [
        *["tinker_cookbook.recipes.sl_loop", *POLICY, "lora_rank=4", "learning_rate=1e-2"],
        *["batch_size=2", "save_every=2"],
    ],
    "rl_loop": [
        *["tinker_cookbook.recipes.rl_loop", *SMALL, "batch_size=4", "group_size=8"],
        *["max_tokens=24", "max_steps=2"],
    ],
    "arithmetic": [*ARITHMETIC, "max_steps=2", "compute_post_kl=true", NEW],
    "arithmetic_resumed": [*ARITHMETIC, "max_steps=3", AGAIN],
    "arithmetic_off_policy": [*ARITHMETIC, "max_steps=3", "max_steps_off_policy=1", NEW],
    "dpo": [
        *["tinker_cookbook.recipes.preference.dpo.train", *POLICY, "learning_rate=1e-3"],
        *["batch_size=2", "max_steps=3", NEW],
    ],
    "prompt_distillation_data": [
        *["tinker_cookbook.recipes.prompt_distillation.create_data", "output_file=distilled.jsonl"],
    ],
    "prompt_distillation": [
        *["tinker_cookbook.recipes.prompt_distillation.train", *SMALL, "batch_size=1"],
        *["file_path=distilled.jsonl", "max_steps=3", "eval_every=0", "save_every=1", NEW],
    ],
    "on_policy_distillation": [
        *["tinker_cookbook.recipes.distillation.on_policy_distillation", *SMALL],
        *[f"teacher_model={TEACHER}", "groups_per_batch=2", "group_size=2", "max_tokens=16"],
        *["max_steps=2", NEW],
    ],
    "self_distillation": [
        *["tinker_cookbook.recipes.sdft.train", *SMALL, "dataset=toolalpaca"],
        *["groups_per_batch=2", "max_tokens=16", "topk=4", "max_steps=2"],
        *["eval_every=0", NEW],  # its evaluation takes its own dataset for one of another shape
    ],
    "guess_number": [
        *["tinker_cookbook.recipes.multiplayer_rl.guess_number.train", *POLICY],
        *["renderer_name=qwen3_disable_thinking", "batch_size=1", "group_size=4"],
        *["max_tokens=24", "eval_every=0", "max_steps=2", NEW],
    ],
    "twenty_questions": [
        *["tinker_cookbook.recipes.multiplayer_rl.twenty_questions.train", *POLICY],
        *["renderer_name=qwen3_disable_thinking", "batch_size=1", "group_size=2"],
        *["max_tokens=24", "eval_every=0", "max_steps=1", NEW],
    ],
    "tic_tac_toe": [
        *["tinker_cookbook.recipes.multiplayer_rl.text_arena.train", *POLICY],
        *["renderer_name=qwen3_disable_thinking", "batch_size=4", "num_train_datapoints=8"],
        *["num_test_datapoints=2", "max_tokens=24", "eval_every=2", "max_steps=2", NEW],
    ],
}
WITHOUT_LOG = {"prompt_distillation_data"}
SAME_LOG = {"arithmetic_resumed": "arithmetic"}


def log_path(name: str) -> str:
    return f"logs/{SAME_LOG.get(name, name)}"


@dataclass(frozen=True)
class Recipes:
    """How the recipes ended, and the files they left."""

    folder: Path
    failures: dict[str, str]

    def metrics(self, name: str) -> list[dict[str, Any]]:
        """What a recipe logged, step by step, if it ran to its end."""
        assert self.failures[name] == "", self.failures[name]
        return [json.loads(line) for line in self._lines(name, "metrics.jsonl")]

    def checkpoints(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._lines(name, "checkpoints.jsonl")]

    def _lines(self, name: str, file: str) -> list[str]:
        return (self.folder / log_path(name) / file).read_text().splitlines()


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Recipes:
    folder = tmp_path_factory.mktemp("cookbook")
    if not COOKBOOK.python.exists():
        pytest.skip("the cookbook is not installed; type: make conformance-envs")
    names = [PUBLIC_NAME, TEACHER, WRITER]
    model = build_talker(folder / "talker")
    lay_out(folder, model, names)
    commands = {
        name: [*command, *([] if name in WITHOUT_LOG else [f"log_path={log_path(name)}"])]
        for name, command in RECIPES.items()
    }
    service = start_service(folder / "home", None, aliases=dict.fromkeys(names, model))
    try:
        printed = COOKBOOK.run(
            "recipes.py", json.dumps(commands), folder=folder, TINKER_BASE_URL=service.base_url
        )
    finally:
        service.stop()
    return Recipes(folder, json.loads(printed))


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipe_runs_to_its_end(recipes: Recipes, name: str) -> None:
    assert recipes.failures[name] == "", recipes.failures[name]
    if name not in WITHOUT_LOG:
        last = recipes.checkpoints(name)[-1]
        assert last["name"] == "final"
        assert last["state_path"].startswith("tinker://")
        assert last["sampler_path"].startswith("tinker://")


def test_supervised_fine_tuning_learns(recipes: Recipes) -> None:
    losses = [step["train_mean_nll"] for step in recipes.metrics("sft_loop")]
    assert len(losses) == 4
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["rl_loop", "arithmetic", "arithmetic_off_policy", "guess_number"])
def test_reinforcement_learning_steps_on_a_gradient(recipes: Recipes, name: str) -> None:
    assert any(step.get("grad_norm", 0) > 0 for step in recipes.metrics(name))


def test_a_resumed_recipe_continues_where_it_stopped(recipes: Recipes) -> None:
    assert [step["progress/batch"] for step in recipes.metrics("arithmetic_resumed")] == [0, 1, 2]
    runs = [checkpoint["state_path"] for checkpoint in recipes.checkpoints("arithmetic_resumed")]
    assert len(set(runs)) == len(runs) == 2


def test_dpo_starts_at_ln_2_without_a_margin(recipes: Recipes) -> None:
    first, *_, last = recipes.metrics("dpo")
    assert first["dpo_loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert first["margin"] == pytest.approx(0.0, abs=1e-6)
    assert last["dpo_loss"] < first["dpo_loss"]
    assert last["margin"] > 0


def test_prompt_distillation_trains_on_what_the_model_wrote(recipes: Recipes) -> None:
    written = (recipes.folder / "distilled.jsonl").read_text().splitlines()
    assert all(json.loads(row)["messages"][1]["content"] == "fr" for row in written)
    assert len(recipes.metrics("prompt_distillation")) == min(3, len(written))


def test_the_student_starts_as_its_teacher(recipes: Recipes) -> None:
    first = recipes.metrics("on_policy_distillation")[0]
    assert first["teacher_kl"] == pytest.approx(0.0, abs=1e-4)
