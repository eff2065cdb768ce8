"""Kernels for the parts of a decoder layer other than products, whole layers, and picking."""

from collections.abc import Sequence
from ctypes import Structure, addressof, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .build import address, call
from .products import Packed, RowsBySlot

BLOCK = 16  # tokens, as in kernels.c


def norm(x: Tensor, weight: Tensor, epsilon: float, factors: Tensor | None = None) -> Tensor:
    """Return the RMSNorm of float32 rows, and write the factor of each to ``factors``."""
    y, width = torch.empty_like(x), x.shape[-1]
    rows = x.numel() // width
    call("mint_norm", x, rows, width, weight, epsilon, y, factors, torch.get_num_threads())
    return y


def gate(x: Tensor) -> Tensor:
    """Return ``silu(gate) * up`` of float32 rows that hold gate and up."""
    y = x.new_empty(len(x), x.shape[1] // 2)
    call("mint_gate", x, *y.shape, y, torch.get_num_threads())
    return y


class _Layer(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("heads", "key_heads", "size", "window")),
        *((name, c_float) for name in ("scale", "softcap")),
        *((name, c_void_p) for name in ("sinks", "keys", "values")),
    ]


class _Layout(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("rows", "starts", "common")),
        *((name, c_void_p) for name in ("tables", "table_of", "positions")),
        *((name, c_int64) for name in ("groups", "largest")),
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

    @cached_property
    def struct(self) -> _Layout:
        """The same for the kernels; valid as long as this object lives."""
        parts = (self.rows, self.starts, self.common, self.tables, self.table_of, self.positions)
        largest = int(torch.diff(self.starts).max())
        return _Layout(*(part.data_ptr() for part in parts), len(self.common), largest)


class AttentionLayer:
    """One layer's attention to its part of the pool, [2, blocks, key heads, BLOCK, size] float16.

    A block of keys is kept as [size, BLOCK], so that the scores of a block are one register.
    """

    def __init__(
        self, pool: Tensor, heads: int, scale: float, window: int = 0, softcap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> None:  # fmt: skip
        keys, values = pool
        _, key_heads, block, size = keys.shape
        assert pool.is_contiguous()
        assert pool.dtype == torch.float16
        assert block == BLOCK
        sinks = None if sinks is None else sinks.float().contiguous()
        self._kept = pool, sinks  # what the struct points to
        self.struct = _Layer(
            heads, key_heads, size, window, scale, softcap, address(sinks), address(keys),
            address(values),
        )  # fmt: skip

    def store(self, x: Tensor, slots: Tensor) -> None:
        """Put the keys and values of rows into the pool; a row is queries, keys, values."""
        no_norms, no_angles = (None, None, 0.0), (None, None, 0)
        call(
            "mint_store", self.struct, x, x.stride(0), len(x), *no_norms, *no_angles, slots,
            torch.get_num_threads(),
        )  # fmt: skip

    def attend(self, x: Tensor, layout: _Layout) -> Tensor:
        """Return the attention [N, heads * size] of rows that begin with their queries."""
        y = x.new_empty(len(x), self.struct.heads * self.struct.size)
        call("mint_attend", self.struct, layout, x, x.stride(0), y, torch.get_num_threads())
        return y


class _Decoder(Structure):
    _fields_ = [
        *((f"{name}_norm", c_void_p) for name in ("attention", "mlp", "query", "key")),
        *((name, c_void_p) for name in ("qkv", "out", "gate_up", "down")),
        *((f"{name}_bias", c_void_p) for name in ("qkv", "out", "gate_up", "down")),
        ("attention", _Layer),
        ("epsilon", c_float),
        ("is_turned", c_int32),
    ]


@dataclass(frozen=True)
class DecoderLayer:
    """A decoder layer of Llama's kind.

    ``norms`` are those before attention and before the MLP, of queries and of keys; ``products``
    and ``biases`` those of the joint queries, keys and values, of attention's output, of the joint
    gate and up, and of the MLP's output.
    """

    norms: tuple[Tensor, Tensor, Tensor | None, Tensor | None]
    epsilon: float
    products: tuple[Packed, Packed, Packed, Packed]
    biases: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
    attention: AttentionLayer
    is_turned: bool  # whether queries and keys have rotary positions

    def struct(self) -> _Decoder:
        """Return the same for the kernels; valid as long as this object lives."""
        matrices = (addressof(product.struct) for product in self.products)
        return _Decoder(
            *map(address, self.norms), *matrices, *map(address, self.biases),
            self.attention.struct, self.epsilon, self.is_turned,
        )  # fmt: skip


class DecoderLayers:
    """Decoder layers that rows go through in one call."""

    def __init__(self, layers: Sequence[DecoderLayer]) -> None:
        self._layers = layers  # what the structs point to
        self._structs = (_Decoder * len(layers))(*(layer.struct() for layer in layers))
        products = [product for layer in layers for product in layer.products]
        self._narrow = max(product.inputs for product in products)
        self._wide = max(product.outputs for product in products)

    def run(
        self, x: Tensor, rows: RowsBySlot, layout: Layout, angles: tuple[Tensor, Tensor]
    ) -> None:
        """Turn rows [N, H] into the output of the last layer, in place.

        ``angles`` are the cosines and sines [N, turned] of the rows' positions.
        """
        work = [x.new_empty(len(x), width) for width in (self._narrow, self._wide)]
        call(
            "mint_decode", self._structs, len(self._structs), rows.struct, layout.struct, x,
            len(x), *angles, angles[0].shape[-1], layout.slots, *work, torch.get_num_threads(),
        )  # fmt: skip


def pick(logits: Tensor, temperatures: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Pick a token of each row by a number in [0, 1); return tokens and logprobs.

    A temperature of 0 picks the likeliest token, and reports logprobs at temperature 1.
    """
    logits = logits.contiguous()
    tokens, logprobs = torch.empty(len(logits), dtype=torch.int64), torch.empty(len(logits))
    results = (tokens, logprobs, torch.get_num_threads())
    call("mint_pick", logits, *logits.shape, temperatures, numbers, *results)
    return tokens, logprobs
