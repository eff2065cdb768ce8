"""The kernels in C against plain float64, and the same bits for a row in any company."""

from __future__ import annotations

import ctypes
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mint.engine import native
from mint.engine.attention.layout import Chunk
from mint.engine.attention.paged import PagedAttention
from mint.engine.model.base_model import BaseModel
from mint.engine.model.context import NoLora, Scores
from mint.engine.model.sampled_trunk import SampledTrunk
from mint.engine.native import build
from mint.engine.native.layers import gate, norm, pick
from mint.engine.sampling.kv_pool import BLOCK_SIZE, KVPool
from tests.engine.plain_decode import ReferenceDecode
from tests.tiny import build_model

pytestmark = pytest.mark.skipif(
    native.missing() is not None, reason=f"no kernels here: {native.missing()}"
)
SIZES = st.sampled_from([0, 1, 2, 15, 16, 17, 48, 49, 64, 65, 130])
DEPTHS = st.sampled_from([1, 2, 15, 64, 577, 2050])  # the last is multiplied in two parts


def numbers(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator)


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(0, 20), outputs=SIZES, inputs=DEPTHS, seed=st.integers(0, 9),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]), is_transposed=st.booleans(),
)  # fmt: skip
def test_a_product_is_that_of_float64(
    rows: int, outputs: int, inputs: int, seed: int, dtype: torch.dtype, is_transposed: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = numbers(generator, rows, inputs)
    weight = numbers(generator, inputs, outputs).to(dtype).T
    if not is_transposed:
        weight = weight.contiguous()
    y = native.Packed(weight).multiply(x)
    expected = x.to(dtype).double() @ weight.double().T
    assert y.dtype == torch.float32
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=3e-5 * inputs**0.5)


@settings(deadline=None, max_examples=30)
@given(
    slots=st.lists(st.integers(-1, 3), min_size=1, max_size=20), inputs=DEPTHS,
    sizes=st.lists(st.sampled_from([1, 16, 30, 64, 100]), min_size=1, max_size=3),
    seed=st.integers(0, 9),
)  # fmt: skip
def test_each_row_gets_its_own_adapter(
    slots: list[int], inputs: int, sizes: list[int], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    outputs, ranks = sum(sizes), [1, 16, 5]  # and slot 3 is empty
    packed = native.Packed(numbers(generator, outputs, inputs).bfloat16(), sizes)
    x = numbers(generator, len(slots), inputs)
    frozen = packed.multiply(x)
    expected = frozen.double()
    for slot, rank in enumerate(ranks):
        a, b = numbers(generator, rank * len(sizes), inputs), numbers(generator, rank, outputs)
        packed.set_adapter(slot, a, b)
        for row in [row for row, own in enumerate(slots) if own == slot]:
            inner = (a.double() @ x[row].double()).view(len(sizes), rank)
            parts = torch.split(b.double(), sizes, 1)
            expected[row] += torch.cat([i @ p for i, p in zip(inner, parts, strict=True)])
    y = packed.multiply(x, native.RowsBySlot(torch.tensor(slots)))
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-3 * inputs**0.5)
    for row, slot in enumerate(slots):
        alone = packed.multiply(x[row : row + 1], native.RowsBySlot(slot))
        assert torch.equal(alone[0], y[row])


@pytest.mark.parametrize("inputs", [64, 3000])
def test_a_row_has_the_same_bits_in_any_batch_and_on_any_number_of_threads(inputs: int) -> None:
    generator = torch.Generator().manual_seed(0)
    packed = native.Packed(numbers(generator, 330, inputs).bfloat16())
    x = numbers(generator, 100, inputs)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        whole = packed.multiply(x)
        torch.set_num_threads(1)
        for start, stop in [(0, 1), (3, 5), (10, 17), (40, 100)]:
            assert torch.equal(packed.multiply(x[start:stop]), whole[start:stop])
    finally:
        torch.set_num_threads(threads)


def test_a_product_adds_a_bias_and_what_was_there() -> None:
    generator = torch.Generator().manual_seed(0)
    packed, x = native.Packed(numbers(generator, 70, 9)), numbers(generator, 7, 9)
    bias, before = numbers(generator, 70), numbers(generator, 7, 70)
    y = packed.multiply(x, bias=bias, onto=before.clone())
    torch.testing.assert_close(y, packed.multiply(x) + bias + before)


def test_rows_need_not_be_contiguous() -> None:
    generator = torch.Generator().manual_seed(0)
    packed, x = native.Packed(numbers(generator, 20, 9).bfloat16()), numbers(generator, 5, 30)
    expected = packed.multiply(x[:, 4:13].contiguous())
    assert torch.equal(packed.multiply(x[:, 4:13]), expected)
    assert torch.equal(packed.multiply(x[:, 4:13].T.contiguous().T), expected)


def test_torch_and_the_kernels_share_one_thread_pool() -> None:
    native.Packed(torch.ones(1, 1)).multiply(torch.ones(1, 1))
    with open("/proc/self/maps") as file:
        pools = {line.split()[-1] for line in file if "gomp" in line or "iomp" in line}
    assert len(pools) == 1, pools


def test_numbers_that_are_not_finite_stay_in_their_row() -> None:
    packed = native.Packed(torch.ones(40, 8).bfloat16())
    x = torch.ones(3, 8)
    x[1, 2] = np.nan
    y = packed.multiply(x)
    assert y[1].isnan().all()
    assert torch.equal(y[[0, 2]], torch.full((2, 40), 8.0))


# ---- decoder layers -----------------------------------------------------------------------------


@settings(deadline=None, max_examples=20)
@given(rows=st.integers(0, 9), size=st.sampled_from([1, 8, 16, 30, 576]), seed=st.integers(0, 9))
def test_norms_and_gates_are_those_of_float64(rows: int, size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, weight = 30 * numbers(generator, rows, size), numbers(generator, size)
    wide = x.double()
    expected = weight * wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    torch.testing.assert_close(norm(x, weight, 1e-5).double(), expected, rtol=2e-6, atol=1e-6)
    both = 30 * numbers(generator, rows, 2 * size)
    left, right = both.double().chunk(2, -1)
    expected = torch.nn.functional.silu(left) * right
    torch.testing.assert_close(gate(both).double(), expected, rtol=2e-6, atol=1e-30)


def paged(lengths: list[int], shared: int) -> tuple[list[Chunk], int]:
    """Return rows of these lengths that have the blocks of a prompt in common."""
    common = list(range(1, 1 + shared // BLOCK_SIZE))
    rows, used = [], 1 + len(common)
    for length in lengths:
        count = -(-(length) // BLOCK_SIZE) - len(common)
        blocks = [*common, *range(used + count - 1, used - 1, -1)]
        rows.append(Chunk(np.zeros(1, np.int64), length - 1, blocks, shared))
        used += count
    return rows, used


@settings(deadline=None, max_examples=40)
@given(
    tails=st.lists(st.integers(1, 40), min_size=1, max_size=20),
    shared=st.sampled_from([0, 16, 50, 96]), size=st.sampled_from([8, 40, 64]),
    repeat=st.sampled_from([1, 3, 4, 7]), window=st.sampled_from([0, 6, 33]),
    softcap=st.sampled_from([0.0, 5.0]), has_sinks=st.booleans(), seed=st.integers(0, 9),
)  # fmt: skip
def test_decoding_attends_as_the_float64_reference(
    tails: list[int], shared: int, size: int, repeat: int, window: int, softcap: float,
    has_sinks: bool, seed: int,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    rows, blocks = paged([shared + tail for tail in tails], shared)
    heads, count, scale = 2, len(tails), size**-0.5
    sinks = numbers(generator, heads * repeat) if has_sinks else None
    module = torch.nn.Module()
    pool = KVPool({module: (heads, size)}, blocks, torch.float16, torch.device("cpu"))
    wide = KVPool({module: (heads, size)}, blocks, torch.float64, torch.device("cpu"))
    pool.layers()[0][:] = numbers(generator, 2, blocks, heads, BLOCK_SIZE, size)
    wide.layers()[0][:] = pool.layers()[0]
    wide.layers()[0][0] = pool.layers()[0][0].view(blocks, heads, size, BLOCK_SIZE).mT
    # what a block has beyond its sequence must not matter
    for chunk in rows:
        last, offset = chunk.blocks[chunk.start // BLOCK_SIZE], chunk.start % BLOCK_SIZE + 1
        pool.layers()[0][0, last].view(heads, size, BLOCK_SIZE)[:, :, offset:] = np.nan
        pool.layers()[0][1, last, :, offset:] = np.nan
    q, k, v = (numbers(generator, count, n, size) for n in (heads * repeat, heads, heads))
    how = Scores(scale, window, softcap, sinks)
    pool.bind()
    y = PagedAttention(rows).attend(module, q, k, v, how)
    for row in range(count):
        own = (part[row : row + 1] for part in (q, k, v))
        alone = PagedAttention([rows[row]]).attend(module, *own, how)
        assert torch.equal(alone[0], y[row])
    wide.bind()
    double = None if sinks is None else sinks.double()
    expected = ReferenceDecode(wide, rows).attend(
        module, q.double(), k.half().double(), v.half().double(), how._replace(sinks=double)
    )
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-5)


@settings(deadline=None, max_examples=20)
@given(length=st.integers(1, 90), cuts=st.sets(st.integers(1, 89)), window=st.sampled_from([0, 6]))
def test_prefill_has_the_bits_of_decoding_however_it_is_cut(
    length: int, cuts: set[int], window: int
) -> None:
    generator = torch.Generator().manual_seed(length)
    heads, repeat, size = 2, 3, 24
    module = torch.nn.Module()
    blocks = [3, 1, 6, 2, 5, 4]
    q, k, v = (numbers(generator, length, n, size) for n in (heads * repeat, heads, heads))
    how = Scores(size**-0.5, window)

    def run(view: PagedAttention, start: int, stop: int) -> Tensor:
        return view.attend(module, q[start:stop], k[start:stop], v[start:stop], how)

    results = []
    for edges in ([0, *sorted(cut for cut in cuts if cut < length), length], [0, length]):
        KVPool({module: (heads, size)}, 7, torch.float16, torch.device("cpu")).bind()
        chunks = [Chunk(np.zeros(b - a, np.int64), a, blocks) for a, b in pairwise(edges)]
        parts = [run(PagedAttention([c]), c.start, c.end) for c in chunks]
        results.append(torch.cat(parts))
    assert torch.equal(*results)
    row = Chunk(np.zeros(1, np.int64), length - 1, blocks, length // 2)
    decoded = run(PagedAttention([row]), length - 1, length)
    assert torch.equal(decoded[0], results[0][-1])


@pytest.mark.parametrize("family", ["llama", "llama3", "mistral", "qwen2", "qwen3", "smollm3"])
def test_layers_are_those_of_transformers(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With random biases and norms, in a prefill that two rows decode after."""
    folder = build_model(tmp_path, family)
    results = []
    for has_kernels in (True, False):
        if not has_kernels:
            monkeypatch.setattr(SampledTrunk, "is_possible", lambda trunk: False)
        model = BaseModel.load(family, folder, device="cpu", precision="bfloat16")
        assert ("SampledTrunk" in model.trunk.forward.__qualname__) == has_kernels
        generator = torch.Generator().manual_seed(1)
        for name, part in model.trunk.named_modules():
            if name.endswith("norm"):
                part.weight.data += 0.3 * numbers(generator, *part.weight.shape)  # type: ignore[operator]
            if getattr(part, "bias", None) is not None:
                part.bias += numbers(generator, *part.bias.shape)  # type: ignore[operator]
        pool = KVPool(model.kv_shapes, 9, model.precision.keys, torch.device("cpu"))
        pool.bind()
        tokens = np.arange(20, 60)
        with torch.inference_mode():
            chunk = Chunk(tokens, 0, [4, 2, 7])
            view = PagedAttention([chunk])
            first = model.hidden(tokens, chunk.positions, view, NoLora())
            one = Chunk(np.array([60]), 40, [4, 2, 7], 32)
            other = Chunk(np.array([61]), 25, [4, 2], 20)
            view = PagedAttention([one, other])
            more = model.hidden(np.array([60, 61]), np.array([40, 25]), view, NoLora())
        results.append(torch.cat([first, more]))
    kernels, modules = results
    assert (kernels - modules).abs().max() <= 0.02 * modules.abs().max()
    assert (kernels - modules).abs().mean() <= 0.003 * modules.abs().max()


# ---- picking ------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    size=st.sampled_from([1, 15, 256, 257, 1000]), seed=st.integers(0, 99),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
)  # fmt: skip
def test_picked_tokens_and_logprobs_are_those_of_float64(
    size: int, seed: int, temperature: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * numbers(generator, 12, size)
    logits[:, seed % size] += 10  # often one that has nearly all
    if size > 1:
        logits[torch.rand(12, size, generator=generator) < 0.3] = -torch.inf
        logits[:, seed % size] = 3.0
    u = torch.rand(12, generator=generator)
    u[0] = 1 - 2.0**-24
    tokens, logprobs = pick(logits, torch.full((12,), temperature), u)
    scaled = logits.double() / (temperature or 1.0)
    wanted = scaled.log_softmax(-1)
    torch.testing.assert_close(
        logprobs.double(), wanted.gather(1, tokens[:, None])[:, 0], rtol=1e-6, atol=2e-6
    )
    if temperature == 0:
        assert torch.equal(tokens, logits.argmax(-1))
        return
    ends = wanted.exp().cumsum(-1)
    chosen = ends.gather(1, tokens[:, None])[:, 0]
    assert (u.double() <= chosen + 1e-6).all()
    assert (u.double() >= chosen - wanted.exp().gather(1, tokens[:, None])[:, 0] - 1e-6).all()
    assert logprobs.isfinite().all()


def test_a_row_of_nan_picks_some_token_and_says_nan() -> None:
    logits = torch.zeros(3, 500)
    logits[1] = torch.nan
    tokens, logprobs = pick(logits, torch.ones(3), torch.full((3,), 0.5))
    assert 0 <= int(tokens[1]) < 500
    assert logprobs.isnan().tolist() == [False, True, False]


def test_a_library_that_was_cut_short_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = build.load()
    assert isinstance(kernels, ctypes.CDLL)
    library = tmp_path / "mint" / Path(kernels._name).name
    library.parent.mkdir()
    library.write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert isinstance(build.load.__wrapped__(), ctypes.CDLL)
    assert library.stat().st_size > 0
