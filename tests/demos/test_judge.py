"""RL from feedback, end to end: a judge is trained from comparisons, and a policy by the judge."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.service_fixture import LiveService, start_service
from tests.tiny import build_model

from .conftest import SAVED, Recipe, numbers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def live_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    """A service with a tiny model that has room for a question and two answers, byte by byte."""
    folder = tmp_path_factory.mktemp("judge")
    model = build_model(folder / "tiny" / "llama", max_position_embeddings=1024)
    service = start_service(folder / "home", model)
    yield service
    service.stop()


@pytest.fixture(scope="module")
def service(live_service: LiveService) -> str:
    return live_service.base_url


def test_a_judge_learns_from_comparisons_and_a_policy_from_the_judge(recipe: Recipe) -> None:
    told = recipe("train_judge.py", MINT_JUDGE_STEPS="6", MINT_JUDGE_LR="1e-2", MINT_JUDGE_EVAL="8")
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
        MINT_JUDGE_MODEL=path,
        MINT_RL_STEPS="2",
        MINT_RL_BATCH="2",
        MINT_RL_EVAL_EVERY="2",
        MINT_RL_HOLDOUT_SIZE="4",
    )
    assert numbers(r"Step (\d): pass@1=", told) == [0, 2]
    assert len(re.findall(r"^Step \d: beats the reference=[\d.]+%, datums=\d+$", told, re.M)) == 2
    assert re.search(r"^By the judge: pass@1=.* on 4 held-out prompts$", told, re.M)
