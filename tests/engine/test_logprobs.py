"""Entropies, temperatures and kept tokens: values and gradients against a plain float64 model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mint.engine import head
from mint.engine.messages import Datum, ForwardBackward, ForwardBackwardResult, LoraSpec, UserError
from mint.engine.model import BaseModel
from mint.engine.trainer import LoraTrainer
from tests.tiny import VOCABULARY, build_model

from .test_trainer import PlainModel, assert_close, gradients, group, randomise


def with_kept(data: list[Datum], width: int = 9) -> list[Datum]:
    """Every third position chose among all tokens, the others among a few and their target."""
    rng = np.random.default_rng(3)
    found = []
    for datum in data:
        kept = np.full((len(datum.tokens), width), -1)
        for at, target in enumerate(datum.inputs["target_tokens"]):
            if at % 3:
                others = rng.choice(np.delete(np.arange(VOCABULARY), target), at % width, False)
                kept[at, : 1 + len(others)] = rng.permutation([target, *others])
        found.append(Datum(datum.tokens, {**datum.inputs, "kept_tokens": kept}))
    return found


def reference(
    plain: PlainModel, data: list[Datum], temperature: float, coefficient: float
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """Loss, entropy term, logprobs and entropies, one position at a time, as in a notebook."""
    total = bonus = torch.zeros((), dtype=torch.float64)
    logprobs, entropies = [], []
    for datum in data:
        kept = datum.inputs.get("kept_tokens")
        lp, entropy = [], []
        for at, logits in enumerate(plain.logits(datum)):
            chosen = np.arange(VOCABULARY) if kept is None else kept[at][kept[at] >= 0]
            chosen = chosen if len(chosen) else np.arange(VOCABULARY)
            p = torch.softmax(logits[torch.as_tensor(chosen)] / temperature, 0)
            [place] = np.flatnonzero(chosen == datum.inputs["target_tokens"][at])
            lp.append(torch.log(p[place]))
            entropy.append(-(p * torch.log(p)).sum())
        lp_T, entropy_T = torch.stack(lp), torch.stack(entropy)
        x = {name: torch.as_tensor(value).double() for name, value in datum.inputs.items()}
        total = total - (x["weights"] * torch.exp(lp_T - x["logprobs"]) * x["advantages"]).sum()
        bonus = bonus - coefficient * (x["weights"] * entropy_T).sum()
        logprobs.append(lp_T.detach())
        entropies.append(entropy_T.detach())
    return total + bonus, bonus, logprobs, entropies


def compare(
    run: LoraTrainer, plain: PlainModel, data: list[Datum], config: dict[str, Any]
) -> ForwardBackwardResult:
    """Train with the engine and with the reference, and compare all that comes out."""
    [result] = run.forward_backward([ForwardBackward(data, "importance_sampling", config)])
    temperature, coefficient = config.get("temperature", 1.0), config.get("entropy_coef", 0.0)
    total, bonus, logprobs, entropies = reference(plain, data, temperature, coefficient)
    total.backward()
    assert result.metrics["loss:sum"] == pytest.approx(total.item(), rel=1e-4)
    if coefficient:
        assert result.metrics["entropy_loss:sum"] == pytest.approx(bonus.item(), rel=1e-4)
    for mine, theirs in zip(result.logprobs, logprobs, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)
    for mine, theirs in zip(result.entropy, entropies, strict=bool(config.get("entropy"))):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)
    for name, pair in gradients(run).items():
        for mine, theirs in zip(pair, plain.pairs[name], strict=True):
            assert_close(mine, theirs.grad, name)
    return result


CONFIGS = {
    "entropy": {"entropy_coef": 0.7, "entropy": 1.0},
    "temperature": {"temperature": 0.6},
    "both": {"temperature": 1.7, "entropy_coef": -0.4, "entropy": 1.0},
}


@pytest.mark.parametrize("chosen", ["all", "kept"])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "granite"])
def test_values_and_gradients_are_those_of_a_plain_float64_model(
    family: str, name: str, chosen: str, tmp_path: Path
) -> None:
    """An output layer of its own, one tied to the embedding, a soft cap, a factor."""
    folder = build_model(tmp_path / family, family)
    model = BaseModel.load(family, folder, device="cpu", precision="exact")
    run = LoraTrainer(model, LoraSpec(rank=4, seed=1), 1024)
    randomise(run.adapter)
    assert "lm_head" in run.adapter.pairs
    data = group(seed=5) if chosen == "all" else with_kept(group(seed=5))
    compare(run, PlainModel(folder, run.adapter), data, CONFIGS[name])


@pytest.mark.parametrize("chosen", ["all", "kept"])
def test_chunks_of_logits_and_a_frozen_output_layer_change_nothing(
    chosen: str, tiny_model: Path, base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "_CHUNK_BYTES", 0)
    assert base.head.chunk_rows() == 16
    run = LoraTrainer(base, LoraSpec(rank=4, seed=1, train_unembed=False), 1024)
    randomise(run.adapter)
    data = group(seed=6, answers=6) if chosen == "all" else with_kept(group(seed=6, answers=6))
    compare(run, PlainModel(tiny_model, run.adapter), data, CONFIGS["both"])


def test_entropies_have_the_shape_of_the_targets_and_come_forward_only(base: BaseModel) -> None:
    run = LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024)
    data = [
        Datum(np.array([1, 2, 3]), {"target_tokens": np.array([[2, 3], [4, 5], [6, 7]])}),
        Datum(np.array([1, 2]), {"target_tokens": np.array([[9], [8]])}),
    ]
    asked = ForwardBackward(data, "cross_entropy", {"entropy": 1.0}, forward_only=True)
    [result] = run.forward_backward([asked])
    assert [each.shape for each in result.entropy] == [(3, 2), (2, 1)]
    np.testing.assert_allclose(result.entropy[0][:, 0], result.entropy[0][:, 1])
    np.testing.assert_allclose(result.entropy[0][0, 0], result.entropy[1][0, 0], rtol=1e-5)
    assert not gradients(run)
    [plain] = run.forward_backward([ForwardBackward(data, "cross_entropy", forward_only=True)])
    assert plain.entropy == []
    assert result.metrics == plain.metrics


def test_a_setting_that_was_used_is_acknowledged(base: BaseModel) -> None:
    run = LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024)
    data = with_kept(group(1))
    config: dict[str, Any] = {"temperature": 0.5, "entropy_coef": 0.1}
    [result] = run.forward_backward([ForwardBackward(data, "ppo", config)])
    assert result.metrics["temperature:mean"] == 0.5
    assert result.metrics["kept_tokens:sum"] == sum(
        (datum.inputs["kept_tokens"] >= 0).any(1).sum() for datum in data
    )
    [plain] = run.forward_backward([ForwardBackward(group(1), "ppo")])
    assert plain.metrics.keys() == {"loss:sum"}


@pytest.mark.parametrize(
    ("config", "kept", "text"),
    [
        ({"temperature": 0.0}, None, "must be above 0: the one that the answers were sampled at"),
        ({"entropy": 0.5}, None, "'entropy'.* is 0.5; it must be 0 or 1"),
        ({}, [[4, 5], [3, 6]], r"position 0 do not have its target, 2\. Pass all tokens"),
        ({}, [[2, 2], [3, 6]], "position 0 have a token twice"),
        ({}, [[2, -1]], r"shape \[1, 2\] and target_tokens \[2\]"),
        ({}, [[2, 9999], [3, -1]], r"kept_tokens\[1\] is 9999"),
        ({}, [[2, -2], [3, -1]], r"kept_tokens\[1\] is -2"),
    ],
)
def test_mistakes_are_said(
    base: BaseModel, config: dict[str, Any], kept: list[list[int]] | None, text: str
) -> None:
    run = LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024)
    inputs: dict[str, Any] = {"target_tokens": np.array([2, 3])}
    if kept is not None:
        inputs["kept_tokens"] = np.array(kept)
    with pytest.raises(UserError, match=text):
        run.forward_backward(
            [ForwardBackward([Datum(np.array([1, 2]), inputs)], "cross_entropy", config)]
        )


def test_datums_with_and_without_kept_tokens_train_together(
    base: BaseModel, tiny_model: Path
) -> None:
    run = LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024)
    randomise(run.adapter)
    plain, narrow, wide = group(8), with_kept(group(8), 5), with_kept(group(8), 9)
    compare(
        run,
        PlainModel(tiny_model, run.adapter),
        [plain[0], narrow[1], wide[2], *plain[3:]],
        CONFIGS["both"],
    )
