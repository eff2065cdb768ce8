"""Tensors in a safetensors file, checked before they are read. Needs numpy only."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mint.service.errors import UserError

_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 64 * 1024 * 1024
_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


@dataclass(frozen=True)
class TensorEntry:
    """The place of a tensor in its file."""

    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        return math.prod(self.shape) * _DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Tensors:
    """The floating-point tensors of one file, read as float32 when asked for."""

    file: Path
    entries: dict[str, TensorEntry]

    @classmethod
    def open(cls, file: Path) -> Tensors:
        """Read the header. Raises UserError when it does not describe the file."""
        try:
            return cls(file, dict(_entries(file)))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise UserError(f"{file.name} is not a valid safetensors file.") from error

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        entry = self.entries[name]
        if entry.size == 0:
            return np.zeros(entry.shape, np.float32)
        dtype = _DTYPES[entry.dtype]
        values: NDArray[Any] = np.memmap(self.file, dtype, "r", entry.start, entry.shape)
        if entry.dtype == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32)


def _entries(file: Path) -> Iterator[tuple[str, TensorEntry]]:
    size = file.stat().st_size
    with open(file, "rb") as stream:
        (length,) = _LENGTH.unpack(stream.read(_LENGTH.size).ljust(_LENGTH.size, b"\xff"))
        if length > min(size, _MAX_HEADER_BYTES):
            raise ValueError("the header is longer than the file")
        header = json.loads(stream.read(length))
    data = _LENGTH.size + length
    for name, value in header.items():
        if name == "__metadata__":
            continue
        if value["dtype"] not in _DTYPES:
            raise UserError(
                f"{file.name}: {name[:200]} is of type {str(value['dtype'])[:20]}; an adapter has "
                f"only {', '.join(_DTYPES)}."
            )
        start, stop = value["data_offsets"]
        entry = TensorEntry(
            value["dtype"], tuple(map(_whole, value["shape"])), data + _whole(start)
        )
        if entry.start + entry.size != data + _whole(stop) or data + stop > size:
            raise ValueError(f"{name} is not at the offset in the header")
        yield name, entry


def _whole(number: Any) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError("a size must be an integer")
    return number


def write_tensors(file: Path, tensors: dict[str, NDArray[np.float32]]) -> None:
    """Write a safetensors file."""
    from safetensors.numpy import save_file

    save_file(tensors, file, metadata={"format": "pt"})
