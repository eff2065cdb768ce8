"""Products with frozen matrices and adapters: bfloat16 or float32 operands, float32 results."""

import ctypes
from ctypes import Structure, byref, c_int, c_int64, c_void_p
from functools import cache

import numpy as np
import torch
from torch import Tensor

from .build import library

LANES, WIDE, SLOTS = 16, 4, 16  # as in kernels.c


class _Matrix(Structure):
    _fields_ = [
        ("words", c_void_p),
        ("panels", c_void_p),
        ("panel_count", c_int64),
        ("inputs", c_int64),
        ("depth", c_int64),
        ("is_bf16", c_int64),
        ("sites", c_int64),
        ("a", c_void_p * SLOTS),
        ("b", c_void_p * SLOTS),
        ("rank", c_int64 * SLOTS),
    ]


class _Rows(Structure):
    _fields_ = [
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
            self.struct = _Rows(None, 1, (slots,), (0, 0))
            return
        order = torch.argsort(slots, stable=True)
        found, counts = torch.unique_consecutive(slots[order], return_counts=True)
        self._order = order  # what the struct points to
        starts = [0, *counts.cumsum(0).tolist()]
        self.struct = _Rows(order.data_ptr(), len(found), tuple(found.tolist()), tuple(starts))


NO_ADAPTER = RowsBySlot(-1)


class Packed:
    """A matrix in the layout of the kernels, and the adapters that add to its products."""

    def __init__(self, weight: Tensor, sizes: list[int] | None = None) -> None:
        assert weight.device.type == "cpu"
        assert weight.dtype in (torch.bfloat16, torch.float32)
        self.outputs, self.inputs = weight.shape
        self.sizes = sizes or [self.outputs]
        self._panels = _cut(self.sizes)
        is_bf16 = weight.dtype == torch.bfloat16
        depth = (self.inputs + 1) // 2 if is_bf16 else self.inputs
        self._width = int(sum(self._panels[:, 3])) * LANES
        self._words = torch.empty(self._width * depth, dtype=torch.int32)
        self._adapters: dict[int, tuple[Tensor, Tensor]] = {}
        self._matrix = _Matrix(
            self._words.data_ptr(), self._panels.ctypes.data, len(self._panels), self.inputs,
            depth, is_bf16, len(self.sizes),
        )  # fmt: skip
        self._pointer = byref(self._matrix)
        library().mint_pack(
            self._pointer, c_void_p(weight.data_ptr()), c_int64(weight.stride(0)),
            c_int64(weight.stride(1)), c_void_p(self._words.data_ptr()), torch.get_num_threads(),
        )  # fmt: skip

    def multiply(
        self,
        x: Tensor,
        rows: RowsBySlot = NO_ADAPTER,
        bias: Tensor | None = None,
        onto: Tensor | None = None,
    ) -> Tensor:
        """Multiply float32 rows [N, in] by the matrix and by their adapters; the result is float32.

        ``onto`` is a result to add to.
        """
        assert x.dtype == torch.float32
        if x.stride(1) != 1:
            x = x.contiguous()
        y = x.new_empty(len(x), self.outputs) if onto is None else onto
        _multiply()(
            self._pointer, byref(rows.struct), x.data_ptr(), x.stride(0), len(x),
            None if bias is None else bias.data_ptr(), y.data_ptr(), y.stride(0),
            onto is not None, torch.get_num_threads(),
        )  # fmt: skip
        return y

    def set_adapter(self, slot: int, a: Tensor, b: Tensor) -> None:
        """Put an adapter into a slot: A [sites * rank, in], and B [rank, out] of all sites."""
        rank = b.shape[0]
        assert a.shape[0] == rank * len(self.sizes)
        packed_a, packed_b = Packed._floats(a, LANES), self._lay_out(b)
        self._adapters[slot] = packed_a, packed_b
        self._matrix.a[slot], self._matrix.b[slot] = packed_a.data_ptr(), packed_b.data_ptr()
        self._matrix.rank[slot] = rank

    def clear_adapters(self) -> None:
        """Empty all slots."""
        self._adapters = {}
        self._matrix.a = (c_void_p * SLOTS)()

    def clear_adapter(self, slot: int) -> None:
        """Empty a slot."""
        self._adapters.pop(slot, None)
        self._matrix.a[slot] = None

    @staticmethod
    def _floats(rows: Tensor, width: int) -> Tensor:
        """Lay out rows as the columns of panels of one width."""
        count, depth = rows.shape
        padded = torch.zeros(-(-count // width) * width, depth)
        padded[:count] = rows
        return padded.view(-1, width, depth).transpose(1, 2).contiguous()

    def _lay_out(self, b: Tensor) -> Tensor:
        """Lay out a matrix [rank, out] in the panels of the frozen one."""
        parts = []
        for first, columns, _, wide, _ in self._panels.tolist():
            part = torch.zeros(len(b), wide * LANES)
            part[:, :columns] = b[:, first : first + columns]
            parts.append(part.flatten())
        return torch.cat(parts) if parts else b.new_zeros(0)


@cache
def _multiply() -> "ctypes._NamedFuncPointer":
    function = library().mint_multiply
    function.argtypes = [
        c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_int64,
        c_int, c_int,
    ]  # fmt: skip
    function.restype = None
    return function


def _cut(sizes: list[int]) -> "np.ndarray[tuple[int, int], np.dtype[np.int32]]":
    """Cut the columns of each site into panels, with the fields of the kernels."""
    panels, first, padded = [], 0, 0
    for site, size in enumerate(sizes):
        end = first + size
        while first < end:
            wide = WIDE if end - first > LANES * (WIDE - 1) else 1
            columns = min(wide * LANES, end - first)
            panels.append((first, columns, padded, wide, site))
            first, padded = first + columns, padded + wide * LANES
    return np.array(panels, np.int32).reshape(-1, 5)


def pack(weight: Tensor, sizes: list[int] | None = None) -> Packed:
    """Lay out a bfloat16 or float32 matrix [out, in] for :func:`matmul`.

    ``weight.T`` is the matrix of the gradient by the input. ``sizes`` divides the outputs between
    several layers, which an adapter changes separately.
    """
    return Packed(weight, sizes)


def matmul(x: Tensor, packed: Packed) -> Tensor:
    """Multiply float32 rows [N, in] by a packed matrix; sums and result are float32.

    With a bfloat16 matrix, the rows are rounded to bfloat16 first.
    """
    return packed.multiply(x)
