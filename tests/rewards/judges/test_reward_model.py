"""A reward model trained with a live service on a tiny model."""

from __future__ import annotations

import math

import pytest
import torch

import mint
from mint.rewards import Preference, RewardModel, train_reward_model
from mint.rewards.judges.reward_model import bradley_terry_loss
from tests.service_fixture import MODEL


def preferences(words: str) -> list[Preference]:
    return [Preference(f"Say {word}", "good", "bad") for word in words]


def test_a_reward_model_learns_preferences_is_saved_and_scores(service: str) -> None:
    client = mint.ServiceClient(base_url=service, api_key="test")
    training = client.create_lora_training_client(base_model=MODEL, rank=8, seed=1)
    trained = train_reward_model(
        training, preferences("abcdefgh"), preferences("xyz"), epochs=6, learning_rate=1e-2
    )
    assert trained.losses[-1] < trained.losses[0]
    assert trained.accuracy == 1.0
    loaded = RewardModel.load(client, trained.path)
    assert loaded.accuracy(preferences("xyz")) == 1.0
    good, bad = loaded("good", "Say x"), loaded("bad", "Say x")
    assert good is not None
    assert bad is not None
    assert 0.0 < bad.total < good.total < 1.0
    assert good.total == pytest.approx(1 / (1 + math.exp(-good.components["logit"])))


def test_the_loss_is_bradley_and_terrys() -> None:
    logprobs = [torch.tensor([0.0, value]) for value in (-1.0, -2.0, -1.5, -1.0, -3, -1, -1, -3)]
    loss, metrics = bradley_terry_loss([], logprobs)
    expected = -math.log(1 / (1 + math.exp(-1.5))) - math.log(1 / (1 + math.exp(4.0)))
    assert float(loss) == pytest.approx(expected)
    assert metrics == {"accuracy:mean": 0.5}


def test_the_loss_does_not_overflow() -> None:
    logprobs = [torch.tensor([value]) for value in (-5000.0, 0.0, 0.0, -5000.0)]
    assert float(bradley_terry_loss([], logprobs)[0]) == 10_000.0


def test_training_without_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match="needs pairs"):
        train_reward_model(None, [])  # type: ignore[arg-type]
