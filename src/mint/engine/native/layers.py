"""What a decoder layer computes beside its products, and the picking of tokens."""

from __future__ import annotations

from ctypes import Structure, byref, c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .build import library

BLOCK = 16  # tokens, as in kernels.c


@cache
def _function(name: str, signature: str) -> Any:
    """Return a kernel. Its arguments are p(ointers), l(ong integers), i(ntegers) and f(loats)."""
    function = getattr(library(), name)
    kinds = {"p": c_void_p, "l": c_int64, "i": c_int, "f": c_float}
    function.argtypes, function.restype = [kinds[kind] for kind in signature], None
    return function


def norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return the RMSNorm of float32 rows."""
    y = torch.empty_like(x)
    _function("mint_norm", "pllpfpi")(
        x.data_ptr(), len(x), x.shape[1], weight.data_ptr(), epsilon, y.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return y


def gate(x: Tensor) -> Tensor:
    """Return ``silu(gate) * up`` of float32 rows that hold gate and up."""
    y = x.new_empty(len(x), x.shape[1] // 2)
    _function("mint_gate", "pllpi")(
        x.data_ptr(), len(x), y.shape[1], y.data_ptr(), torch.get_num_threads()
    )
    return y


class _Layer(Structure):
    _fields_ = [
        ("heads", c_int64),
        ("key_heads", c_int64),
        ("size", c_int64),
        ("window", c_int64),
        ("scale", c_float),
        ("softcap", c_float),
        ("sinks", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
    ]


class _Layout(Structure):
    _fields_ = [
        ("rows", c_void_p),
        ("starts", c_void_p),
        ("common", c_void_p),
        ("tables", c_void_p),
        ("table_of", c_void_p),
        ("positions", c_void_p),
        ("groups", c_int64),
        ("largest", c_int64),
    ]


@dataclass(frozen=True)
class Layout:
    """The rows of a pass: where their tokens and those before them are in the pool.

    Rows that have their first blocks in common are a group, of ``common`` blocks; those of group g
    are ``rows[starts[g] : starts[g + 1]]``. The blocks of row i begin at ``tables[table_of[i]]``.
    All tensors are int64.
    """

    positions: Tensor
    slots: Tensor
    tables: Tensor
    table_of: Tensor
    rows: Tensor
    starts: Tensor
    common: Tensor

    def struct(self) -> _Layout:
        """Return the same for the kernels; valid as long as this object lives."""
        parts = (self.rows, self.starts, self.common, self.tables, self.table_of, self.positions)
        largest = int(torch.diff(self.starts).max())
        return _Layout(*(part.data_ptr() for part in parts), len(self.common), largest)


class AttentionLayer:
    """One layer's attention to its part of the pool, [2, blocks, key heads, BLOCK, size].

    A block of keys is kept as [size, BLOCK], so that the scores of a block are one register.
    """

    def __init__(
        self, pool: Tensor, heads: int, scale: float, window: int = 0, softcap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> None:  # fmt: skip
        keys, values = pool
        _, key_heads, block, size = keys.shape
        assert pool.is_contiguous()
        assert block == BLOCK
        self._kept = pool, None if sinks is None else sinks.float().contiguous()
        sinks_at = None if self._kept[1] is None else self._kept[1].data_ptr()
        self._shape = heads, size
        places = keys.data_ptr(), values.data_ptr()
        self._pointer = byref(
            _Layer(heads, key_heads, size, window, scale, softcap, sinks_at, *places)
        )

    def store(
        self, x: Tensor, slots: Tensor, norms: tuple[Tensor, Tensor] | None = None,
        epsilon: float = 0.0, angles: tuple[Tensor, Tensor] | None = None,
    ) -> None:  # fmt: skip
        """Put the keys and values of rows into the pool; a row is queries, keys, values.

        Before, queries and keys are normalized by ``norms`` and turned by ``angles``, which are
        cosines and sines [N, turned], in place.
        """
        query_norm, key_norm = norms or (None, None)
        cosine, sine = angles or (None, None)
        _function("mint_store", "ppllppfpplpi")(
            self._pointer, x.data_ptr(), x.stride(0), len(x), _at(query_norm), _at(key_norm),
            epsilon, _at(cosine), _at(sine), 0 if cosine is None else cosine.shape[-1],
            slots.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip

    def attend(self, x: Tensor, layout: _Layout) -> Tensor:
        """Return the attention [N, heads * size] of rows that begin with their queries."""
        heads, size = self._shape
        y = x.new_empty(len(x), heads * size)
        _function("mint_attend", "ppplpi")(
            self._pointer, byref(layout), x.data_ptr(), x.stride(0), y.data_ptr(),
            torch.get_num_threads(),
        )  # fmt: skip
        return y


def _at(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def pick(logits: Tensor, temperatures: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Pick a token of each row by a number in [0, 1); return tokens and logprobs.

    A temperature of 0 picks the likeliest token, and reports logprobs at temperature 1.
    """
    logits = logits.contiguous()
    tokens = torch.empty(len(logits), dtype=torch.int64)
    logprobs = torch.empty(len(logits))
    _function("mint_pick", "pllppppi")(
        logits.data_ptr(), len(logits), logits.shape[1], temperatures.data_ptr(),
        numbers.data_ptr(), tokens.data_ptr(), logprobs.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return tokens, logprobs
