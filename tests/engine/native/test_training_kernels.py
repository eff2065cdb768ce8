"""The kernels of training against plain float64, alone and all together in a pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mint.engine import native
from mint.engine.attention import tree_attention
from mint.engine.attention.native import NativeTree
from mint.engine.messages import ForwardBackward, LoraSpec
from mint.engine.model.base_model import BaseModel
from mint.engine.model.context import Scores
from mint.engine.native.training import (
    Gated,
    LoraProduct,
    Norm,
    TurnedAttention,
    product,
    softmax_,
)
from mint.engine.training.trainer import LoraTrainer
from mint.engine.training.tree import pack
from tests.engine.attention.test_tree_attention import FORESTS, HEADS, KEY_HEADS, dense
from tests.engine.training.test_trainer import (
    PlainModel,
    assert_close,
    gradients,
    group,
    loss_of,
    randomise,
)
from tests.tiny import build_model

pytestmark = pytest.mark.skipif(
    native.missing() is not None, reason=f"no kernels here: {native.missing()}"
)
SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_same(function: Any, reference: Any, *inputs: Tensor) -> None:
    """Compare outputs and gradients, the latter for a random gradient of the output."""
    exact = [x.clone().requires_grad_() for x in inputs]
    single = [x.float().requires_grad_() for x in inputs]
    wanted, found = reference(*exact), function(*single)
    grad = numbers(*wanted.shape, seed=9)
    theirs = torch.autograd.grad(wanted, exact, grad)
    mine = torch.autograd.grad(found, single, grad.float())
    for a, b in zip([found, *mine], [wanted, *theirs], strict=True):
        torch.testing.assert_close(
            a.double(), b, rtol=5e-5, atol=5e-5 * b.detach().abs().max().item()
        )


@pytest.mark.parametrize(("m", "n", "depth"), [(1, 16, 1), (7, 48, 33), (100, 144, 17), (5, 64, 9)])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_product_of_any_size(m: int, n: int, depth: int, is_transposed: bool) -> None:
    a, b = numbers(m, depth), numbers(depth, n, seed=1)
    left = a.float().T.contiguous().T if is_transposed else a.float()
    wide = torch.zeros(m, n + 16)
    assert_values(product(left, b.float(), wide[:, :n]), a @ b)
    assert not wide[:, n:].any()


def assert_values(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-4)


def test_norm() -> None:
    weight = numbers(48)

    def norm(x: Tensor) -> Tensor:
        return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)

    assert_same(lambda x: Norm.apply(x, weight.float(), 1e-5), norm, numbers(1, 19, 48))


def test_gated_activation_also_of_large_numbers() -> None:
    both = numbers(9, 96)
    both[0] *= 60

    def gated(x: Tensor) -> Tensor:
        return nn.functional.silu(x[:, :48]) * x[:, 48:]

    assert_same(Gated.apply, gated, both)


@pytest.mark.parametrize("rank", [3, 16, 20])
@pytest.mark.parametrize("sizes", [[32], [48, 16, 16]])
def test_adapters_of_a_joint_product(rank: int, sizes: list[int]) -> None:
    weight, x = numbers(sum(sizes), 80), numbers(37, 80, seed=1)
    pairs = [
        part
        for number, size in enumerate(sizes)
        for part in (numbers(rank, 80, seed=number + 2), numbers(size, rank, seed=number + 5))
    ]
    packed, back = native.Packed(weight.float(), sizes), native.Packed(weight.float().T)

    def adapted(x: Tensor, *pairs: Tensor) -> Tensor:
        parts = [x @ a.T @ b.T for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
        return x @ weight.T + 0.5 * torch.cat(parts, 1)

    assert_same(
        lambda *inputs: LoraProduct.apply(packed, lambda: back, 0.5, *inputs), adapted, x, *pairs
    )


@pytest.mark.parametrize("name", FORESTS)
@pytest.mark.parametrize("window", [0, 25])
def test_attention_in_a_forest(name: str, window: int) -> None:
    tree = FORESTS[name]
    count = len(tree.tokens)
    view = NativeTree(tree, torch.float32)
    assert_same(
        lambda q, k, v: view.attend(nn.Module(), q, k, v, Scores(16**-0.5, window)),
        lambda q, k, v: dense(tree, q, k, v, window, 0.0, None),
        *(numbers(count, heads, 16, seed=heads) for heads in (HEADS, KEY_HEADS, KEY_HEADS)),
    )


@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_keys_and_values_are_rounded_as_those_of_the_pool(softcap: float) -> None:
    tree = FORESTS["groups"]
    count, most = len(tree.tokens), torch.finfo(torch.float16).max
    view = NativeTree(tree, torch.float16)
    q, k, v = (numbers(count, n, 16, seed=n) for n in (HEADS, KEY_HEADS, KEY_HEADS))
    v[0, 0, 0] = 1e6  # beyond float16

    def rounded(x: Tensor) -> Tensor:
        return x + (x.float().clamp(-most, most).half().double() - x).detach()

    assert_same(
        lambda q, k, v: view.attend(nn.Module(), q, k, v, Scores(16**-0.5, softcap=softcap)),
        lambda q, k, v: dense(tree, q, rounded(k), rounded(v), 0, softcap, None),
        q, k, v,
    )  # fmt: skip


def test_attention_of_turned_rows() -> None:
    tree, size = FORESTS["groups"], 32
    count = len(tree.tokens)
    cosine, sine = numbers(count, size), numbers(count, size, seed=1)
    forest = NativeTree(tree, torch.float32).forest

    def turned(rows: Tensor) -> Tensor:
        heads = rows.view(count, -1, size)
        both, v = heads[:, :-KEY_HEADS], heads[:, -KEY_HEADS:]
        low, high = both.chunk(2, -1)
        both = both * cosine[:, None] + torch.cat([-high, low], -1) * sine[:, None]
        q, k = both[:, :-KEY_HEADS], both[:, -KEY_HEADS:]
        return dense(tree, q * (16 / size) ** 0.5, k, v, 0, 0.0, None)  # its scale is 16**-0.5

    def found(rows: Tensor) -> Tensor:
        arguments = (forest, size**-0.5, size, KEY_HEADS, rows.clone())
        return TurnedAttention.apply(*arguments, cosine.float(), sine.float())  # type: ignore[no-any-return]

    assert_same(found, turned, numbers(count, (HEADS + 2 * KEY_HEADS) * size, seed=2))


def test_softmax_in_place() -> None:
    logits = 5 * numbers(3, 2064)
    logits[0, 7] = 300.0
    found = logits.float()
    sums = softmax_(found, 0.7)
    assert_values(sums, torch.logsumexp(logits / 0.7, -1))
    torch.testing.assert_close(
        found.double(), torch.softmax(logits / 0.7, -1), rtol=1e-4, atol=1e-37
    )


def round_weights(folder: Path) -> None:
    """Round a model's weights to bfloat16, so that no format loses any of their bits."""
    file = folder / "model.safetensors"
    weights = {name: tensor.bfloat16().float() for name, tensor in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})


LLAMA = {"TurnedAttentionBackward", "GatedBackward", "NormBackward", "LoraProductBackward"}
USED = {
    "llama": LLAMA,
    "qwen2": LLAMA,
    "smollm3": LLAMA | {"TreeAttentionBackward"},  # one of its layers has no positions
    "qwen3": LLAMA - {"TurnedAttentionBackward"} | {"TreeAttentionBackward"},
    "mistral": LLAMA - {"TurnedAttentionBackward"} | {"TreeAttentionBackward"},
    "gemma2": {"LoraProductBackward"},
    "granite": LLAMA,
    "nemotron": {"TreeAttentionBackward", "LoraProductBackward"},  # half of a head has positions
}


@pytest.mark.parametrize("family", [name for name in USED if name != "gemma2"])  # a soft cap
def test_gradients_of_a_pass_by_kernels_are_those_of_a_plain_float64_model(
    family: str, tmp_path: Path
) -> None:
    folder = build_model(tmp_path / family, family, **SIZES)
    round_weights(folder)
    model = BaseModel.load(family, folder, device="cpu", precision="bfloat16")
    model = replace(model, precision=replace(model.precision, keys=torch.float32))
    for layer in model.products.values():  # the same kernels, of float32 numbers
        weight: Tensor = layer.weight.float()
        layer.packed = native.Packed(weight, layer.sizes)
        layer.packed_back = native.Packed(weight.T)
    run = LoraTrainer(model, LoraSpec(rank=4, seed=1, train_unembed=False), 1024)
    randomise(run.adapter)
    data = group(seed=5)
    [result] = run.forward_backward([ForwardBackward(data, "importance_sampling")])
    plain = PlainModel(folder, run.adapter)
    total = torch.zeros((), dtype=torch.float64)
    for datum, logprobs in zip(data, result.logprobs, strict=True):
        lp = plain.logprobs(datum)
        np.testing.assert_allclose(logprobs, lp[:, 0].detach(), atol=1e-4)
        total = total + loss_of("importance_sampling", lp, datum)
    total.backward()
    for name, pair in gradients(run).items():
        for mine, reference in zip(pair, plain.pairs[name], strict=True):
            assert_close(mine, reference.grad, name)


@pytest.mark.parametrize("family", USED)
def test_layers_are_recognized(family: str, tmp_path: Path) -> None:
    folder = build_model(tmp_path / family, family, **SIZES)
    model = BaseModel.load(family, folder, device="cpu", precision="bfloat16")
    run = LoraTrainer(model, LoraSpec(rank=4, seed=1, train_unembed=False), 1024)
    [tree] = pack([np.arange(20)], 100)
    view = tree_attention(tree, model.device, model.precision)
    lora = run.adapter.train_on(model.products)
    found, waiting = set[str](), [model.hidden(tree.tokens, tree.positions, view, lora).grad_fn]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        assert node is not None
        found.add(node.name())
        new = [other for other, _ in node.next_functions if other and other not in seen]
        seen.update(new)
        waiting += new
    assert found & (LLAMA | {"TreeAttentionBackward"}) == USED[family]
