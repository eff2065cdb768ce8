# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The products of adapters in a decode step, in one Triton kernel beside the frozen product."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _expand_kernel(
    y, b, mask, rows, columns, y_row, b_row, mask_row,
    SLOTS: tl.constexpr, RANK: tl.constexpr, SLOTS_PAD: tl.constexpr, STEP: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = row < rows, column < columns
    inside = is_row[:, None] & is_column[None, :]
    start = y + row[:, None] * y_row
    total = tl.load(start + column[None, :], mask=inside, other=0.0)
    slots = tl.arange(0, SLOTS_PAD)[None, :]
    owners = tl.load(
        mask + row[:, None] * mask_row + slots, mask=is_row[:, None] & (slots < SLOTS), other=0.0
    )
    own = tl.max(tl.where(owners > 0, slots, -1), axis=1)  # the slot of each row, -1 for none
    first = tl.min(tl.where(own < 0, SLOTS, own), axis=0)
    for slot in range(first, tl.max(own, axis=0) + 1):
        for low in range(0, RANK, STEP):
            rank = low + tl.arange(0, STEP)
            # Not a product with the mask: 0 * inf would reach the rows of other adapters.
            inner = tl.load(
                start + columns + slot * RANK + rank[None, :],
                mask=(own == slot)[:, None] & (rank < RANK)[None, :],
                other=0.0,
            )
            up = tl.load(
                b + (slot * RANK + rank).to(tl.int64)[:, None] * b_row + column[None, :],
                mask=(rank < RANK)[:, None] & is_column[None, :],
                other=0.0,
            )
            total += tl.dot(inner.to(up.dtype), up, input_precision="ieee")
    tl.store(start + column[None, :], total, mask=inside)


@torch.library.custom_op("mint::lora_expand", mutates_args=("y",))
def lora_expand(y: Tensor, b: Tensor, mask: Tensor) -> None:
    """Add ``inner_s B_s`` of the slot s of each row to the first N columns of y, in place.

    y [M, N + S * R] float32 ends with the inner products x A_s of all slots; b is [S, R, N] in a
    16-bit format; mask [M, S] float32 has a 1 where a row uses a slot.
    """
    slots, rank, columns = b.shape
    assert b.is_contiguous()
    rows = y.shape[0]
    # Tiles are short: the fewer adapters they meet, the fewer products they take.
    tall, wide = 16, 128 if columns > 2048 else 64
    grid = (triton.cdiv(rows, tall), triton.cdiv(columns, wide))
    _expand_kernel[grid](
        y, b, mask, rows, columns, y.stride(0), b.stride(1), mask.stride(0),
        SLOTS=slots, RANK=rank, SLOTS_PAD=triton.next_power_of_2(slots),
        STEP=min(64, max(16, triton.next_power_of_2(rank))), ROWS=tall, COLUMNS=wide,
        num_warps=4, num_stages=2,
    )  # fmt: skip


@lora_expand.register_fake
def _(y: Tensor, b: Tensor, mask: Tensor) -> None:
    return None
