"""The Triton kernels against dense attention in float64.

They run on a GPU, or on the CPU in Triton's interpreter (``TRITON_INTERPRET=1``, NumPy < 2.4).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton", reason="Triton is not installed")

CUDA = torch.cuda.is_available()
INTERPRETED = not CUDA and os.environ.get("TRITON_INTERPRET") == "1"
if not (CUDA or INTERPRETED):
    pytest.skip("needs an NVIDIA GPU or TRITON_INTERPRET=1", allow_module_level=True)

from mint.engine.adapters.kernels import lora_expand  # noqa: E402
from mint.engine.attention import kernels, tree  # noqa: E402
from mint.engine.model.context import BankedLora  # noqa: E402
from mint.engine.model.linear import FrozenLinear, Site  # noqa: E402
from mint.engine.model.precision import choose  # noqa: E402

DEVICE = "cuda" if CUDA else "cpu"
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1e-2}
# Triton's interpreter cuts bits off where a GPU rounds to bfloat16.
HALF = 4e-2 if INTERPRETED else 2e-2
GRADIENT_TOLERANCE = {torch.float32: 1e-4, torch.float16: HALF, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Case:
    """One configuration of attention."""

    heads: int = 4
    kv_heads: int = 2
    dim: int = 64
    dtype: torch.dtype = torch.float32
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False
    block_size: int = 16

    @property
    def scale(self) -> float:
        return 1.3 * self.dim**-0.5

    def settings(self, sinks: Tensor | None) -> tuple[Any, ...]:
        return self.scale, self.window, self.softcap, sinks

    def __str__(self) -> str:
        extras = f"w{self.window}-c{self.softcap:g}-s{int(self.sinks)}-b{self.block_size}"
        kind = str(self.dtype).removeprefix("torch.")
        return f"{kind}-h{self.heads}-{self.kv_heads}-d{self.dim}-{extras}"


CASES = [
    Case(),
    Case(heads=3, kv_heads=3, dim=8),
    Case(heads=6, kv_heads=2, dim=80, sinks=True),
    Case(heads=4, kv_heads=1, dim=80, window=7),
    Case(heads=4, kv_heads=1, window=40, sinks=True, block_size=32),
    Case(heads=6, kv_heads=2, dim=8, softcap=2.0, block_size=64),
    Case(heads=3, kv_heads=1, softcap=5.0, window=21, sinks=True),
    Case(heads=20, kv_heads=1, dim=8),
    Case(dtype=torch.float16),
    Case(dtype=torch.float16, heads=3, kv_heads=1, dim=80, softcap=3.0, sinks=True),
    Case(dtype=torch.float16, heads=4, kv_heads=1, window=33, block_size=128),
    Case(dtype=torch.bfloat16, heads=3, kv_heads=3, block_size=32),
    Case(dtype=torch.bfloat16, heads=6, kv_heads=2, dim=8, window=19, softcap=4.0, sinks=True),
    Case(dtype=torch.bfloat16, heads=4, kv_heads=1, dim=128),
    Case(dtype=torch.float16, heads=2, kv_heads=1, dim=256),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """Fill uninitialised tensors with NaN: what a kernel forgets to write shows."""
    torch.manual_seed(torch.seed())
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def bfloat16_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton's interpreter multiply bfloat16: it multiplies the bits, as uint16."""
    if not INTERPRETED:
        return
    import numpy as np
    from triton.language import bfloat16
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def widen(handle: Any) -> Any:
        if handle.dtype.scalar != bfloat16:
            return handle.data.astype(np.float32)
        return (handle.data.astype(np.uint32) << 16).view(np.float32)

    def dot(self: Any, a: Any, b: Any, c: Any, *_: Any) -> Any:
        return TensorHandle(widen(a) @ widen(b) + c.data, c.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", dot)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def integers(values: list[int] | Tensor) -> Tensor:
    return torch.as_tensor(values, dtype=torch.int32, device=DEVICE)


def random_sinks(case: Case) -> Tensor | None:
    return random(case.heads) * 2 if case.sinks else None


def dense(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, case: Case, sinks: Tensor | None
) -> Tensor:
    """Compute attention in float64 with a mask ``visible`` [queries, keys]."""
    q, k, v = q.double(), k.double(), v.double()
    group = case.heads // case.kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    logits = torch.einsum("qhd,khd->hqk", q, k) * case.scale
    if case.softcap:
        logits = case.softcap * torch.tanh(logits / case.softcap)
    logits = logits.masked_fill(~visible, float("-inf"))
    if sinks is not None:
        column = sinks.double()[:, None, None].expand(-1, logits.shape[1], 1)
        logits = torch.cat([logits, column], -1)
    weights = logits.softmax(-1)[:, :, : k.shape[0]]
    return torch.einsum("hqk,khd->qhd", weights, v)


def window_mask(query_positions: Tensor, count: int, window: int) -> Tensor:
    """Return which of ``count`` keys in a row the queries at these positions see."""
    keys = torch.arange(count, device=DEVICE)[None, :]
    visible = keys <= query_positions[:, None]
    return visible & (keys > query_positions[:, None] - window) if window else visible


def assert_close(actual: Tensor, expected: Tensor, tolerance: float, floor: float = 0.0) -> None:
    """Compare by norm: the error is at most ``tolerance`` of the expected norm (or ``floor``)."""
    assert not actual.isnan().any()
    error = (actual.double() - expected.double()).norm().item()
    assert error <= tolerance * max(expected.norm().item(), floor)


class Cache:
    """A pool with the keys and values of some sequences in shuffled blocks; NaN elsewhere."""

    def __init__(self, case: Case, lengths: list[int]) -> None:
        size = case.block_size
        counts = [-(-length // size) for length in lengths]
        blocks = torch.randperm(sum(counts) + 3, dtype=torch.int32, device=DEVICE)
        self.pool = torch.full(
            (2, len(blocks), case.kv_heads, size, case.dim), float("nan"), device=DEVICE
        ).to(case.dtype)
        # entries behind a sequence's blocks point far out of the pool
        self.table = torch.full((len(lengths), max(counts) + 2), 2**30, dtype=torch.int32).to(
            DEVICE
        )
        self.keys, self.values = [], []
        used = 0
        for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
            self.table[row, :count] = blocks[used : used + count]
            used += count
            positions = torch.arange(length, device=DEVICE)
            slots = self.table[row, positions // size].long() * size + positions % size
            self.keys.append(random(length, case.kv_heads, case.dim, dtype=case.dtype))
            self.values.append(random(length, case.kv_heads, case.dim, dtype=case.dtype))
            kernels.store(self.pool, self.keys[-1], self.values[-1], slots)


def parents_of_random_forest(nodes: int) -> list[int]:
    """Return each node's parent (-1: a root), in depth-first order, with random branching."""
    path: list[int] = []
    parents = []
    for node in range(nodes):
        chance = torch.rand(()).item()
        if chance < 0.02:
            path = []
        elif chance < 0.12:
            path = path[: int(torch.randint(len(path) + 1, ()))]
        parents.append(path[-1] if path else -1)
        path.append(node)
    return parents


class Forest:
    """The arrays that describe a forest, and its dense mask."""

    def __init__(self, parents: list[int]) -> None:
        nodes = len(parents)
        ends = list(range(1, nodes + 1))
        for node in reversed(range(nodes)):
            if parents[node] >= 0:
                ends[parents[node]] = max(ends[parents[node]], ends[node])
        roots, positions = [], []
        for node, parent in enumerate(parents):
            roots.append(node if parent < 0 else roots[parent])
            positions.append(0 if parent < 0 else positions[parent] + 1)
        self.arrays = integers(ends), integers(roots), integers(positions)
        mask = torch.zeros(nodes, nodes, dtype=torch.bool)
        for node, parent in enumerate(parents):
            if parent >= 0:
                mask[node] = mask[parent]
            mask[node, node] = True
        self.ancestors = mask.to(DEVICE)

    def visible(self, window: int) -> Tensor:
        positions = self.arrays[2]
        if not window:
            return self.ancestors
        return self.ancestors & (positions[:, None] - positions[None, :] < window)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("kv_heads", "dim", "block_size"), [(2, 8, 16), (3, 80, 32), (20, 64, 16)])
def test_store_writes_each_row_to_its_slot_and_nothing_else(
    dtype: torch.dtype, kv_heads: int, dim: int, block_size: int
) -> None:
    pool = random(2, 5, kv_heads, block_size, dim, dtype=dtype)
    expected = pool.clone()
    slots = torch.randperm(5 * block_size, device=DEVICE)[:11]
    slots[3] = slots[7] = -1
    k = random(11, dim, kv_heads).transpose(1, 2)  # not dense
    v = random(11, 2 * kv_heads, dim, dtype=torch.float16)[:, ::2]
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[0, slot // block_size, :, slot % block_size] = k[row].to(dtype)
            expected[1, slot // block_size, :, slot % block_size] = v[row].to(dtype)
    kernels.store(pool, k, v, slots)
    if INTERPRETED and dtype == torch.bfloat16:  # the interpreter truncates instead of rounding
        torch.testing.assert_close(pool, expected, rtol=0.01, atol=0)
    else:
        assert torch.equal(pool, expected)


@every_case
def test_decode_equals_dense_attention_of_the_newest_token(case: Case) -> None:
    check_decode(case, lengths=[1, case.block_size, 0, 53, 2 * case.block_size + 1])


@pytest.mark.parametrize("splits", [1, 2, 8])
@pytest.mark.parametrize("window", [0, 50])
@pytest.mark.parametrize("sinks", [False, True])
def test_decode_does_not_depend_on_the_number_of_splits(
    splits: int, window: int, sinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "count_splits", lambda *_: splits)
    case = Case(dim=16, window=window, sinks=sinks)
    check_decode(case, lengths=[1, 16, 0, 53, 130, 260])


def check_decode(case: Case, lengths: list[int]) -> None:
    """Compare decoding with the dense reference; a row of length 0 has zeros."""
    cache = Cache(case, lengths)
    q = random(len(lengths), case.heads, case.dim)
    sinks = random_sinks(case)
    out = kernels.paged_decode(q, cache.pool, cache.table, integers(lengths), *case.settings(sinks))
    assert out.dtype == torch.float32
    expected = torch.zeros_like(out, dtype=torch.float64)
    for row, length in enumerate(lengths):
        if length:
            visible = window_mask(integers([length - 1]), length, case.window)
            query = q[row : row + 1].to(case.dtype)
            expected[row] = dense(query, cache.keys[row], cache.values[row], visible, case, sinks)[
                0
            ]
        else:
            assert not out[row].any()
    assert_close(out, expected, TOLERANCE[case.dtype])


@every_case
def test_prefill_equals_dense_causal_attention(case: Case) -> None:
    before, chunks = [0, 37, 5, 128, 0], [1, 50, 0, 3, 141]
    lengths = [old + new for old, new in zip(before, chunks, strict=True)]
    cache = Cache(case, lengths)
    starts = torch.tensor([0, *chunks]).cumsum(0).tolist()
    q = random(sum(chunks), case.heads, case.dim)
    sinks = random_sinks(case)
    out = kernels.paged_prefill(
        q, cache.pool, cache.table, integers(starts), integers(before), *case.settings(sinks), 150
    )
    assert out.dtype == torch.float32
    for row, (old, length) in enumerate(zip(before, lengths, strict=True)):
        rows = slice(starts[row], starts[row + 1])
        visible = window_mask(torch.arange(old, length, device=DEVICE), length, case.window)
        query = q[rows].to(case.dtype)
        expected = dense(query, cache.keys[row], cache.values[row], visible, case, sinks)
        assert_close(out[rows], expected, TOLERANCE[case.dtype])


@every_case
def test_tree_attention_and_its_gradients_equal_the_dense_ones(case: Case) -> None:
    check_tree(case, parents_of_random_forest(180 if case.heads < 20 else 40))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("window", [0, 30])
@pytest.mark.parametrize(
    "parents",
    [
        [-1],
        [node - 1 for node in range(200)],
        [node - 1 if node % 64 else -1 for node in range(192)],
        [node - 1 if node < 130 or node % 33 else 129 for node in range(230)],
        [-1, *[0] * 80],
    ],
    ids=["one node", "chain", "aligned chains", "prompt with answers", "star"],
)
def test_tree_attention_of_regular_forests(
    parents: list[int], window: int, dtype: torch.dtype
) -> None:
    check_tree(Case(dim=16, window=window, dtype=dtype), parents)


def check_tree(case: Case, parents: list[int], grad_scale: float = 1.0) -> None:
    """Compare output and gradients with the dense reference."""
    forest = Forest(parents)
    nodes = len(parents)
    shapes = [(nodes, case.heads, case.dim)] + [(nodes, case.kv_heads, case.dim)] * 2
    inputs = [random(*shape, dtype=case.dtype).float().requires_grad_() for shape in shapes]
    sinks = random_sinks(case)
    out = tree.tree_attention(*inputs, *forest.arrays, case.dtype, *case.settings(sinks))
    assert out.dtype == torch.float32
    grad = random(*out.shape) * grad_scale
    gradients = torch.autograd.grad(out, inputs, grad)

    expected = dense(*inputs, forest.visible(case.window), case, sinks)
    wanted = torch.autograd.grad(expected, inputs, grad.double())
    assert_close(out, expected, TOLERANCE[case.dtype])
    # A gradient that cancels to zero (that of q when each query sees one key) leaves rounding
    # errors in proportion to the others.
    floor = 0.5 * max(gradient.norm().item() for gradient in wanted)
    for actual, reference in zip(gradients, wanted, strict=True):
        assert actual.dtype == torch.float32
        assert_close(actual, reference, GRADIENT_TOLERANCE[case.dtype], floor)


def test_gradients_may_be_out_of_the_range_of_float16() -> None:
    check_tree(Case(dtype=torch.float16), parents_of_random_forest(100), grad_scale=1e7)
    check_tree(Case(dtype=torch.float16), parents_of_random_forest(100), grad_scale=1e-9)


def test_gradients_are_the_same_bits_every_time() -> None:
    forest = Forest(parents_of_random_forest(150))
    q, k, v = random(150, 6, 16), random(150, 2, 16), random(150, 2, 16)
    grad = random(150, 6, 16)

    def gradients() -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = tree.tree_attention(*leaves, *forest.arrays, torch.float16, 0.3, 0, 0.0, None)
        return list(torch.autograd.grad(out, leaves, grad))

    for first, second in zip(gradients(), gradients(), strict=True):
        assert torch.equal(first, second)


def test_strided_inputs_give_what_dense_ones_do() -> None:
    forest = Forest(parents_of_random_forest(90))
    fused = random(90, 8, 16, dtype=torch.float16)
    views = [fused[:, :4], fused[:, 4:6], fused[:, 6:]]
    settings = (torch.float16, 0.3, 0, 0.0, None)
    results = []
    for tensors in (views, [view.contiguous() for view in views]):
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        out = tree.tree_attention(*leaves, *forest.arrays, *settings)
        results.append([out, *torch.autograd.grad(out.sum(), leaves)])
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


def test_nothing_in_gives_nothing_out() -> None:
    pool = random(2, 1, 1, 16, 8)
    none, table = integers([]), integers([]).reshape(0, 1)
    empty = random(0, 2, 8)
    settings = (1.0, 0, 0.0, None)
    assert kernels.paged_decode(empty, pool, table, none, *settings).shape == (0, 2, 8)
    starts = integers([0])
    out = kernels.paged_prefill(empty, pool, table, starts, none, *settings, 0)
    assert out.shape == (0, 2, 8)
    leaves = [random(0, heads, 8).requires_grad_() for heads in (2, 1, 1)]
    out = tree.tree_attention(*leaves, none, none, none, torch.float32, *settings)
    assert [g.shape[0] for g in torch.autograd.grad(out.sum(), leaves)] == [0, 0, 0]


def test_operators_meet_the_rules_of_torch_library() -> None:
    """Check schemas and fake kernels, which torch.compile relies on."""
    case = Case(dim=16, dtype=torch.float16)
    cache = Cache(case, [20, 40])
    k = random(2, 2, 16)
    slots = torch.tensor([4, -1], device=DEVICE)
    settings = case.settings(None)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(kernels.store, (cache.pool, k, k, slots), test_utils=checks)
    q = random(2, 4, 16)
    decode = (q, cache.pool, cache.table, integers([20, 40]), *settings)
    torch.library.opcheck(kernels.paged_decode, decode, test_utils=checks)
    chunks = (integers([0, 1, 2]), integers([19, 39]))
    prefill = (q, cache.pool, cache.table, *chunks, *settings, 1)
    torch.library.opcheck(kernels.paged_prefill, prefill, test_utils=checks)
    arrays = Forest([-1, 0]).arrays
    leaves = [x.requires_grad_() for x in (q, k, random(2, 2, 16))]
    arguments = (*leaves, *arrays, *settings)
    checks = (*checks, "test_autograd_registration")
    torch.library.opcheck(tree._forward, arguments, test_utils=checks)


def test_compiled_decoding_writes_the_pool_and_reads_it_back() -> None:
    case = Case(dim=16)

    def step(pool: Tensor, q: Tensor, k: Tensor, v: Tensor, slots: Tensor, *rest: Tensor) -> Tensor:
        kernels.store(pool, k, v, slots)
        return kernels.paged_decode(q, pool, *rest, *case.settings(None)) + 1

    backend = "inductor" if CUDA else "aot_eager"
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=backend)
    for rows in (2, 3):
        cache = Cache(case, [30] * rows)
        slots = cache.table[:, 1].long() * 16 + 14  # position 30, after the stored ones
        q, k, v = (random(rows, heads, 16) for heads in (4, 2, 2))
        rest = (cache.table, integers([31] * rows))
        pool = cache.pool.clone()
        out = compiled(pool, q, k, v, slots, *rest)
        assert_close(out, step(cache.pool, q, k, v, slots, *rest), 1e-6)
        assert torch.equal(pool.nan_to_num(), cache.pool.nan_to_num())


def test_compiled_code_traces_through_the_operators_with_dynamic_shapes() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, arrays: tuple[Tensor, ...]) -> Tensor:
        settings = (torch.float16, 0.3, 0, 0.0, None)
        return tree.tree_attention(q * 2, k, v, *arrays, *settings) + 1

    backend = "inductor" if CUDA else "aot_eager"
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend=backend)
    for nodes in (40, 70):
        arrays = Forest(parents_of_random_forest(nodes)).arrays
        leaves = [random(nodes, heads, 16).requires_grad_() for heads in (4, 2, 2)]
        expected = attend(*leaves, arrays)
        out = compiled(*leaves, arrays)
        assert_close(out, expected, 1e-5)
        wanted = torch.autograd.grad(expected.square().sum(), leaves)
        for actual, reference in zip(
            torch.autograd.grad(out.square().sum(), leaves), wanted, strict=True
        ):
            assert_close(actual, reference, 1e-4)


@pytest.mark.parametrize(("rows", "slots", "rank", "columns"), [(5, 1, 4, 70), (70, 3, 24, 64),
                                                                (40, 16, 16, 130),
                                                                (40, 2, 300, 2100),
                                                                (40, 16, 48, 64)])  # fmt: skip
def test_every_row_gets_what_its_own_adapter_adds(
    rows: int, slots: int, rank: int, columns: int
) -> None:
    """Rows of no adapter stay; an infinite adapter reaches no row but its own."""
    y = random(rows, columns + slots * rank)
    b = random(slots, rank, columns, dtype=torch.float16)
    own = torch.randint(-1, slots, (rows,), device=DEVICE)
    own[0] = -1
    mask = (own[:, None] == torch.arange(slots, device=DEVICE)).float()
    wanted = y[:, :columns].double()
    for row, slot in enumerate(own.tolist()):
        if slot >= 0:
            inner = y[row, columns + slot * rank : columns + (slot + 1) * rank].half()
            wanted[row] += inner.double() @ b[slot].double()
    others = own != slots - 1
    y[:, columns + (slots - 1) * rank :] = y[:, columns + (slots - 1) * rank :].masked_fill(
        others[:, None], float("inf")
    )
    lora_expand(y, b, mask)
    torch.testing.assert_close(y[:, :columns].double(), wanted, atol=1e-4, rtol=1e-4)


def test_a_mask_of_one_row_is_that_of_all_rows() -> None:
    """A prompt is scored with one adapter, in whatever slot, by a mask of one row."""
    rows, inputs, slots, rank, columns = 40, 32, 3, 16, 70
    layer = nn.Linear(inputs, columns, bias=False, device=DEVICE)
    product = FrozenLinear(
        [Site("x", "mlp", inputs, columns)], [layer], choose("half", torch.device(DEVICE))
    )
    product.extended = torch.cat(
        [product.weight, random(slots * rank, inputs, dtype=torch.float16)]
    )
    x, b = random(rows, inputs), random(slots, rank, columns, dtype=torch.float16)
    alone = torch.tensor([[0.0, 0.0, 1.0]], device=DEVICE)
    found = product._joint(x, b, BankedLora(slots, alone))
    torch.testing.assert_close(
        found, product._joint(x, b, BankedLora(slots, alone.repeat(rows, 1)))
    )
