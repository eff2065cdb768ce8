"""Attention on a GPU: what the Triton kernels need of each kind of pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mint.engine.attention import kernels
from mint.engine.model.context import Scores
from mint.engine.sampling.kv_pool import KVPool, find_pool
from mint.engine.training.tree import PrefixTree

from .layout import Chunk
from .tree import tree_attention


@dataclass(frozen=True)
class KernelTree:
    """Each node of a prefix forest sees its ancestors."""

    ends: Tensor
    roots: Tensor
    positions: Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, tree: PrefixTree, device: torch.device, dtype: torch.dtype) -> KernelTree:
        arrays = np.stack([tree.ends, tree.roots, tree.positions]).astype(np.int32)
        ends, roots, positions = torch.as_tensor(arrays).to(device)
        return cls(ends, roots, positions, dtype)

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, how: Scores) -> Tensor:
        return tree_attention(q, k, v, self.ends, self.roots, self.positions, self.dtype, *how)


@dataclass(frozen=True)
class KernelPrefill:
    """Chunks of prompts: keys and values go to the pool, and each token sees its own blocks."""

    slots: Tensor
    table: Tensor
    starts: Tensor
    before: Tensor
    longest: int
    is_padded: bool = False  # whether padding tokens follow the chunks; these get zeros

    @classmethod
    def of(cls, pool: KVPool, chunks: list[Chunk]) -> KernelPrefill:
        width = max(len(chunk.blocks) for chunk in chunks)
        table = np.zeros((len(chunks), width), np.int32)
        for row, chunk in enumerate(chunks):
            table[row, : len(chunk.blocks)] = chunk.blocks
        lengths = [len(chunk.tokens) for chunk in chunks]

        def tensor(array: object, dtype: torch.dtype) -> Tensor:
            return torch.as_tensor(array, dtype=dtype).to(pool.device)

        return cls(
            slots=tensor(np.concatenate([c.slots for c in chunks]), torch.int64),
            table=tensor(table, torch.int32),
            starts=tensor(np.concatenate([[0], np.cumsum(lengths)]), torch.int32),
            before=tensor([chunk.start for chunk in chunks], torch.int32),
            longest=1 << (max(lengths) - 1).bit_length(),
        )

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, how: Scores) -> Tensor:
        pool = find_pool(module)
        kernels.store(pool, k, v, self.slots)
        places = (self.table, self.starts, self.before)
        mixed: Tensor = kernels.paged_prefill(q, pool, *places, *how, self.longest)
        if self.is_padded:
            mixed = torch.where((self.slots >= 0)[:, None, None], mixed, 0.0)
        return mixed


@dataclass(frozen=True)
class KernelDecode:
    """One new token per row, which sees its own blocks."""

    slots: Tensor
    table: Tensor
    lengths: Tensor

    def attend(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, how: Scores) -> Tensor:
        pool = find_pool(module)
        kernels.store(pool, k, v, self.slots)
        return kernels.paged_decode(q, pool, self.table, self.lengths, *how)  # type: ignore[no-any-return]
