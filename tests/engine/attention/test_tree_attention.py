"""A CPU's attention over a prefix forest, piece by piece, equals a dense one in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mint.engine.attention.reference import ReferenceTree, cut
from mint.engine.model.context import Scores
from mint.engine.training.tree import PrefixTree, pack

HEADS, KEY_HEADS, SIZE = 6, 2, 16


def forest(groups: int, prompt: int, answers: int, length: int) -> PrefixTree:
    """Answers of different lengths to prompts that begin alike."""
    rng = np.random.default_rng(0)
    common = rng.integers(0, 9, prompt // 4)
    sequences = []
    for _ in range(groups):
        rest = rng.integers(0, 9, prompt - len(common))
        sequences += [
            np.concatenate([common, rest, rng.integers(0, 9, length - number)])
            for number in range(answers)
        ]
    [tree] = pack(sequences, budget=100_000)
    return tree


FORESTS = {
    "groups": forest(groups=4, prompt=40, answers=5, length=20),
    "long prompt": forest(groups=1, prompt=700, answers=9, length=30),
    "long answers": forest(groups=1, prompt=90, answers=2, length=600),
    "short": forest(groups=2, prompt=8, answers=2, length=4),
}


def dense(
    tree: PrefixTree, q: Tensor, k: Tensor, v: Tensor, window: int, softcap: float,
    sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    nodes = torch.arange(len(tree.tokens))
    ends, positions = torch.as_tensor(tree.ends), torch.as_tensor(tree.positions)
    sees = (nodes[None] <= nodes[:, None]) & (nodes[:, None] < ends[None])
    if window:
        sees &= positions[:, None] - positions[None] < window
    k, v = (tensor.repeat_interleave(HEADS // KEY_HEADS, 1) for tensor in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * SIZE**-0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    weights = scores.masked_fill(~sees, float("-inf")).exp()
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + sinks.exp()[:, None, None]
    return torch.einsum("hij,jhd->ihd", weights / total, v)


@pytest.mark.parametrize("name", FORESTS)
@pytest.mark.parametrize(
    ("window", "softcap", "has_sinks"), [(0, 0.0, False), (25, 0.0, False), (0, 3.0, True)]
)
def test_output_and_gradients_are_those_of_dense_attention(
    name: str, window: int, softcap: float, has_sinks: bool
) -> None:
    tree = FORESTS[name]
    generator = torch.Generator().manual_seed(0)
    shapes = [(len(tree.tokens), heads, SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS, HEADS)]
    q, k, v, out = (torch.randn(*shape, generator=generator).double() for shape in shapes)
    sinks = torch.randn(HEADS, generator=generator) if has_sinks else None
    inputs = [tensor.requires_grad_() for tensor in (q, k, v)]
    wanted = dense(tree, *inputs, window, softcap, None if sinks is None else sinks.double())
    wanted_grads = torch.autograd.grad(wanted, inputs, out)
    single = [tensor.detach().float().requires_grad_() for tensor in inputs]
    attention = ReferenceTree(tree)
    found = attention.attend(nn.Module(), *single, Scores(SIZE**-0.5, window, softcap, sinks))
    grads = torch.autograd.grad(found, single, out.float())
    for mine, theirs in zip([found, *grads], [wanted, *wanted_grads], strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize("name", FORESTS)
def test_pieces_are_a_partition_and_see_far_less_than_everything(name: str) -> None:
    tree = FORESTS[name]
    pieces = cut(tree)
    count = len(tree.tokens)
    assert [node for start, stop in pieces for node in range(start, stop)] == [*range(count)]
    seen = sum((b - a) * (int(tree.positions[a]) + b - a) for a, b in pieces)
    visible = int((tree.positions + 1).sum())
    assert seen <= 2.5 * visible + 64 * count
