"""Mixture-of-experts layers train and sample as linear layers do; unsupported ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from mint.engine.engine import Engine
from mint.engine.messages import ForwardBackward, LoraSpec, SampleRequest, UserError
from mint.engine.model import context
from mint.engine.model.base_model import BaseModel
from mint.engine.model.context import BankedLora, Lora, NoLora, TrainedLora
from mint.engine.model.experts import (
    Complete,
    FrozenExperts,
    Gathered,
    Routes,
    Sorted,
    choose_routes,
    find_expert_sites,
    join_experts,
)
from mint.engine.model.precision import choose
from mint.engine.training.trainer import LoraTrainer
from tests.engine.conftest import check_batching, ids, sample
from tests.engine.sampling.test_sampler import train, trained_engine, trainer_logprobs
from tests.engine.training.test_trainer import (
    PlainModel,
    assert_close,
    gradients,
    group,
    loss_of,
    randomise,
)
from tests.tiny import FAMILIES, SIZES, build_model

TEXT = ids("an expert for every token")
FUSED = ("qwen3_moe", "mixtral", "gpt_oss")
# Dense layers, shared experts and routers that score by a sigmoid.
RELATIVES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {**FAMILIES["qwen3_moe"], "mlp_only_layers": [0]},
    "qwen2_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 16,
    },
    "glm4_moe": {
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
    },
}
TOKENS, DEVICES = 7, ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def routes(kind: str, index: Tensor, experts: int) -> Routes:
    return {
        "sorted": lambda: Sorted(index, experts),
        "gathered": lambda: Gathered(index),
        "complete": lambda: Complete(index, experts),
    }[kind]()


class Layer:
    """The experts of one tiny layer, with adapters, and what plain float64 makes of them."""

    def __init__(self, family: str, precision: str = "exact", device: str = "cpu") -> None:
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **{**SIZES, **FAMILIES[family]})
        config._experts_implementation = "eager"
        model = AutoModelForCausalLM.from_config(config)
        self.plain = model.model.layers[0].mlp.experts.double()
        with torch.no_grad():
            for parameter in self.plain.parameters():
                parameter.copy_(parameter.normal_(0, 0.3).half().bfloat16())
        twin = AutoModelForCausalLM.from_config(config).model.layers[0].mlp.experts
        twin.load_state_dict(self.plain.state_dict())
        self.sites = find_expert_sites("experts", twin)
        self.module = FrozenExperts(
            self.sites, twin.to(device), choose(precision, torch.device(device))
        )
        self.experts = self.sites[0].experts
        self.products = (self.module.gate_up_proj, self.module.down_proj)
        self.x = torch.randn(TOKENS, SIZES["hidden_size"]).half().bfloat16().float()
        scores = torch.randn(TOKENS, self.experts).softmax(-1)
        self.shares, self.index = scores.topk(2)
        self.device = device

    def adapter(self, rank: int) -> dict[str, tuple[Tensor, Tensor]]:
        """A random adapter, in numbers that float16 and bfloat16 have."""
        pairs = {}
        for site in self.sites:
            a = torch.randn(self.experts, rank, site.inputs) / 8
            b = torch.randn(self.experts, site.outputs, rank) / 8
            pairs[site.name] = join_experts(*(t.half().bfloat16().float() for t in (a, b)))
        return pairs

    def run(self, kind: str, lora: Lora) -> Tensor:
        index, shares, x = (t.to(self.device) for t in (self.index, self.shares, self.x))
        with torch.no_grad(), context.running(NoAttention(), lora):
            return self.module.run(x, routes(kind, index, self.experts), shares).cpu()

    def wanted(self, pairs: dict[str, tuple[Tensor, Tensor]] | None, scale: float) -> Tensor:
        """What merged float64 weights give."""
        weights = dict(self.plain.named_parameters())
        for name, (a, b) in (pairs or {}).items():
            delta = torch.stack(
                [
                    scale
                    * b.view(len(b), -1, self.experts)[..., e].double()
                    @ a.view(self.experts, -1, a.shape[1])[e].double()
                    for e in range(self.experts)
                ]
            )
            key = name.rpartition(".")[2]
            weights[key] = weights[key] + (delta.mT if self.plain.is_transposed else delta)
        inputs = (self.x.double(), self.index, self.shares.double())
        with torch.no_grad():
            return torch.func.functional_call(self.plain, weights, inputs)


class NoAttention:
    def attend(self, *args: Any) -> Tensor:
        raise AssertionError("experts do not attend")


BOUNDS = {"exact": 2e-5, "half": 5e-3, "bfloat16": 3e-2}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("kind", ["sorted", "gathered", "complete"])
@pytest.mark.parametrize("family", FUSED)
def test_every_layout_of_rows_gives_what_float64_gives(
    family: str, kind: str, precision: str, device: str
) -> None:
    layer = Layer(family, precision, device)
    pairs, other = layer.adapter(3), layer.adapter(5)

    def check(mine: Tensor, reference: Tensor) -> None:
        gap = (mine.double() - reference).abs().max() / reference.abs().max()
        assert gap <= BOUNDS[precision]

    check(layer.run(kind, NoLora()), layer.wanted(None, 0))
    for product in layer.products:
        product.pairs = tuple(t.to(device) for t in pairs[product.sites[0].name])
    check(layer.run(kind, TrainedLora(0.5)), layer.wanted(pairs, 0.5))

    with torch.no_grad():
        for product in layer.products:
            product.new_bank(4, 5)  # of which the pass uses three
            for slot, own, scale in ((0, pairs, 0.5), (2, other, 2.0)):
                scaled = {name: (a, scale * b) for name, (a, b) in own.items()}
                for target, source in product.write_slot(slot, scaled):
                    target.copy_(source)
    check(layer.run(kind, BankedLora(1, None)), layer.wanted(pairs, 0.5))
    owners = torch.tensor([0, 2, -1, 0, 2, 2, -1])
    mask = (owners[:, None] == torch.arange(3)).float().to(device)
    mixed = torch.stack([layer.wanted(None, 0), layer.wanted(pairs, 0.5), layer.wanted(other, 2.0)])
    chosen = torch.tensor([1, 2, 0, 1, 2, 2, 0])
    check(layer.run(kind, BankedLora(3, mask)), mixed[chosen, torch.arange(TOKENS)])


def test_what_experts_say_of_tokens_that_are_not_theirs_counts_for_nothing() -> None:
    layer = Layer("mixtral")
    layer.index[:, :] = torch.tensor([0, 1])
    wanted = layer.run("complete", NoLora())
    with torch.no_grad():
        layer.module.gate_up_proj.weight[2:] = float("inf")
    assert torch.equal(layer.run("complete", NoLora()), wanted)


def test_a_cpu_sorts_rows_by_expert() -> None:
    index = torch.tensor([[2, 0], [0, 3]])
    chosen = choose_routes(index, 4)
    assert isinstance(chosen, Sorted)
    assert chosen.groups == [(0, slice(0, 2)), (2, slice(2, 3)), (3, slice(3, 4))]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")
@pytest.mark.parametrize("tokens", [1, 100])
def test_a_decode_step_can_be_captured_and_follows_the_router(tokens: int) -> None:
    layer = Layer("qwen3_moe", "half", "cuda")
    x = torch.randn(tokens, SIZES["hidden_size"], device="cuda")
    index = torch.zeros(tokens, 2, dtype=torch.long, device="cuda")
    index[:, 1] = 1
    shares = torch.full((tokens, 2), 0.5, device="cuda")
    with torch.inference_mode(), context.running(NoAttention(), NoLora()):
        layer.module(x, index, shares)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = layer.module(x, index, shares)
        for pair in ([0, 1], [4, 2]):
            index[:] = torch.tensor(pair)
            graph.replay()
            wanted = layer.module.run(x, Sorted(index, layer.experts), shares)
            torch.testing.assert_close(output, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", FUSED)
def test_gradients_pass_through_experts_that_are_not_trained(family: str, tmp_path: Path) -> None:
    folder = build_model(tmp_path / "models" / family, family)
    model = BaseModel.load(family, folder, device="cpu", precision="exact")
    check_gradients(folder, model, LoraSpec(rank=3, seed=1, train_mlp=False))


@pytest.mark.parametrize("family", RELATIVES)
def test_dense_layers_and_shared_experts_train_beside_fused_ones(
    family: str, tmp_path: Path
) -> None:
    folder = build_model(tmp_path / "models" / family, family, **RELATIVES[family])
    model = BaseModel.load(family, folder, device="cpu", precision="exact")
    run = check_gradients(folder, model, LoraSpec(rank=3, seed=1))
    leaves = {name.partition("mlp.")[2] for name in run.adapter.pairs}
    assert {"experts.gate_up_proj", "experts.down_proj"} < leaves
    assert {leaf.rpartition(".")[2] for leaf in leaves} >= {"gate_proj", "up_proj", "down_proj"}
    assert not any("gate" in leaf.split(".") for leaf in leaves)


def test_gradients_are_the_same_when_activations_are_recomputed(tmp_path: Path) -> None:
    folder = build_model(tmp_path / "models", "qwen3_moe")
    model = BaseModel.load("m", folder, device="cpu", precision="exact")
    check_gradients(folder, model, LoraSpec(rank=3, seed=1), budget=4)


def check_gradients(
    folder: Path, model: BaseModel, spec: LoraSpec, budget: int = 1024
) -> LoraTrainer:
    run = LoraTrainer(model, spec, budget)
    randomise(run.adapter)
    data = group(seed=5)
    run.forward_backward([ForwardBackward(data, "cross_entropy")])
    plain = PlainModel(folder, run.adapter)
    sum(loss_of("cross_entropy", plain.logprobs(datum), datum) for datum in data).backward()
    found = gradients(run)
    assert found.keys() == run.adapter.pairs.keys()
    for name, pair in found.items():
        for mine, reference in zip(pair, plain.pairs[name], strict=True):
            assert_close(mine, reference.grad, name)
    return run


@pytest.mark.parametrize("family", FUSED)
def test_adapters_of_different_ranks_and_layers_decode_in_one_batch(
    family: str, tmp_path: Path
) -> None:
    folder = build_model(tmp_path / "models" / family, family)
    engine = Engine(BaseModel.load(family, folder, device="cpu", precision="exact"))
    engine.create_sampler("base")
    specs = {
        "attn": LoraSpec(rank=4, seed=1, train_mlp=False, train_unembed=False),
        "mlp": LoraSpec(rank=2, seed=2, train_attn=False, train_unembed=False),
        "all": LoraSpec(rank=6, seed=3),
    }
    for name, spec in specs.items():
        engine.create_run(name, spec)
        randomise(engine._runs[name].adapter)
        engine.create_sampler(name, run_id=name)
    request = SampleRequest(TEXT, num_samples=2, max_tokens=8, seed=4, stop=[])
    names = ["attn", "base", "mlp", "all", "mlp"]
    check_batching(engine, names, request)


@pytest.mark.parametrize("precision", ["half", "bfloat16"])
@pytest.mark.parametrize("family", FUSED)
def test_sampler_and_trainer_agree_in_16_bits(family: str, precision: str, tmp_path: Path) -> None:
    folder = build_model(tmp_path / "models" / family, family, spread=0.1)
    engine = trained_engine(BaseModel.load(family, folder, device="cpu", precision=precision))
    request = SampleRequest(TEXT, num_samples=8, max_tokens=16, seed=1, stop=[])
    [result] = sample(engine, "trained", request)
    wanted = trainer_logprobs(engine, TEXT, result)
    gaps = np.concatenate(
        [np.abs(s.logprobs - lp) for s, lp in zip(result.sequences, wanted, strict=True)]
    )
    assert gaps.mean() <= (2e-3 if precision == "half" else 1e-2)


def peft_logprobs(folder: Path, saved: Path) -> Tensor:
    from peft import PeftModel  # which the machine with a GPU need not have

    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs = PeftModel.from_pretrained(plain, saved).eval()
    with torch.no_grad():
        logits = theirs(torch.as_tensor(TEXT[:-1])[None]).logits[0]
    return torch.log_softmax(logits, -1).gather(-1, torch.as_tensor(TEXT[1:])[:, None])[:, 0]


def logprobs(engine: Engine, sampler: str) -> np.ndarray:
    request = SampleRequest(TEXT, max_tokens=1, prompt_logprobs=True)
    [result] = sample(engine, sampler, request)
    assert result.prompt_logprobs is not None
    return result.prompt_logprobs[1:]


@pytest.mark.parametrize("trained", ["mlp", "all"])
@pytest.mark.parametrize("family", [*FUSED, *(f"{name} mixed" for name in RELATIVES)])
def test_peft_gives_the_same_logprobs(family: str, trained: str, tmp_path: Path) -> None:
    name, _, is_mixed = family.partition(" ")
    folder = build_model(tmp_path / "m" / name, name, **(RELATIVES[name] if is_mixed else {}))
    engine = Engine(BaseModel.load(name, folder, device="cpu", precision="exact"))
    flags = {f"train_{k}": trained in (k, "all") for k in ("attn", "mlp", "unembed")}
    engine.create_run("run", LoraSpec(rank=3, seed=1, **flags))
    randomise(engine._runs["run"].adapter)
    saved = tmp_path / "adapter"
    saved.mkdir()
    engine.save_adapter("run", str(saved))
    engine.create_sampler("live", run_id="run")
    engine.create_sampler("base")
    theirs = peft_logprobs(folder, saved).numpy()
    assert np.abs(logprobs(engine, "live") - theirs).max() <= 1e-4
    assert np.abs(logprobs(engine, "base") - theirs).max() >= 1e-2

    engine.create_sampler("stored", folder=str(saved))
    np.testing.assert_array_equal(logprobs(engine, "live"), logprobs(engine, "stored"))


@pytest.mark.parametrize("projections", [["gate_up_proj"], ["down_proj", "gate_up_proj"]])
def test_an_adapter_that_peft_wrote_loads(projections: list[str], tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    folder = build_model(tmp_path / "m", "gpt_oss")
    config = LoraConfig(
        r=3,
        lora_alpha=6,
        target_modules=["q_proj"],
        target_parameters=[f"mlp.experts.{name}" for name in projections],
        init_lora_weights=False,
    )
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    saved = tmp_path / "adapter"
    get_peft_model(plain, config).save_pretrained(saved)
    engine = Engine(BaseModel.load("gpt_oss", folder, device="cpu", precision="exact"))
    engine.create_sampler("theirs", folder=str(saved))
    wanted = peft_logprobs(folder, saved).numpy()
    assert np.abs(logprobs(engine, "theirs") - wanted).max() <= 1e-4


def test_an_adapter_for_another_number_of_experts_is_refused(tmp_path: Path) -> None:
    small, large = (
        Engine(BaseModel.load("m", build_model(folder, "mixtral", num_local_experts=count)))
        for count in (4, 8)
        if (folder := tmp_path / str(count))
    )
    small.create_run("run", LoraSpec(rank=2, train_attn=False, train_unembed=False))
    small.save_adapter("run", str(tmp_path))
    with pytest.raises(UserError, match="does not fit this base model"):
        large.create_sampler("s", folder=str(tmp_path))


def test_resuming_from_a_saved_state_is_bit_equal(tmp_path: Path) -> None:
    folder = build_model(tmp_path / "m", "qwen3_moe")
    engine = Engine(BaseModel.load("m", folder, device="cpu", precision="exact"))
    engine.create_run("run", LoraSpec(rank=2, seed=1))
    train(engine, 2)
    engine.save_state("run", str(tmp_path))
    before = engine._runs["run"].adapter.frozen_copy(torch.device("cpu"))
    train(engine, 1)
    after = engine._runs["run"].adapter.frozen_copy(torch.device("cpu"))
    engine.load_state("run", str(tmp_path), optimizer=True)
    train(engine, 1)
    for name, pair in engine._runs["run"].adapter.pairs.items():
        for first, second, again in zip(before.pairs[name], after.pairs[name], pair, strict=True):
            assert torch.equal(second, again)
            assert not torch.equal(first, second)


def test_experts_in_4_bits_are_loaded_as_ordinary_weights(tmp_path: Path) -> None:
    folder = build_model(tmp_path / "m", "gpt_oss", intermediate_size=64)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in tensors if name.endswith("experts.down_proj")]:
        experts, inputs, outputs = tensors[name].shape
        halves = torch.randint(256, (experts, outputs, inputs // 32, 16), generator=generator)
        tensors[f"{name}_blocks"] = halves.to(torch.uint8)
        tensors[f"{name}_scales"] = torch.full(halves.shape[:-1], 125, dtype=torch.uint8)  # 1/4
        del tensors[name]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(config))
    model = BaseModel.load("m", folder, device="cpu", precision="exact")
    weight = model.products["model.layers.0.mlp.experts.down_proj"].weight
    steps = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6]) / 4
    assert sorted(weight.abs().unique().tolist()) == steps.tolist()


REFUSED: dict[str, dict[str, Any]] = {
    "qwen3_next": {
        "num_hidden_layers": 4,
        "num_experts": 4,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 2,
    },
    "qwen3_5_text": {
        "num_hidden_layers": 4,
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 2,
    },
    "mamba": {},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 32},
    "diffllama": {},
    "doge": {},
    "modernbert-decoder": {},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
    "deepseek_v3": {
        "head_dim": 4,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 4,
        "n_routed_experts": 8,
        "moe_intermediate_size": 16,
    },
}


@pytest.mark.parametrize("family", REFUSED)
def test_a_model_that_we_cannot_run_is_refused_by_name(family: str, tmp_path: Path) -> None:
    folder = build_model(tmp_path / "m", family, **REFUSED[family])
    with pytest.raises(UserError) as caught:
        BaseModel.load(f"org/{family}", folder, device="cpu")
    message = str(caught.value)
    assert f"org/{family}" in message
    assert "which this engine cannot run yet" in message
    assert "such as Qwen/Qwen3-0.6B" in message
