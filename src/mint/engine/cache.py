"""The key-value cache of the running sequences: one row each, rows kept dense from the top."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .messages import IntArray

_LENGTH_STEP = 64


class KVCache:
    """Rows of keys and values per layer, [2, rows, Hkv, length, head], grown as needed."""

    def __init__(self) -> None:
        self.layers: dict[int, Tensor] = {}
        self.rows = 0
        self.length = 0

    def grown(self, rows: int, length: int) -> tuple[int, int]:
        """The rows and the length that it has after it made room for so much."""
        length = -(-length // _LENGTH_STEP) * _LENGTH_STEP
        return max(rows, self.rows), max(length, self.length)

    def reserve(self, rows: int, length: int, like: dict[int, Tensor]) -> None:
        """Make room for this many rows of this length, keeping what is there.

        ``like`` has one tensor per layer, [2, Hkv, any, head].
        """
        rows, length = self.grown(rows, length)
        if (rows, length) == (self.rows, self.length):
            return
        for layer, sample in like.items():
            _, heads, _, size = sample.shape
            grown = sample.new_zeros(2, rows, heads, length, size)
            old = self.layers.get(layer)
            if old is not None:
                grown[:, : self.rows, :, : self.length] = old
            self.layers[layer] = grown
        self.rows, self.length = rows, length

    def lengthen(self, length: int) -> None:
        """Make every row longer."""
        like = {layer: tensor[:, 0] for layer, tensor in self.layers.items()}
        self.reserve(self.rows, length, like)

    def fill(self, rows: list[int], kept: dict[int, Tensor], path: IntArray) -> None:
        """Copy the keys and values of a prefilled prompt (the nodes of its path) into rows."""
        nodes = torch.as_tensor(path, device=next(iter(kept.values())).device)
        first, last = rows[0], rows[-1] + 1
        assert np.array_equal(rows, np.arange(first, last)), "rows of a group are neighbours"
        for layer, values in kept.items():
            self.layers[layer][:, first:last, :, : len(path)] = values[:, :, nodes][:, None]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` entries of one row onto another."""
        for tensor in self.layers.values():
            tensor[:, target, :, :length] = tensor[:, source, :, :length]

    def clear(self) -> None:
        """Give the memory back."""
        self.layers.clear()
        self.rows = self.length = 0
