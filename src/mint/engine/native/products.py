"""Products with frozen matrices and adapters: bfloat16 or float32 operands, float32 results."""

from ctypes import Structure, c_int64, c_void_p

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import huge_pages
from .build import call

LANES, WIDE, SLOTS = 16, 4, 17  # as in kernels.c
_TRAINED = SLOTS - 1  # the slot of the run in training
_ANY_WIDTH = (4, 3, 2, 1)
Panels = NDArray[np.int32]


class _Matrix(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("words", "panels")),
        *((name, c_int64) for name in ("panel_count", "inputs", "depth", "is_bf16", "sites")),
        ("a", c_void_p * SLOTS),
        ("b", c_void_p * SLOTS),
        ("rank", c_int64 * SLOTS),
    ]


class _Rows(Structure):
    _fields_ = [
        ("inner", c_void_p),
        ("rows", c_void_p),
        ("groups", c_int64),
        ("slots", c_int64 * (SLOTS + 1)),
        ("starts", c_int64 * (SLOTS + 2)),
    ]


class RowsBySlot:
    """The rows of a pass, by the slot of the adapter that they use."""

    def __init__(self, slots: Tensor | int) -> None:
        """Take the slot of each row (-1 for none), or that of all rows."""
        if isinstance(slots, int):
            self.struct = _Rows(None, None, 1, (slots,), (0, 0))
            return
        order = torch.argsort(slots, stable=True)
        found, counts = torch.unique_consecutive(slots[order], return_counts=True)
        self._order = order  # what the struct points to
        starts = [0, *counts.cumsum(0).tolist()]
        groups = (len(found), tuple(found.tolist()), tuple(starts))
        self.struct = _Rows(None, order.data_ptr(), *groups)


NO_ADAPTER = RowsBySlot(-1)


class Packed:
    """A matrix in the layout of the kernels, and the adapters that add to its products."""

    def __init__(self, weight: Tensor, sizes: list[int] | None = None) -> None:
        """Lay out a bfloat16 or float32 matrix [out, in].

        ``weight.T`` is the matrix of the gradient by the input. ``sizes`` divides the outputs
        between several layers, which an adapter changes separately.
        """
        assert weight.device.type == "cpu"
        assert weight.dtype in (torch.bfloat16, torch.float32)
        self.outputs, self.inputs = weight.shape
        self.sizes = sizes or [self.outputs]
        self._panels = _cut(self.sizes)
        is_bf16 = weight.dtype == torch.bfloat16
        depth = (self.inputs + 1) // 2 if is_bf16 else self.inputs
        self._width = int(sum(self._panels[:, 3])) * LANES
        self._words = _allocate(self._width * depth)
        self._adapters: dict[int, tuple[Tensor, Tensor]] = {}
        self.struct = _Matrix(
            self._words.data_ptr(), self._panels.ctypes.data, len(self._panels), self.inputs,
            depth, is_bf16, len(self.sizes),
        )  # fmt: skip
        call(
            "mint_pack", self.struct, weight, *weight.stride(), self._words,
            torch.get_num_threads(),
        )  # fmt: skip

    def multiply(
        self,
        x: Tensor,
        rows: RowsBySlot = NO_ADAPTER,
        bias: Tensor | None = None,
        onto: Tensor | None = None,
    ) -> Tensor:
        """Multiply float32 rows [N, in] by the matrix and by their adapters; the result is float32.

        With a bfloat16 matrix, the rows are rounded to bfloat16 first. ``onto`` is a result to add
        to.
        """
        assert x.dtype == torch.float32
        if x.stride(1) != 1:
            x = x.contiguous()
        y = x.new_empty(len(x), self.outputs) if onto is None else onto
        call(
            "mint_multiply", self.struct, rows.struct, x, x.stride(0), len(x), bias, y, y.stride(0),
            onto is not None, torch.get_num_threads(),
        )  # fmt: skip
        return y

    def multiply_adding(self, x: Tensor, inner: Tensor, b: Tensor) -> Tensor:
        """Multiply float32 rows by the matrix, and add the product of ``inner`` and ``b``.

        b is [rank, out]; inner [N, sites * rank] has columns of its own for each site.
        """
        assert inner.is_contiguous()
        words, rows = _pack_floats(b.T, self._panels), RowsBySlot(_TRAINED)
        rows.struct.inner = inner.data_ptr()
        self.struct.a[_TRAINED] = self.struct.b[_TRAINED] = words.data_ptr()
        self.struct.rank[_TRAINED] = len(b)
        return self.multiply(x, rows)

    def set_adapter(self, slot: int, a: Tensor, b: Tensor) -> None:
        """Put an adapter into a slot: A [sites * rank, in], and B [rank, out] of all sites."""
        rank = b.shape[0]
        assert a.shape[0] == rank * len(self.sizes)
        self._adapters.pop(slot, None)
        self.struct.a[slot] = None
        if not rank:
            return
        packed = _pack_floats(a, _cut([a.shape[0]], _ANY_WIDTH)), _pack_floats(b.T, self._panels)
        self._adapters[slot] = packed
        self.struct.a[slot], self.struct.b[slot] = (words.data_ptr() for words in packed)
        self.struct.rank[slot] = rank

    def clear_adapters(self) -> None:
        """Empty all slots."""
        self._adapters.clear()
        self.struct.a = (c_void_p * SLOTS)()


def _pack_floats(weight: Tensor, panels: Panels) -> Tensor:
    """Lay out a float32 matrix [out, depth] in panels."""
    depth = weight.shape[1]
    words = torch.empty(int(panels[:, 3].sum()) * LANES * depth, dtype=torch.int32)
    matrix = _Matrix(None, panels.ctypes.data, len(panels), depth, depth, 0, 1)
    call("mint_pack", matrix, weight, *weight.stride(), words, torch.get_num_threads())
    return words


_ARENA = 1 << 26  # bytes
_free = torch.empty(0, dtype=torch.int32)


def _allocate(words: int) -> Tensor:
    """Return memory for words, from large pieces that are in huge pages.

    A piece is freed with the last of its matrices.
    """
    global _free
    words = -(-words // LANES) * LANES
    if 4 * words > _ARENA:
        return _huge(words)
    if words > len(_free):
        _free = _huge(_ARENA // 4)
    taken, _free = _free[:words], _free[words:]
    return taken


def _huge(words: int) -> Tensor:
    memory = huge_pages.advise(torch.empty(words + huge_pages.SIZE // 4, dtype=torch.int32))
    start = -memory.data_ptr() % huge_pages.SIZE // 4
    return memory[start : start + words]


def _cut(sizes: list[int], widths: tuple[int, ...] = (WIDE, 1)) -> Panels:
    """Cut the columns of each site into panels of some widths, with the fields of the kernels."""
    panels, first, padded = [], 0, 0
    for site, size in enumerate(sizes):
        end = first + size
        while first < end:
            wide = next(width for width in widths if end - first > LANES * (width - 1))
            columns = min(wide * LANES, end - first)
            panels.append((first, columns, padded, wide, site))
            first, padded = first + columns, padded + wide * LANES
    return np.array(panels, np.int32).reshape(-1, 5)
