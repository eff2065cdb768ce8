"""Samples that advance in the pauses of a training pass: neither changes the other's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mint.engine.engine import Engine
from mint.engine.messages import DistillDatum, ForwardBackward, LoraSpec, SampleRequest
from mint.engine.model.base_model import BaseModel
from mint.engine.model.layers import decoder_layers
from mint.engine.model.pauses import pause, pausing
from tests.engine.conftest import ids
from tests.engine.training.test_trainer import group, randomise
from tests.tiny import FAMILIES, build_model

KERNEL_SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32}
REQUESTS = [
    SampleRequest(ids("a first prompt"), 3, 12, seed=1, stop=[]),
    SampleRequest(ids("and another"), 2, 9, seed=2, temperature=0.7, stop=[]),
]


class Sampling:
    """Requests to a sampler of a run and to the base model, advanced step by step."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.results: dict[int, Any] = {}
        self.pauses = self.steps = 0
        for ticket, request in enumerate(REQUESTS):
            engine.sample(2 * ticket, "frozen", request)
            engine.sample(2 * ticket + 1, "base", request)

    def advance(self) -> None:
        self.pauses += 1
        if not self._engine.sampling.is_idle:
            self.steps += 1
            self.results |= {job.ticket: job.result() for job in self._engine.sampling.step()}

    def finish(self) -> dict[int, Any]:
        while not self._engine.sampling.is_idle:
            self.advance()
        return self.results


def engine_of(model: BaseModel) -> Engine:
    """An engine with two equal runs, and samplers of one and of the base model."""
    engine = Engine(model)
    for run in ("alone", "beside"):
        engine.create_run(run, LoraSpec(rank=4, seed=1))
        randomise(engine._runs[run].adapter)
    engine.create_sampler("frozen", "alone")
    engine.create_sampler("base")
    return engine


def assert_same_answers(mine: dict[int, Any], theirs: dict[int, Any]) -> None:
    assert mine.keys() == theirs.keys()
    for ticket, result in mine.items():
        for one, other in zip(result.sequences, theirs[ticket].sequences, strict=True):
            np.testing.assert_array_equal(one.tokens, other.tokens)
            np.testing.assert_array_equal(one.logprobs, other.logprobs)


def assert_same_gradients(engine: Engine) -> None:
    alone, beside = (engine._runs[run].adapter.parameters() for run in ("alone", "beside"))
    for mine, theirs in zip(alone, beside, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)
        assert mine.grad.any()


@pytest.mark.parametrize(
    ("family", "precision", "recompute"),
    [
        *((family, "exact", False) for family in FAMILIES),
        ("llama", "bfloat16", False),
        ("qwen3", "bfloat16", False),
        ("llama", "bfloat16", True),
        ("gemma2", "exact", True),
    ],
)
def test_gradients_and_answers_are_those_of_each_alone(
    family: str, precision: str, recompute: bool, tmp_path: Path
) -> None:
    sizes = KERNEL_SIZES if precision == "bfloat16" else {}
    folder = build_model(tmp_path / family, family, **sizes)
    model = BaseModel.load(family, folder, device="cpu", precision=precision)
    engine = engine_of(model)
    if recompute:
        for run in ("alone", "beside"):
            engine._runs[run].budget = 4
    operations = [ForwardBackward(group(0), "importance_sampling")]
    [wanted] = engine.forward_backward("alone", operations)
    answers = Sampling(engine).finish()

    sampling = Sampling(engine)
    with pausing(sampling.advance):
        [found] = engine.forward_backward("beside", operations)
    layers = len(decoder_layers(model.trunk))
    # Before each layer and the logits, and at the gradient of what enters all layers but the first.
    assert sampling.pauses >= 2 * layers
    assert sampling.steps >= min(sampling.pauses, max(r.max_tokens or 0 for r in REQUESTS))
    assert_same_answers(sampling.finish(), answers)
    for mine, theirs in zip(found.logprobs, wanted.logprobs, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert_same_gradients(engine)


def test_a_distillation_pauses_too(base: BaseModel) -> None:
    engine = engine_of(base)
    text = ids("a text to learn from")
    data = [DistillDatum(text, text[3:], text[-4:], np.ones(4, np.float32))]
    wanted = engine.forward_backward_reverse_kl("alone", "base", data, 1.0)
    answers = Sampling(engine).finish()
    sampling = Sampling(engine)
    with pausing(sampling.advance):
        found = engine.forward_backward_reverse_kl("beside", "base", data, 1.0)
    assert found == wanted
    assert sampling.pauses > 2 * len(decoder_layers(base.trunk))
    assert_same_answers(sampling.finish(), answers)
    assert_same_gradients(engine)


def test_forward_alone_pauses_too(base: BaseModel) -> None:
    engine = engine_of(base)
    sampling = Sampling(engine)
    with pausing(sampling.advance):
        engine.forward_backward("alone", [ForwardBackward(group(0), "cross_entropy", {}, True)])
    assert sampling.pauses > len(decoder_layers(base.trunk))


def test_what_is_done_in_a_pause_does_not_pause(base: BaseModel) -> None:
    depth: list[int] = []

    def work() -> None:
        depth.append(len(depth))
        pause()

    with pausing(work):
        pause()
        pause()
    pause()
    assert depth == [0, 1]


def test_an_error_in_a_pause_fails_the_operation_and_adds_no_gradient(base: BaseModel) -> None:
    engine = engine_of(base)
    calls = 0

    def fail_late() -> None:
        nonlocal calls
        calls += 1
        if calls == 2 * len(decoder_layers(base.trunk)):
            raise OSError("the channel is closed")

    with pausing(fail_late), pytest.raises(OSError, match="channel"):
        engine.forward_backward("alone", [ForwardBackward(group(0), "cross_entropy")])
    assert all(p.grad is None for p in engine._runs["alone"].adapter.parameters())
    engine.forward_backward("alone", [ForwardBackward(group(0), "cross_entropy")])
    engine.forward_backward("beside", [ForwardBackward(group(0), "cross_entropy")])
    assert_same_gradients(engine)
