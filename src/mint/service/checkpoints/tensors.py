"""Tensors in a safetensors file, checked before they are read, without torch.

``safetensors`` checks that the header describes the file. The values are read here, because without
torch the library does not read bfloat16.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mint.service.errors import UserError

_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_MAX_HEADER_BYTES = 16 * 1024**2
_PIECE = 1 << 18
"""Values that are in memory at a time while a tensor is checked."""


@dataclass(frozen=True)
class TensorEntry:
    """The type, shape and position of a tensor in its file."""

    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def is_float(self) -> bool:
        return self.dtype in _DTYPES


@dataclass(frozen=True)
class Tensors:
    """The tensors of an adapter in one file, converted to float32 when they are read."""

    file: Path
    entries: dict[str, TensorEntry]

    @classmethod
    def open(cls, file: Path) -> Self:
        """Read the header. Raises UserError for tensors of other types than floating-point."""
        entries = read_entries(file)
        for name, entry in entries.items():
            if not entry.is_float:
                raise UserError(
                    f"{file.name}: {name[:200]} is of type {entry.dtype}; an adapter has only "
                    f"{', '.join(_DTYPES)}."
                )
        return cls(file, entries)

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        values = np.concatenate([np.zeros(0, np.float32), *self.pieces(name)])
        return values.reshape(self.entries[name].shape)

    def pieces(self, name: str) -> Iterator[NDArray[np.float32]]:
        """Read the values of a tensor piece by piece, as a whole one may not fit in memory."""
        entry = self.entries[name]
        count = math.prod(entry.shape)
        with open(self.file, "rb") as opened:
            opened.seek(entry.start)
            for start in range(0, count, _PIECE):
                values = np.fromfile(opened, _DTYPES[entry.dtype], min(_PIECE, count - start))
                if entry.dtype == "BF16":
                    values = (values.astype(np.uint32) << 16).view(np.float32)
                yield values.astype(np.float32)


def read_entries(file: Path) -> dict[str, TensorEntry]:
    """Read the header of a safetensors file. Raises UserError if it does not describe the file."""
    from safetensors import SafetensorError, safe_open

    refused = UserError(
        f"{file.name} is not a valid safetensors file, or its header has more than "
        f"{_MAX_HEADER_BYTES} bytes."
    )
    with open(file, "rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > _MAX_HEADER_BYTES:
            raise refused
        try:
            with safe_open(file, "numpy"):
                pass  # it checks that the header describes the file
        except SafetensorError as error:
            raise refused from error
        header: dict[str, Any] = json.loads(opened.read(length))
    header.pop("__metadata__", None)
    entries = {}
    for name, found in header.items():
        start = 8 + length + found["data_offsets"][0]
        entries[name] = TensorEntry(found["dtype"], tuple(found["shape"]), start)
    return entries
