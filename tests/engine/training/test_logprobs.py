"""Entropies, temperatures and kept tokens: values and gradients against a plain float64 model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mint.engine.messages import (
    Datum,
    ForwardBackward,
    ForwardBackwardResult,
    LoraSpec,
    SampleRequest,
    UserError,
)
from mint.engine.model import head
from mint.engine.model.base_model import BaseModel
from mint.engine.model.context import NoLora
from mint.engine.training.logprobs import Targets, score_targets
from mint.engine.training.trainer import LoraTrainer
from tests.engine.conftest import ids, sample
from tests.engine.sampling.test_sampler import trained_engine
from tests.engine.training.test_trainer import PlainModel, assert_close, gradients, group, randomise
from tests.tiny import VOCABULARY, build_model


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
        ({"temperature": 0.0}, None, "must be 1e-5 or more: the one that the answers"),
        ({"entropy": 0.5}, None, "'entropy'.* is 0.5; it must be 0 or 1"),
        ({}, [[4, 5], [3, 6]], r"position 0 do not have its target, 2\. Pass all tokens"),
        ({}, [[2, 2], [3, 6]], "position 0 have a token twice"),
        ({}, [[2, -1]], r"shape \[1, 2\] and target_tokens \[2\]"),
        ({}, [[2, 9999], [3, -1]], r"kept_tokens\[1\] is 9999"),
        ({}, [[2, -2], [3, -1]], r"kept_tokens\[1\] is -2"),
    ],
)
def test_mistakes_are_reported(
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


FILTERS: list[dict[str, Any]] = [
    {"top_k": 7},
    {"top_k": 40, "top_p": 0.6},
    {"top_k": 40, "min_p": 0.1},
    {"top_k": 30, "top_p": 0.8, "min_p": 0.02},
]


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_trainer_and_sampler_agree_on_the_filtered_distribution(
    base: BaseModel, filters: dict[str, Any], temperature: float
) -> None:
    engine, prompt, width = trained_engine(base), ids("the prompt"), filters["top_k"]
    asked = SampleRequest(
        prompt, 3, 8, temperature=temperature, seed=4, stop=[], renormalize=True,
        topk_sample_logprobs=width, **filters,
    )  # fmt: skip
    [result] = sample(engine, "trained", asked)
    data = []
    for sequence in result.sequences:
        assert sequence.topk_logprobs is not None
        top = sequence.topk_logprobs
        np.testing.assert_allclose(np.exp(top.logprobs).sum(1), 1.0, rtol=1e-5)
        full = np.concatenate([prompt, sequence.tokens])
        kept = np.full((len(full) - 1, width), -1)
        kept[len(prompt) - 1 :] = np.where(np.isfinite(top.logprobs), top.token_ids, -1)
        data.append(Datum(full[:-1], {"target_tokens": full[1:], "kept_tokens": kept}))
    assert any((datum.inputs["kept_tokens"] >= 0).sum(1).max() > 1 for datum in data)
    config: dict[str, float | str] = {"temperature": temperature}
    [found] = engine.forward_backward("run", [ForwardBackward(data, "cross_entropy", config)])
    for sequence, logprobs in zip(result.sequences, found.logprobs, strict=True):
        np.testing.assert_allclose(logprobs[len(prompt) - 1 :], sequence.logprobs, atol=1e-4)


def test_the_mean_gradient_is_that_of_the_expected_reward_of_what_was_sampled(
    base: BaseModel, tiny_model: Path
) -> None:
    """Over all answers of one token that a filtered sampler can give, each as often as it comes."""
    run = LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024)
    randomise(run.adapter)
    plain, temperature = PlainModel(tiny_model, run.adapter), 0.7
    prompt = ids("the prompt")
    logits = plain.logits(Datum(prompt, {}))[-1] / temperature
    kept = logits.topk(12).indices
    p = torch.softmax(logits[kept], 0)
    rewards = torch.linspace(-1, 2, len(kept), dtype=torch.float64)
    (p * rewards).sum().backward()
    data = []
    for token, share, reward in zip(kept.tolist(), p.tolist(), rewards.tolist(), strict=True):
        at_end = np.zeros(len(prompt), np.float32)
        at_end[-1] = 1.0
        sets = np.full((len(prompt), len(kept)), -1)
        sets[-1] = kept
        data.append(
            Datum(
                prompt,
                {
                    "target_tokens": np.append(prompt[1:], token),
                    "logprobs": at_end * np.float32(np.log(share)),
                    "advantages": at_end * np.float32(reward),
                    "weights": at_end * np.float32(share),
                    "kept_tokens": sets,
                },
            )
        )
    config: dict[str, float | str] = {"temperature": temperature}
    run.forward_backward([ForwardBackward(data, "importance_sampling", config)])
    for name, pair in gradients(run).items():
        for mine, theirs in zip(pair, plain.pairs[name], strict=True):
            assert_close(-mine, theirs.grad, name)


def test_a_token_that_is_almost_certain_has_the_gradient_of_what_is_missing(
    tiny_model: Path,
) -> None:
    """1 - p must not be the difference of two numbers that were rounded to 16 bits."""
    model = BaseModel.load("tiny", tiny_model, device="cpu", precision="bfloat16")
    weight = model.head.linear.weight.bfloat16().double()
    generator = torch.Generator().manual_seed(0)
    likely = torch.randint(VOCABULARY, (40,), generator=generator)
    directions = weight[likely] / weight[likely].square().sum(-1, keepdim=True)
    noise = 0.1 * torch.randn(40, weight.shape[1], generator=generator, dtype=torch.float64)
    wanted = (14 * directions + noise).bfloat16().double().requires_grad_()
    mine = wanted.detach().float().requires_grad_()
    expected = torch.log_softmax(wanted @ weight.T, -1)[torch.arange(40), likely]
    assert 1e-4 < 1 - expected.exp().median() < 1e-2
    expected.sum().backward()
    targets = Targets.of(np.arange(40), likely.numpy(), torch.device("cpu"))
    lp, _ = score_targets(model.head, mine, targets, NoLora())
    lp.sum().backward()
    assert wanted.grad is not None
    assert mine.grad is not None
    gaps = (mine.grad.double() - wanted.grad).norm(dim=-1) / wanted.grad.norm(dim=-1)
    assert gaps.max() <= 1e-2
