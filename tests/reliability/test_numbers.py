"""Numbers that overflow: an operation that would produce them changes nothing and fails."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mint.engine.engine import Engine
from mint.engine.messages import (
    AdamSettings,
    Datum,
    ForwardBackward,
    LoraSpec,
    SampleRequest,
    UserError,
)
from mint.engine.model.base_model import BaseModel
from mint.engine.training.trainer import LoraTrainer

TOKENS = np.array([5, 6, 7, 8])


@pytest.fixture(scope="module")
def base(tiny_model: Path) -> BaseModel:
    return BaseModel.load("tiny", tiny_model, device="cpu", precision="exact")


@pytest.fixture
def trainer(base: BaseModel) -> LoraTrainer:
    """A trainer after one step: it has momentum."""
    trainer = LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024)
    trainer.forward_backward([gradient()])
    trainer.optim_step(AdamSettings(learning_rate=0.01))
    return trainer


def gradient(weight: float = 1.0) -> ForwardBackward:
    weights = np.full(3, weight, np.float32)
    datum = Datum(TOKENS[:-1], {"target_tokens": TOKENS[1:], "weights": weights})
    return ForwardBackward([datum], "cross_entropy")


def state(trainer: LoraTrainer, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    trainer.save(folder)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


TOO_FAR = AdamSettings(learning_rate=1e15, weight_decay=1e15)  # the weights times 1e30


@pytest.mark.parametrize("params", [AdamSettings(learning_rate=1e300), TOO_FAR])
def test_a_step_that_overflows_changes_nothing(
    trainer: LoraTrainer, tmp_path: Path, params: AdamSettings
) -> None:
    with torch.no_grad():
        for parameter in trainer.adapter.parameters():
            parameter.mul_(1e12)
    for parameter in trainer.adapter.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = state(trainer, tmp_path / "before")
    kept = [parameter.grad.clone() for parameter in trainer.adapter.parameters()]
    with pytest.raises(UserError, match=r"at most|was rejected.*\[not_finite\]$"):
        trainer.optim_step(replace(params, grad_clip_norm=1e-3))
    assert state(trainer, tmp_path / "after") == before
    for parameter, gradient_before in zip(trainer.adapter.parameters(), kept, strict=True):
        assert torch.equal(parameter.grad, gradient_before), "the step can be sent again"
    metrics = trainer.optim_step(AdamSettings(learning_rate=0.01))
    assert np.isfinite(metrics["grad_norm"])


def test_a_step_after_a_refused_one_is_the_step_without_it(base: BaseModel, tmp_path: Path) -> None:
    states = []
    for is_disturbed in (False, True):
        trainer = LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024)
        for _ in range(2):
            trainer.forward_backward([gradient()])
            if is_disturbed:
                with pytest.raises(UserError):
                    trainer.optim_step(AdamSettings(learning_rate=1e300))
            trainer.optim_step(AdamSettings(learning_rate=0.01, grad_clip_norm=0.1))
        states.append(state(trainer, tmp_path / str(is_disturbed)))
    assert states[0] == states[1]


def test_a_gradient_whose_norm_is_infinite_is_refused(trainer: LoraTrainer, tmp_path: Path) -> None:
    before = state(trainer, tmp_path / "before")
    trainer.forward_backward([gradient()])
    kept = [parameter.grad.clone() for parameter in trainer.adapter.parameters()]
    with pytest.raises(UserError, match=r"not finite.*\[not_finite\]$"):
        trainer.forward_backward([gradient(weight=1e25)])
    for parameter, gradient_before in zip(trainer.adapter.parameters(), kept, strict=True):
        assert torch.equal(parameter.grad, gradient_before)
    assert state(trainer, tmp_path / "after") == before
    assert np.isfinite(trainer.optim_step(AdamSettings())["grad_norm"])


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo"])
def test_advantages_of_1e38_are_refused_and_change_nothing(
    trainer: LoraTrainer, tmp_path: Path, loss: str
) -> None:
    """The largest power of ten that a float32 holds: each advantage is finite by itself."""
    [scored] = trainer.forward_backward([gradient()])[0].logprobs
    inputs = {
        "target_tokens": TOKENS[1:],
        "logprobs": np.asarray(scored, np.float32),
        "advantages": np.full(3, 1e38, np.float32),
    }
    kept = [parameter.grad.clone() for parameter in trainer.adapter.parameters()]
    before = state(trainer, tmp_path / "before")
    with pytest.raises(UserError, match=r"\[not_finite\]$"):
        trainer.forward_backward([ForwardBackward([Datum(TOKENS[:-1], inputs)], loss)])
    for parameter, gradient_before in zip(trainer.adapter.parameters(), kept, strict=True):
        assert torch.equal(parameter.grad, gradient_before)
    assert state(trainer, tmp_path / "after") == before
    metrics = trainer.optim_step(AdamSettings(learning_rate=0.01))
    assert np.isfinite(metrics["grad_norm"])


def adapter_times(engine: Engine, folder: Path, factor: float) -> str:
    """Save a trained adapter with another scale; returns its folder."""
    engine.create_run("run", LoraSpec(rank=4, seed=1))
    engine.forward_backward("run", [gradient()])
    engine.optim_step("run", AdamSettings(learning_rate=0.1))
    engine.save_adapter("run", str(folder))
    config = folder / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "lora_alpha": factor * 32}))
    return str(folder)


def test_an_adapter_of_nan_is_not_loaded(base: BaseModel, tmp_path: Path) -> None:
    engine = Engine(base)
    folder = adapter_times(engine, tmp_path, float("nan"))
    with pytest.raises(UserError, match="contain NaN"):
        engine.create_sampler("broken", folder=folder)


@pytest.mark.parametrize("prompt_logprobs", [False, True])
def test_a_broken_adapter_is_an_error_and_not_nan(
    base: BaseModel, tmp_path: Path, prompt_logprobs: bool
) -> None:
    engine = Engine(base)
    engine.create_sampler("broken", folder=adapter_times(engine, tmp_path, 1e38))
    engine.create_sampler("base")
    engine.sample(1, "broken", SampleRequest(TOKENS, max_tokens=3, prompt_logprobs=prompt_logprobs))
    engine.sample(2, "base", SampleRequest(TOKENS, max_tokens=3, stop=[]))
    jobs = []
    while not engine.sampling.is_idle:
        jobs += engine.sampling.step()
    failed, good = sorted(jobs, key=lambda job: job.ticket)
    assert isinstance(failed.error, UserError)
    assert "NaN" in str(failed.error)
    assert len(good.result().sequences[0].tokens) == 3, "others are not touched"


@pytest.mark.parametrize(
    "extreme",
    [
        {"repetition_penalty": 1e-300},
        {"frequency_penalty": -3e38},
        {"logit_bias": {1: 3e38, 2: 3e38}, "temperature": 0.01},
        {"temperature": 1e-44},
    ],
)
def test_parameters_that_overflow_are_named_and_fail_alone(
    base: BaseModel, extreme: dict[str, Any]
) -> None:
    engine = Engine(base)
    engine.create_sampler("base")
    engine.sample(1, "base", SampleRequest(TOKENS, max_tokens=3, seed=1, stop=[], **extreme))
    engine.sample(2, "base", SampleRequest(TOKENS, max_tokens=3, seed=1, stop=[]))
    jobs = []
    while not engine.sampling.is_idle:
        jobs += engine.sampling.step()
    failed, good = sorted(jobs, key=lambda job: job.ticket)
    assert isinstance(failed.error, UserError)
    assert "use values closer to the defaults" in str(failed.error)
    assert len(good.result().sequences[0].tokens) == 3, "others are not touched"
