"""Training through packed prefix trees gives what a plain float64 model gives, one by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from mint.engine.adapters.lora import Adapter
from mint.engine.engine import Engine
from mint.engine.messages import AdamSettings, Datum, ForwardBackward, LoraSpec, UserError
from mint.engine.model.base_model import BaseModel
from mint.engine.model.layers import decoder_layers
from mint.engine.training import trainer
from mint.engine.training.trainer import LoraTrainer
from tests.tiny import FAMILIES, VOCABULARY, build_model


def group(seed: int, answers: int = 4, prompt: int = 7) -> list[Datum]:
    """Rollouts of one prompt plus one stranger, with everything that any loss reads."""
    rng = np.random.default_rng(seed)
    start = rng.integers(0, VOCABULARY, prompt)
    bodies = [rng.integers(0, VOCABULARY, rng.integers(1, 9)) for _ in range(answers)]
    fulls = [np.concatenate([start, body]) for body in bodies]
    fulls.append(rng.integers(0, VOCABULARY, 12))
    data = []
    for full in fulls:
        size = len(full) - 1
        answer = (np.arange(size) >= min(prompt, size) - 1).astype(np.float32)
        data.append(
            Datum(
                full[:-1],
                {
                    "target_tokens": full[1:],
                    "weights": answer,
                    "logprobs": (-rng.exponential(3.0, size) * answer).astype(np.float32),
                    "advantages": (rng.normal(size=size) * answer).astype(np.float32),
                    "sequence_ratio_mask": answer,
                },
            )
        )
    return data


def randomise(adapter: Adapter, seed: int = 0) -> None:
    """Give B values too, so that every gradient is there to compare."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, b in adapter.pairs.values():
            b.normal_(0, 0.05, generator=generator)


class PlainModel:
    """The reference: float64, no packing, LoRA merged into the weights, autograd over all of it."""

    def __init__(self, folder: Path, adapter: Adapter) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float64,
            attn_implementation="eager",
            experts_implementation="eager",
        ).eval()
        self.pairs = {
            name: tuple(t.detach().double().requires_grad_() for t in pair)
            for name, pair in adapter.pairs.items()
        }
        self.scale = adapter.scale

    def logprobs(self, datum: Datum) -> torch.Tensor:
        targets = torch.as_tensor(datum.inputs["target_tokens"])
        targets = targets[:, None] if targets.dim() == 1 else targets
        return torch.log_softmax(self.logits(datum), -1).gather(-1, targets)

    def logits(self, datum: Datum) -> torch.Tensor:
        weights = dict(self.model.named_parameters())
        for name in self.pairs:
            if name in weights:
                weights[name] = self._merged_experts(name)
            else:
                weights[f"{name}.weight"] = self._merged(name)
        tokens = torch.as_tensor(datum.tokens)[None]
        output = torch.func.functional_call(self.model, weights, (tokens,), tie_weights=False)
        return output.logits[0]  # type: ignore[no-any-return]

    def _merged(self, name: str) -> torch.Tensor:
        a, b = self.pairs[name]
        layer = self.model.get_submodule(name)
        delta = self.scale * b @ a
        return layer.weight + (delta.T if isinstance(layer, Conv1D) else delta)

    def _merged_experts(self, name: str) -> torch.Tensor:
        a, b = self.pairs[name]
        weight = self.model.get_parameter(name)
        experts = len(weight)
        each_a = a.view(experts, -1, a.shape[1])  # [experts, rank, in]
        each_b = b.view(b.shape[0], -1, experts)  # [out, rank, experts]
        delta = torch.stack([self.scale * each_b[..., e] @ each_a[e] for e in range(experts)])
        module = self.model.get_submodule(name.rpartition(".")[0])
        return weight + (delta.mT if module.is_transposed else delta)


def loss_of(name: str, lp: torch.Tensor, datum: Datum) -> torch.Tensor:
    """cross_entropy and importance_sampling once more, as one would write them in a notebook."""
    x = {key: torch.as_tensor(value).double() for key, value in datum.inputs.items()}
    if name == "cross_entropy":
        return -(lp * x["weights"].view_as(lp)).sum()
    ratio = torch.exp(lp[:, 0] - x["logprobs"])
    return -(ratio * x["advantages"] * x["weights"]).sum()


def gradients(run: LoraTrainer) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return {
        name: (a.grad, b.grad)
        for name, (a, b) in run.adapter.pairs.items()
        if a.grad is not None and b.grad is not None
    }


def assert_close(mine: torch.Tensor, reference: torch.Tensor, name: str) -> None:
    """Equal to a ten-thousandth of the largest entry."""
    gap = (mine.double() - reference.double()).abs().max()
    assert gap <= 1e-4 * reference.abs().max() + 1e-7, name


@pytest.mark.parametrize("loss_fn", ["cross_entropy", "importance_sampling"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_equal_those_of_a_plain_float64_model(
    family: str, loss_fn: str, tmp_path: Path
) -> None:
    folder = build_model(tmp_path / "models" / family, family)
    model = BaseModel.load(family, folder, device="cpu", precision="exact")
    run = LoraTrainer(model, LoraSpec(rank=4, seed=1), 1024)
    randomise(run.adapter)
    data = group(seed=5)
    [result] = run.forward_backward([ForwardBackward(data, loss_fn)])

    plain = PlainModel(folder, run.adapter)
    total = torch.zeros((), dtype=torch.float64)
    for datum, logprobs in zip(data, result.logprobs, strict=True):
        lp = plain.logprobs(datum)
        np.testing.assert_allclose(logprobs, lp[:, 0].detach(), atol=1e-4)
        total = total + loss_of(loss_fn, lp, datum)
    total.backward()
    assert result.metrics["loss:sum"] == pytest.approx(total.item(), rel=1e-4)
    for name, pair in gradients(run).items():
        for mine, reference in zip(pair, plain.pairs[name], strict=True):
            assert_close(mine, reference.grad, name)


@pytest.mark.parametrize("precision", ["exact", "bfloat16"])
def test_a_model_that_clips_its_queries_in_place_trains_as_it_samples(
    precision: str, tmp_path: Path
) -> None:
    folder = build_model(tmp_path / "olmo", "olmo", clip_qkv=0.5)
    model = BaseModel.load("olmo", folder, device="cpu", precision=precision)
    run = LoraTrainer(model, LoraSpec(rank=4, seed=1), 1024)
    randomise(run.adapter)
    data = group(seed=5)
    [result] = run.forward_backward([ForwardBackward(data, "cross_entropy")])
    plain = PlainModel(folder, run.adapter)
    for datum, logprobs in zip(data, result.logprobs, strict=True):
        wanted = plain.logprobs(datum)[:, 0].detach()
        np.testing.assert_allclose(logprobs, wanted, atol=1e-4 if precision == "exact" else 0.2)


def test_two_dimensional_cross_entropy_sums_over_all_targets(tiny_model: Path) -> None:
    model = BaseModel.load("tiny", tiny_model, device="cpu", precision="exact")
    run = LoraTrainer(model, LoraSpec(rank=4, seed=1), 1024)
    randomise(run.adapter)
    rng = np.random.default_rng(0)
    data = [
        Datum(
            rng.integers(0, VOCABULARY, 6),
            {
                "target_tokens": rng.integers(0, VOCABULARY, (6, k)),
                "weights": rng.random((6, k)).astype(np.float32),
            },
        )
        for k in (3, 5)
    ]
    [result] = run.forward_backward([ForwardBackward(data, "cross_entropy")])
    plain = PlainModel(tiny_model, run.adapter)
    total = sum((loss_of("cross_entropy", plain.logprobs(d), d) for d in data), torch.zeros(()))
    total.backward()
    assert [lp.shape for lp in result.logprobs] == [(6, 3), (6, 5)]
    assert result.metrics["loss:sum"] == pytest.approx(total.item(), rel=1e-4)
    _a, b = run.adapter.pairs["lm_head"]
    assert_close(b.grad, plain.pairs["lm_head"][1].grad, "lm_head")


def test_a_small_budget_changes_no_gradient(base: BaseModel) -> None:
    whole, pieces = (LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024) for _ in range(2))
    pieces.budget = 8
    for run in (whole, pieces):
        randomise(run.adapter)
        run.forward_backward([ForwardBackward(group(2), "ppo")])
    for name, pair in gradients(whole).items():
        for one, other in zip(pair, gradients(pieces)[name], strict=True):
            assert_close(one, other, name)


def test_gradients_add_up_over_calls_until_the_step(base: BaseModel) -> None:
    together, apart = (LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024) for _ in range(2))
    for run in (together, apart):
        randomise(run.adapter)
    first, second = group(1), group(2)
    together.forward_backward([ForwardBackward(first + second, "importance_sampling")])
    apart.forward_backward([ForwardBackward(first, "importance_sampling")])
    apart.forward_backward([ForwardBackward(second, "importance_sampling")])
    for name, pair in gradients(together).items():
        for one, other in zip(pair, gradients(apart)[name], strict=True):
            assert_close(one, other, name)
    apart.optim_step(AdamSettings())
    assert gradients(apart) == {}


def test_gradients_do_not_depend_on_which_operations_arrive_together(base: BaseModel) -> None:
    operations = [ForwardBackward(group(seed=seed), "cross_entropy") for seed in range(4)]
    found = []
    for parts in ([4], [1, 3], [3, 1], [2, 2], [1, 1, 1, 1]):
        run = LoraTrainer(base, LoraSpec(rank=4, seed=1), 24)  # several passes each
        randomise(run.adapter)
        ends = np.cumsum(parts)
        for start, end in zip(ends - parts, ends, strict=True):
            run.forward_backward(operations[start:end])
        found.append(gradients(run))
    for other in found[1:]:
        for name, pair in found[0].items():
            for mine, theirs in zip(pair, other[name], strict=True):
                assert torch.equal(mine, theirs), name


class Cramped(LoraTrainer):
    """A trainer that has memory for passes of few tokens only."""

    room = 30

    def _run_tree(self, tree, *rest):  # type: ignore[no-untyped-def]
        if len(tree.tokens) > self.room:
            raise torch.OutOfMemoryError("no room")
        return super()._run_tree(tree, *rest)


def test_a_batch_without_memory_is_split_and_gives_the_same_gradient(base: BaseModel) -> None:
    data = [datum for seed in range(4) for datum in group(seed=seed)]
    plain, cramped = (made(base, LoraSpec(rank=4, seed=1), 1024) for made in (LoraTrainer, Cramped))
    for run in (plain, cramped):
        randomise(run.adapter)
    [want] = plain.forward_backward([ForwardBackward(data, "cross_entropy")])
    [found] = cramped.forward_backward([ForwardBackward(data, "cross_entropy")])
    for mine, theirs in zip(found.logprobs, want.logprobs, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    for name, pair in gradients(plain).items():
        for one, other in zip(pair, gradients(cramped)[name], strict=True):
            assert_close(other, one, name)


def test_a_pass_that_runs_out_of_memory_at_its_end_counts_once(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = [datum for seed in range(2) for datum in group(seed=seed)]
    plain, late = (LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024) for _ in range(2))
    for run in (plain, late):
        randomise(run.adapter)
    plain.forward_backward([ForwardBackward(data, "cross_entropy")])
    made = trainer._Pass

    def fail(*_: object) -> None:
        monkeypatch.setattr(trainer, "_Pass", made)
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(trainer, "_Pass", fail)
    late.forward_backward([ForwardBackward(data, "cross_entropy")])
    for name, pair in gradients(plain).items():
        for one, other in zip(pair, gradients(late)[name], strict=True):
            assert_close(other, one, name)


def test_a_datum_that_never_fits_fails_alone_and_leaves_the_gradient(base: BaseModel) -> None:
    run = Cramped(base, LoraSpec(rank=4, seed=1), 1024)
    randomise(run.adapter)
    run.forward_backward([ForwardBackward(group(seed=1), "cross_entropy")])
    before = {name: (a.clone(), b.clone()) for name, (a, b) in gradients(run).items()}
    run.room = 3
    with pytest.raises(UserError, match="memory"):
        run.forward_backward([ForwardBackward(group(seed=2), "cross_entropy")])
    for name, pair in gradients(run).items():
        for mine, theirs in zip(pair, before[name], strict=True):
            assert torch.equal(mine, theirs), name


def test_forward_only_computes_the_same_and_leaves_no_gradient(base: BaseModel) -> None:
    run = LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024)
    randomise(run.adapter)
    [forward] = run.forward_backward([ForwardBackward(group(1), "ppo", forward_only=True)])
    assert gradients(run) == {}
    [both] = run.forward_backward([ForwardBackward(group(1), "ppo")])
    assert forward.metrics == both.metrics
    for one, other in zip(forward.logprobs, both.logprobs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_compiled_layer_runs_without_gradients(base: BaseModel) -> None:
    """As on a GPU, traced by torch.compile but not lowered: one layer with one A and one B."""
    run = LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024)
    randomise(run.adapter)
    lora = run.adapter.train_on(base.products)
    name, product = next((n, p) for n, p in base.products.items() if n.endswith("o_proj"))
    x = torch.randn(3, product.weight.shape[1], generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(product.product, backend="eager")  # type: ignore[operator]
    with torch.no_grad():
        found = compiled(x, lora)
    wanted = product.product(x, lora)  # type: ignore[operator]
    assert wanted.requires_grad, name
    torch.testing.assert_close(found, wanted.detach())


def test_torch_compile_traces_a_training_pass_of_a_layer_in_one_piece(tiny_model: Path) -> None:
    """As on a GPU: a part that cannot be traced would split the layer, or fail it."""
    model = BaseModel.load("tiny", tiny_model, device="cpu", precision="exact")
    run = LoraTrainer(model, LoraSpec(rank=4, seed=1), 1024)
    [wanted] = run.forward_backward([ForwardBackward(group(1), "cross_entropy")])
    for layer in decoder_layers(model.trunk):
        layer.forward = torch.compile(layer.forward, backend="eager", fullgraph=True)
    [found] = run.forward_backward([ForwardBackward(group(1), "cross_entropy")])
    for one, other in zip(found.logprobs, wanted.logprobs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_one_bad_operation_voids_the_gradients_of_its_companions_only(base: BaseModel) -> None:
    run = LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024)
    run.forward_backward([ForwardBackward(group(1), "importance_sampling")])
    before = {name: [g.clone() for g in pair] for name, pair in gradients(run).items()}
    good, bad = ForwardBackward(group(2), "ppo"), ForwardBackward(group(3), "no such loss")
    with pytest.raises(UserError, match=r"part 2 of 2.*no such loss"):
        run.forward_backward([good, bad])
    for name, pair in gradients(run).items():
        for kept, grad in zip(before[name], pair, strict=True):
            assert torch.equal(kept, grad)


def test_optim_step_is_adamw_with_every_field_honoured(base: BaseModel) -> None:
    run = LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024)
    randomise(run.adapter)
    twins = [p.detach().double().requires_grad_() for p in run.adapter.parameters()]
    adam = torch.optim.AdamW(twins)
    settings = [
        AdamSettings(learning_rate=1e-2, beta1=0.8, beta2=0.99, eps=1e-6, weight_decay=0.1),
        AdamSettings(learning_rate=3e-2, beta1=0.9, beta2=0.95, eps=1e-8, grad_clip_norm=0.5),
    ]
    for step, params in enumerate(settings):
        run.forward_backward([ForwardBackward(group(step), "importance_sampling")])
        for twin, mine in zip(twins, run.adapter.parameters(), strict=True):
            twin.grad = mine.grad.double()
        norm = torch.nn.utils.clip_grad_norm_(twins, params.grad_clip_norm or float("inf"))
        adam.param_groups[0].update(
            lr=params.learning_rate, betas=(params.beta1, params.beta2), eps=params.eps,
            weight_decay=params.weight_decay,
        )  # fmt: skip
        adam.step()
        metrics = run.optim_step(params)
        assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)
    for twin, mine in zip(twins, run.adapter.parameters(), strict=True):
        torch.testing.assert_close(mine.double(), twin, rtol=1e-5, atol=1e-7)


def test_resuming_from_a_saved_state_is_bit_equal(base: BaseModel, tmp_path: Path) -> None:
    run = LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024)

    def step(run: LoraTrainer, seed: int) -> float:
        [result] = run.forward_backward([ForwardBackward(group(seed), "importance_sampling")])
        run.optim_step(AdamSettings(learning_rate=1e-2))
        return result.metrics["loss:sum"]

    step(run, 0)
    run.save(tmp_path)
    resumed = LoraTrainer(base, LoraSpec(rank=4, seed=99), 1024)
    resumed.load(tmp_path, optimizer=True)
    assert [step(run, n) for n in (1, 2)] == [step(resumed, n) for n in (1, 2)]


def test_loading_without_the_optimizer_resets_it(base: BaseModel, tmp_path: Path) -> None:
    run = LoraTrainer(base, LoraSpec(rank=4, seed=1), 1024)
    run.forward_backward([ForwardBackward(group(0), "importance_sampling")])
    run.optim_step(AdamSettings(learning_rate=1e-2))
    run.save(tmp_path)
    run.load(tmp_path, optimizer=False)
    before = [p.detach().clone() for p in run.adapter.parameters()]
    run.optim_step(AdamSettings(learning_rate=1e-2))  # no gradient, and no momentum left
    for old, new in zip(before, run.adapter.parameters(), strict=True):
        assert torch.equal(old, new)


@pytest.mark.parametrize(
    ("flags", "kinds"),
    [
        ({"train_attn": True, "train_mlp": False, "train_unembed": False}, {"attn"}),
        ({"train_attn": False, "train_mlp": True, "train_unembed": False}, {"mlp"}),
        ({"train_attn": False, "train_mlp": False, "train_unembed": True}, {"unembed"}),
    ],
)
def test_the_three_flags_choose_the_layers(
    base: BaseModel, flags: dict[str, bool], kinds: set[str]
) -> None:
    run = LoraTrainer(base, LoraSpec(rank=2, **flags), 1024)
    chosen = {site.kind for site in base.sites if site.name in run.adapter.pairs}
    assert chosen == kinds
    run.forward_backward([ForwardBackward(group(0), "importance_sampling")])
    assert gradients(run).keys() == run.adapter.pairs.keys()


def test_the_seed_decides_the_initial_adapter(base: BaseModel) -> None:
    one, same, other = (
        LoraTrainer(base, LoraSpec(rank=2, seed=s), 1024).adapter for s in (1, 1, 2)
    )
    name = next(iter(one.pairs))
    assert torch.equal(one.pairs[name][0], same.pairs[name][0])
    assert not torch.equal(one.pairs[name][0], other.pairs[name][0])
    assert not any(b.any() for _, b in one.pairs.values())


def change(**inputs: Any) -> Callable[[Datum], Datum]:
    """A datum with some inputs replaced, or left out where the value is None."""

    def apply(datum: Datum) -> Datum:
        merged = {**datum.inputs, **inputs}
        return Datum(datum.tokens, {k: v for k, v in merged.items() if v is not None})

    return apply


BAD_DATUMS: dict[str, tuple[Callable[[Datum], Datum], str]] = {
    "no tokens": (lambda d: Datum(np.empty(0, np.int64), d.inputs), "model_input has no tokens"),
    "token outside": (
        lambda d: Datum(np.full_like(d.tokens, VOCABULARY), d.inputs),
        "token ids of this model run from 0 to 271",
    ),
    "target outside": (lambda d: change(target_tokens=d.tokens - 1000)(d), "target_tokens"),
    "too long": (lambda d: Datum(np.zeros(300, np.int64), d.inputs), "context is 256"),
    "short targets": (lambda d: change(target_tokens=d.tokens[1:])(d), "target_tokens has shape"),
    "short advantages": (change(advantages=np.zeros(1, np.float32)), "advantages has shape"),
    "missing logprobs": (change(logprobs=None), "no 'logprobs'"),
    "missing targets": (change(target_tokens=None), "no 'target_tokens'"),
    "nan advantage": (
        lambda d: change(advantages=np.full(len(d.tokens), np.nan, np.float32))(d),
        "must be a finite number",
    ),
}


@pytest.mark.parametrize("case", BAD_DATUMS)
def test_a_bad_datum_is_named_and_leaves_the_run_usable(base: BaseModel, case: str) -> None:
    run = LoraTrainer(base, LoraSpec(rank=2), 1024)
    spoil, message = BAD_DATUMS[case]
    data = group(0)
    spoiled = [data[0], spoil(data[1]), *data[2:]]
    with pytest.raises(UserError, match="datum 1") as caught:
        run.forward_backward([ForwardBackward(spoiled, "importance_sampling")])
    assert message in str(caught.value)
    run.forward_backward([ForwardBackward(data, "importance_sampling")])
    run.optim_step(AdamSettings())


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ForwardBackward([], "ppo"), "empty"),
        (ForwardBackward(group(0), "stable_reinforce"), "cross_entropy, importance_sampling"),
        (ForwardBackward(group(0), "ppo", {"epsilon": 0.2}), "clip_low_threshold"),
        (ForwardBackward(group(0), "dro", {"beta": float("nan")}), "finite"),
    ],
)
def test_a_bad_request_says_what_is_right(
    base: BaseModel, request_: ForwardBackward, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        LoraTrainer(base, LoraSpec(rank=2), 1024).forward_backward([request_])


@pytest.mark.parametrize("rank", [0, -1, 100_000])
def test_a_bad_rank_is_refused(engine: Engine, rank: int) -> None:
    with pytest.raises(UserError, match="rank is"):
        engine.create_run("r", LoraSpec(rank=rank))


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, 10**400])
def test_a_seed_that_does_not_fit_is_refused(engine: Engine, seed: int) -> None:
    with pytest.raises(UserError, match="seed is"):
        engine.create_run("r", LoraSpec(rank=2, seed=seed))


@pytest.mark.parametrize(
    "params", [AdamSettings(learning_rate=float("nan")), AdamSettings(beta2=1.0)]
)
def test_bad_adam_settings_are_refused_before_they_touch_anything(
    base: BaseModel, params: AdamSettings
) -> None:
    run = LoraTrainer(base, LoraSpec(rank=2), 1024)
    run.forward_backward([ForwardBackward(group(0), "importance_sampling")])
    with pytest.raises(UserError):
        run.optim_step(params)
    assert gradients(run)


def test_weights_given_to_some_datums_count_as_given_to_all(base: BaseModel) -> None:
    mixed = group(3)
    mixed[0] = change(weights=None)(mixed[0])
    one, other = (LoraTrainer(base, LoraSpec(rank=2, seed=3), 1024) for _ in range(2))
    [a] = one.forward_backward([ForwardBackward(mixed, "importance_sampling")])
    [b] = other.forward_backward([ForwardBackward(group(3), "importance_sampling")])
    assert a.metrics["loss:sum"] == pytest.approx(b.metrics["loss:sum"], rel=1e-6)


def test_thresholds_may_come_per_token(base: BaseModel) -> None:
    data = group(4)
    wide = [change(clip_high_threshold=np.full(len(d.tokens), 9.0, np.float32))(d) for d in data]
    one, other = (LoraTrainer(base, LoraSpec(rank=2, seed=3), 1024) for _ in range(2))
    [a] = one.forward_backward([ForwardBackward(wide, "ppo")])
    [b] = other.forward_backward([ForwardBackward(data, "ppo", {"clip_high_threshold": 9.0})])
    assert a.metrics == b.metrics
