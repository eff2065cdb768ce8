"""Reverse KL against a float64 reference, values and gradients."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from mint.engine.messages import Datum, DistillDatum, LoraSpec, UserError
from mint.engine.model.base_model import BaseModel
from mint.engine.training import distill
from mint.engine.training.trainer import LoraTrainer
from tests.engine.training.test_trainer import PlainModel, assert_close, gradients, randomise
from tests.tiny import VOCABULARY


def make_data() -> list[DistillDatum]:
    rng = np.random.default_rng(0)
    data = []
    for student, reference, count in ((9, 14, 5), (7, 7, 7)):
        data.append(
            DistillDatum(
                student=rng.integers(0, VOCABULARY, student),
                reference=rng.integers(0, VOCABULARY, reference),
                targets=rng.integers(0, VOCABULARY, count),
                weights=rng.random(count).astype(np.float32),
            )
        )
    return data


def all_logprobs(plain: PlainModel, tokens: np.ndarray, count: int, temperature: float):
    """log p of every token at the last positions, at a temperature."""
    everything = np.tile(np.arange(VOCABULARY), (len(tokens), 1))
    lp = plain.logprobs(Datum(tokens, {"target_tokens": everything}))
    return torch.log_softmax(lp[-count:] / temperature, -1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_value_and_gradient_follow_the_formula(
    base: BaseModel, tiny_model: Path, temperature: float
) -> None:
    run, teacher = (
        LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024),
        LoraTrainer(base, LoraSpec(rank=4, seed=2), 1024),
    )
    randomise(run.adapter)
    randomise(teacher.adapter, seed=9)
    data = make_data()
    losses = run.reverse_kl(teacher.adapter, data, temperature)

    student, reference = (PlainModel(tiny_model, r.adapter) for r in (run, teacher))
    total = torch.zeros((), dtype=torch.float64)
    for datum, loss in zip(data, losses, strict=True):
        count = len(datum.targets)
        p = all_logprobs(student, datum.student, count, temperature)
        r = all_logprobs(reference, datum.reference, count, temperature).detach()
        wanted = (torch.as_tensor(datum.weights) * (p.exp() * (p - r)).sum(-1)).sum()
        assert loss == pytest.approx(wanted.item(), rel=1e-4)
        total = total + wanted
    total.backward()
    for name, pair in gradients(run).items():
        for mine, wanted in zip(pair, student.pairs[name], strict=True):
            assert_close(mine, wanted.grad, name)


@pytest.mark.parametrize("trained", ["all", "unembed"])
def test_a_batch_without_memory_is_split_and_gives_the_same(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch, trained: str
) -> None:
    spec = LoraSpec(rank=4, seed=1, train_attn=trained == "all", train_mlp=trained == "all")
    plain, cramped = (LoraTrainer(base, spec, 1024) for _ in range(2))
    for run in (plain, cramped):
        randomise(run.adapter)
    wanted = plain.reverse_kl(None, make_data(), 1.0)
    compute, calls = distill._logprobs, list[int]()
    failing = {3}  # the second chunk of both datums, after the backward pass of the first chunk

    def logprobs(model, adapter, hidden, temperature):  # type: ignore[no-untyped-def]
        calls.append(len(hidden))
        if len(calls) in failing:
            raise torch.OutOfMemoryError("no room")
        return compute(model, adapter, hidden, temperature)

    monkeypatch.setattr(distill, "_logprobs", logprobs)
    monkeypatch.setattr(type(base.head), "chunk_rows", lambda _: 6)
    assert cramped.reverse_kl(None, make_data(), 1.0) == pytest.approx(wanted, rel=1e-5)
    assert calls == [6, 6, 6, 6, 6, 1, 1, 5, 5] or calls == [6, 6, 6, 5, 5, 6, 6, 1, 1]
    before = {name: (a.clone(), b.clone()) for name, (a, b) in gradients(cramped).items()}
    failing |= {10, 11}  # both datums, then the first of them alone
    with pytest.raises(UserError, match="memory"):
        cramped.reverse_kl(None, make_data(), 1.0)
    for name, pair in before.items():
        for one, other in zip(pair, gradients(cramped)[name], strict=True):
            assert torch.equal(one, other), name
    for name, pair in gradients(plain).items():
        for one, other in zip(pair, gradients(cramped)[name], strict=True):
            assert_close(other, one, name)


def test_a_student_equal_to_its_reference_has_no_loss(base: BaseModel) -> None:
    run = LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024)
    data = [dataclasses.replace(d, reference=d.student) for d in make_data()]
    assert run.reverse_kl(None, data, 1.0) == pytest.approx([0.0, 0.0], abs=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": np.zeros(2, np.float32)}, "weights must be"),
        ({"student": np.zeros(2, np.int64)}, "student_input has 2 tokens"),
        ({"reference": np.full(9, VOCABULARY)}, "outside 0..271"),
    ],
)
def test_a_bad_datum_is_named(base: BaseModel, change: dict[str, object], message: str) -> None:
    run = LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024)
    good, other = make_data()
    with pytest.raises(UserError, match=f"datum 1: .*{message}"):
        run.reverse_kl(None, [good, dataclasses.replace(other, **change)], 1.0)
    assert gradients(run) == {}
