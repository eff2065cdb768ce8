"""Triton kernels for attention over the paged key-value pool: store, decode, prefill.

The pool of one layer is ``[2, blocks, Hkv, block_size, D]``: keys, then values. A row of the
block table lists the blocks of one sequence, so the key at position p lies in block ``p //
block_size`` of the row, at offset ``p % block_size``. A program computes all query heads of one
key head together (their queries are the rows of its tile), so each key is read once.

Softmax runs in base 2: logits are multiplied by log2(e), and the running maximum and the
logsumexp are in that unit. Import this module only where CUDA (or Triton's interpreter) is used.
"""

# mypy: disable-error-code="import-not-found,import-untyped,misc,no-untyped-def,no-untyped-call"
# mypy: disable-error-code="untyped-decorator,unused-ignore,no-any-return"

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

cdiv = triton.cdiv  # division that rounds up
LOG2E = tl.constexpr(1.4426950408889634)
MASKED = tl.constexpr(-1e30)  # finite, so that a row that sees nothing yet does not become NaN

_SMS = 132  # streaming multiprocessors of a Hopper GPU
_MOST_SPLITS = 32
_SPLIT_TOKENS = 32  # fewer tokens per program are not worth a reduction


@dataclass(frozen=True)
class Tile:
    """The shape of one program: query rows, keys per step, warps, pipeline stages."""

    rows: int
    keys: int
    warps: int
    stages: int


# By padded head size. Float32 dots do not use tensor cores: small tiles avoid register spills.
DECODE_TILES = {64: Tile(16, 64, 4, 3), 128: Tile(16, 64, 4, 2), 256: Tile(16, 32, 4, 2)}
PREFILL_TILES = {64: Tile(128, 64, 8, 3), 128: Tile(128, 64, 8, 3), 256: Tile(128, 32, 8, 2)}
SHORT_PREFILL_TILES = {64: Tile(64, 64, 4, 3), 128: Tile(64, 128, 4, 2), 256: Tile(64, 32, 4, 2)}
FLOAT32_DECODE_TILE = Tile(16, 32, 4, 1)
FLOAT32_TILE = Tile(32, 32, 8, 1)


def pad(size: int, least: int = 16) -> int:
    """Return the next power of two, at least ``least`` (what tl.arange and tl.dot accept)."""
    return max(least, triton.next_power_of_2(size))


def choose_tile(
    table: dict[int, Tile], float32: Tile, dtype: torch.dtype, dim: int, group: int
) -> Tile:
    """Look up the tile for a dtype and head size; widen it if one token's heads do not fit."""
    tile = float32 if dtype == torch.float32 else table[pad(dim, 64)]
    if group <= tile.rows:
        return tile
    return Tile(pad(group), tile.keys, tile.warps, tile.stages)


def unit_stride(tensor: Tensor) -> Tensor:
    """Return the tensor, copied only if its last dimension is not dense."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


@triton.jit
def base2_logits(dots, scale, SOFTCAP: tl.constexpr):
    """Scale and soft-cap dot products; return logits in base 2."""
    if SOFTCAP > 0:
        # tanh(x) = 1 - 2 / (exp(2x) + 1), which saturates correctly when exp overflows
        power = tl.exp2(dots * (scale * (2 * LOG2E / SOFTCAP)))
        return (SOFTCAP * LOG2E) * (1 - 2 / (power + 1))
    return dots * (scale * LOG2E)


@triton.jit
def softmax_step(logits, top, total):
    """Advance the online softmax by one tile.

    Return the tile's weights, the factor for what was accumulated before, and the new running
    maximum and sum.
    """
    new_top = tl.maximum(top, tl.max(logits, 1))
    weights = tl.exp2(logits - new_top[:, None])
    decay = tl.exp2(top - new_top)
    return weights, decay, new_top, total * decay + tl.sum(weights, 1)


@triton.jit
def softmax_start(sinks, head, real, ROWS: tl.constexpr, HAS_SINKS: tl.constexpr):
    """Return the running maximum and sum before the first key: the sink, if there is one."""
    if HAS_SINKS:
        sink = tl.load(sinks + head, mask=real, other=0.0).to(tl.float32)
        return sink * LOG2E, tl.full([ROWS], 1.0, tl.float32)
    return tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)


@triton.jit
def _pool_offsets(table, position, valid, block_stride, slot_stride, BLOCK: tl.constexpr):
    """Return where the keys at these positions lie, relative to block 0 of their head."""
    block = tl.load(table + position // BLOCK, mask=valid, other=0)
    return block.to(tl.int64) * block_stride + (position % BLOCK) * slot_stride


@triton.jit
def _store_kernel(
    pool, keys, values, slots,
    k_row, k_head, v_row, v_head, value_stride, block_stride, head_stride, slot_stride,
    WIDTH: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if slot >= 0:
        index = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
        head, dim = index // D, index % D
        inside = index < WIDTH
        key = tl.load(keys + row * k_row + head * k_head + dim, mask=inside)
        value = tl.load(values + row * v_row + head * v_head + dim, mask=inside)
        place = pool + (slot // BLOCK) * block_stride + (slot % BLOCK) * slot_stride
        place += head * head_stride + dim
        tl.store(place, key.to(pool.dtype.element_ty), mask=inside)
        tl.store(place + value_stride, value.to(pool.dtype.element_ty), mask=inside)


@triton.jit
def _decode_kernel(
    query, pool, table, lengths, sinks, out, sums, scale,
    q_row, q_head, value_stride, block_stride, head_stride, slot_stride, table_row,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, SPLITS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    kv_head, split = tl.program_id(0), tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    rank = tl.arange(0, ROWS)
    dim = tl.arange(0, DIM)
    real = rank < GROUP
    head = kv_head * GROUP + rank
    tile_mask = real[:, None] & (dim < D)[None, :]

    # Every split takes the same number of the row's own visible blocks.
    length = tl.load(lengths + row)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0)
    block_first = first // BLOCK
    share = tl.cdiv(tl.cdiv(length, BLOCK) - block_first, SPLITS) * BLOCK
    low = block_first * BLOCK + split * share
    high = tl.minimum(low + share, length)
    low = tl.maximum(low, first)

    queries = tl.load(
        query + row * q_row + head[:, None] * q_head + dim[None, :], mask=tile_mask, other=0.0
    ).to(pool.dtype.element_ty)
    top, total = softmax_start(sinks, head, real & (split == 0), ROWS, HAS_SINKS)
    if HAS_SINKS and SPLITS > 1:  # only the first split counts the sink
        top = tl.where(split == 0, top, float("-inf"))
        total = tl.where(split == 0, total, 0.0)
    mixed = tl.zeros([ROWS, DIM], tl.float32)
    blocks = table + row * table_row
    head_pool = pool + kv_head * head_stride
    for start in range(low, high, KEYS):
        position = start + tl.arange(0, KEYS)
        valid = position < high
        offset = _pool_offsets(blocks, position, valid, block_stride, slot_stride, BLOCK)
        place = head_pool + offset[:, None] + dim[None, :]
        key_mask = valid[:, None] & (dim < D)[None, :]
        keys = tl.load(place, mask=key_mask, other=0.0)
        values = tl.load(place + value_stride, mask=key_mask, other=0.0)
        dots = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        logits = tl.where(valid[None, :], base2_logits(dots, scale, SOFTCAP), MASKED)
        weights, decay, top, total = softmax_step(logits, top, total)
        mixed = tl.dot(
            weights.to(values.dtype), values, mixed * decay[:, None], input_precision="ieee"
        )

    seen = (total > 0) & (low < high)
    mixed = mixed / tl.where(seen, total, 1.0)[:, None]
    heads = tl.num_programs(0) * GROUP
    place = (row * heads + head) * SPLITS + split
    if SPLITS == 1:
        tl.store(out + place[:, None] * D + dim[None, :], mixed, mask=tile_mask)
    else:
        tl.store(sums + place, tl.where(seen, top + tl.log2(total), float("-inf")), mask=real)
        if low < high:  # the reduction does not read the part of an empty split
            tl.store(out + place[:, None] * D + dim[None, :], mixed, mask=tile_mask)


@triton.jit
def _reduce_kernel(
    parts, sums, out, D: tl.constexpr, SPLITS: tl.constexpr, DIM: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    dim = tl.arange(0, DIM)
    logsum = tl.load(sums + row * SPLITS + split)
    seen = logsum > float("-inf")
    top = tl.max(tl.where(seen, logsum, MASKED), 0)
    weights = tl.where(seen, tl.exp2(logsum - top), 0.0)
    part = tl.load(
        parts + (row * SPLITS + split)[:, None] * D + dim[None, :],
        mask=seen[:, None] & (dim < D)[None, :],
        other=0.0,
    )
    total = tl.sum(weights, 0)
    mixed = tl.sum(part * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(out + row * D + dim, mixed, mask=dim < D)


@triton.jit
def _prefill_step(
    queries, mixed, top, total, head_pool, blocks, start, limit, position, dim, scale,
    value_stride, block_stride, slot_stride,
    D: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    KEYS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Attend to one tile of keys; WHOLE: every row sees every key of it."""
    key = start + tl.arange(0, KEYS)
    valid = key < limit
    offset = _pool_offsets(blocks, key, valid, block_stride, slot_stride, BLOCK)
    place = head_pool + offset[:, None] + dim[None, :]
    key_mask = valid[:, None] & (dim < D)[None, :]
    keys = tl.load(place, mask=key_mask, other=0.0)
    values = tl.load(place + value_stride, mask=key_mask, other=0.0)
    dots = tl.dot(queries, tl.trans(keys), input_precision="ieee")
    logits = base2_logits(dots, scale, SOFTCAP)
    if not WHOLE:
        visible = key[None, :] <= position[:, None]
        if WINDOW > 0:
            visible &= key[None, :] > position[:, None] - WINDOW
        logits = tl.where(visible, logits, MASKED)
    weights, decay, top, total = softmax_step(logits, top, total)
    mixed = tl.dot(weights.to(values.dtype), values, mixed * decay[:, None], input_precision="ieee")
    return mixed, top, total


@triton.jit
def _prefill_kernel(
    query, pool, table, starts, lengths_before, sinks, out, scale,
    q_row, q_head, value_stride, block_stride, head_stride, slot_stride, table_row,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)  # the tiles with the most keys go first
    sequence = tl.program_id(2).to(tl.int64)
    TOKENS: tl.constexpr = ROWS // GROUP
    begin = tl.load(starts + sequence)
    end = tl.load(starts + sequence + 1)
    first = begin + tile * TOKENS
    if first < end:
        rank = tl.arange(0, ROWS)
        dim = tl.arange(0, DIM)
        token = first + rank // GROUP
        head = kv_head * GROUP + rank % GROUP
        real = (rank < TOKENS * GROUP) & (token < end)
        shift = tl.load(lengths_before + sequence) - begin
        position = token + shift
        limit = tl.minimum(first + TOKENS, end) + shift

        tile_mask = real[:, None] & (dim < D)[None, :]
        wide = token.to(tl.int64)
        queries = tl.load(
            query + wide[:, None] * q_row + head[:, None] * q_head + dim[None, :],
            mask=tile_mask, other=0.0,
        ).to(pool.dtype.element_ty)  # fmt: skip
        top, total = softmax_start(sinks, head, real, ROWS, HAS_SINKS)
        mixed = tl.zeros([ROWS, DIM], tl.float32)
        blocks = table + sequence * table_row
        head_pool = pool + kv_head * head_stride
        if WINDOW > 0:
            middle = tl.maximum(first + shift - WINDOW + 1, 0)
        else:
            middle = (first + shift + 1) // KEYS * KEYS
            for start in range(0, middle, KEYS):
                mixed, top, total = _prefill_step(
                    queries, mixed, top, total, head_pool, blocks, start, limit, position, dim,
                    scale, value_stride, block_stride, slot_stride,
                    D, BLOCK, WINDOW, SOFTCAP, KEYS, True,
                )  # fmt: skip
        for start in range(middle, limit, KEYS):
            mixed, top, total = _prefill_step(
                queries, mixed, top, total, head_pool, blocks, start, limit, position, dim,
                scale, value_stride, block_stride, slot_stride,
                D, BLOCK, WINDOW, SOFTCAP, KEYS, False,
            )  # fmt: skip
        heads = tl.num_programs(0) * GROUP
        place = out + (wide * heads + head)[:, None] * D + dim[None, :]
        tl.store(place, mixed / total[:, None], mask=tile_mask)


@torch.library.custom_op("mint::store", mutates_args=("pool",))
def store(pool: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Write new keys and values ``[N, Hkv, D]`` into the pool, cast to its dtype.

    ``slots`` [N] int64 are ``block * block_size + offset``; rows with a negative slot are skipped.
    """
    _, _, heads, block_size, dim = pool.shape
    if k.shape[0] == 0:
        return
    k, v = unit_stride(k), unit_stride(v)
    chunk = min(1024, pad(heads * dim))
    value_stride, block_stride, head_stride, slot_stride, _ = pool.stride()
    _store_kernel[(k.shape[0], triton.cdiv(heads * dim, chunk))](
        pool, k, v, slots,
        k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        value_stride, block_stride, head_stride, slot_stride,
        heads * dim, dim, block_size, chunk,
        num_warps=4,
    )  # fmt: skip


def count_splits(rows: int, heads: int, tokens: int) -> int:
    """Return into how many parts decoding divides each row: a power of two, 1 to 32.

    Gives each SM two to four programs, as long as every part still has work to do.

    >>> count_splits(256, 8, 4096), count_splits(16, 8, 4096), count_splits(1, 8, 4096)
    (1, 4, 32)
    """
    wanted = min(4 * _SMS // (rows * heads), _MOST_SPLITS, tokens // _SPLIT_TOKENS)
    return 1 << (max(wanted, 1).bit_length() - 1)


@torch.library.custom_op("mint::paged_decode", mutates_args=())
def paged_decode(
    q: Tensor, pool: Tensor, block_table: Tensor, lengths: Tensor,
    scale: float, window: int, softcap: float, sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    """Attend with one new token per row; return ``[B, H, D]`` in float32.

    ``lengths`` [B] int32 counts the tokens each row sees, its newest (already stored) included.
    A row of length 0 is padding and gets zeros.
    """
    rows, heads, dim = q.shape
    _, _, kv_heads, block_size, _ = pool.shape
    out = torch.empty((rows, heads, dim), dtype=torch.float32, device=q.device)
    if rows == 0:
        return out
    q = unit_stride(q)
    group = heads // kv_heads
    tile = choose_tile(DECODE_TILES, FLOAT32_DECODE_TILE, pool.dtype, dim, group)
    splits = count_splits(rows, kv_heads, block_table.shape[1] * block_size)
    parts = sums = out
    if splits > 1:
        parts = torch.empty((rows, heads, splits, dim), dtype=torch.float32, device=q.device)
        sums = torch.empty((rows, heads, splits), dtype=torch.float32, device=q.device)
    value_stride, block_stride, head_stride, slot_stride, _ = pool.stride()
    _decode_kernel[(kv_heads, splits, rows)](
        q, pool, block_table, lengths, q if sinks is None else sinks, parts, sums, scale,
        q.stride(0), q.stride(1), value_stride, block_stride, head_stride, slot_stride,
        block_table.stride(0),
        group, dim, block_size, window, softcap, sinks is not None, splits,
        tile.rows, tile.keys, pad(dim),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if splits > 1:
        _reduce_kernel[(rows * heads,)](parts, sums, out, dim, splits, pad(dim), num_warps=4)
    return out


@torch.library.custom_op("mint::paged_prefill", mutates_args=())
def paged_prefill(
    q: Tensor, pool: Tensor, block_table: Tensor, starts: Tensor, lengths_before: Tensor,
    scale: float, window: int, softcap: float, sinks: Tensor | None, longest: int,
) -> Tensor:  # fmt: skip
    """Attend with the chunks of several sequences, laid end to end; return ``[N, H, D]`` float32.

    Sequence s owns rows ``starts[s]`` to ``starts[s + 1]`` of ``q``, which follow its
    ``lengths_before[s]`` older tokens; all their keys and values are already stored. ``longest``
    is at least the length of the longest chunk. Rows that belong to no sequence are undefined.
    """
    total, heads, dim = q.shape
    _, _, kv_heads, block_size, _ = pool.shape
    out = torch.empty((total, heads, dim), dtype=torch.float32, device=q.device)
    sequences = starts.shape[0] - 1
    if total == 0 or sequences == 0 or longest == 0:
        return out
    q = unit_stride(q)
    group = heads // kv_heads
    tile = choose_tile(PREFILL_TILES, FLOAT32_TILE, pool.dtype, dim, group)
    if kv_heads * triton.cdiv(total, tile.rows // group) < _SMS:  # they would not fill the device
        tile = choose_tile(SHORT_PREFILL_TILES, FLOAT32_TILE, pool.dtype, dim, group)
    value_stride, block_stride, head_stride, slot_stride, _ = pool.stride()
    _prefill_kernel[(kv_heads, triton.cdiv(longest, tile.rows // group), sequences)](
        q, pool, block_table, starts, lengths_before, q if sinks is None else sinks, out, scale,
        q.stride(0), q.stride(1), value_stride, block_stride, head_stride, slot_stride,
        block_table.stride(0),
        group, dim, block_size, window, softcap, sinks is not None,
        tile.rows, tile.keys, pad(dim),
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


@store.register_fake
def _(*_: Tensor) -> None:
    return None


@paged_decode.register_fake
@paged_prefill.register_fake
def _(q: Tensor, *_: Any) -> Tensor:
    return torch.empty(q.shape, dtype=torch.float32, device=q.device)
