"""Tensors in a safetensors file, checked before they are read, without torch.

``safetensors`` checks that the header describes the file. The values are read here, because without
torch the library does not read bfloat16.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mint.service.errors import UserError

_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


@dataclass(frozen=True)
class TensorEntry:
    """The type, shape and position of a tensor in its file."""

    dtype: str
    shape: tuple[int, ...]
    start: int


@dataclass(frozen=True)
class Tensors:
    """The floating-point tensors of one file, converted to float32 when they are read."""

    file: Path
    entries: dict[str, TensorEntry]

    @classmethod
    def open(cls, file: Path) -> Tensors:
        """Read the header. Raises UserError if it does not describe the file."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, "numpy"):
                pass  # it checks that the header describes the file
        except SafetensorError as error:
            raise UserError(f"{file.name} is not a valid safetensors file.") from error
        with open(file, "rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        entries = {}
        for name, found in header.items():
            if (dtype := found["dtype"]) not in _DTYPES:
                raise UserError(
                    f"{file.name}: {name[:200]} is of type {dtype}; an adapter has only "
                    f"{', '.join(_DTYPES)}."
                )
            start = 8 + length + found["data_offsets"][0]
            entries[name] = TensorEntry(dtype, tuple(found["shape"]), start)
        return cls(file, entries)

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        entry = self.entries[name]
        if 0 in entry.shape:
            return np.zeros(entry.shape, np.float32)
        dtype = _DTYPES[entry.dtype]
        values: NDArray[Any] = np.memmap(self.file, dtype, "r", entry.start, entry.shape)
        if entry.dtype == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32)
