"""RL from feedback, end to end: a judge is trained from comparisons, and a policy by the judge."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tiny import build_model

from .conftest import SAVED, Recipe, numbers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def roomy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that has room for a question and two answers, byte by byte."""
    folder = tmp_path_factory.mktemp("judge")
    return build_model(folder / "tiny" / "llama", max_position_embeddings=1024)


def test_a_judge_learns_from_comparisons_and_a_policy_from_the_judge(
    recipe: Recipe, roomy_model: Path
) -> None:
    model = {"MINT_BASE_MODEL": str(roomy_model)}
    steps = {"MINT_JUDGE_STEPS": "6", "MINT_JUDGE_LR": "1e-2", "MINT_JUDGE_EVAL": "8"}
    told = recipe("train_judge.py", **model, **steps)
    losses = numbers(r"step \d+: loss per verdict=([\d.]+)", told)
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    for when in ("Before", "After"):
        assert re.search(
            rf"^{when}: accuracy=[\d.]+%, confidence=[\d.]+% on 8 held-out pairs$", told, re.M
        )
    [path] = SAVED.findall(told)
    assert "/sampler_weights/" in path

    told = recipe(
        "rl/adapters/preference_chat.py",
        **model,
        MINT_JUDGE_MODEL=path,
        MINT_RL_STEPS="2",
        MINT_RL_BATCH="2",
        MINT_RL_EVAL_EVERY="2",
        MINT_RL_HOLDOUT_SIZE="4",
    )
    assert numbers(r"Step (\d): pass@1=", told) == [0, 2]
    assert len(re.findall(r"^Step \d: beats the reference=[\d.]+%, datums=\d+$", told, re.M)) == 2
    assert re.search(r"^By the judge: pass@1=.* on 4 held-out prompts$", told, re.M)
