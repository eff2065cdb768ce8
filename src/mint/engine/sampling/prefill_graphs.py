"""Short prefill passes on a GPU as CUDA graphs.

The host needs longer to launch the kernels of a short pass than the device to run them, and running
answers wait for both. So passes of up to :data:`MOST_TOKENS` tokens are recorded, filled up to a
few sizes, and replayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mint.engine.adapters.lora import MAX_SLOTS
from mint.engine.attention.gpu import KernelPrefill
from mint.engine.cuda_graph import Recordings, record
from mint.engine.model.base_model import BaseModel
from mint.engine.model.context import BankedLora, Lora, NoLora
from mint.engine.model.precision import to_device
from mint.engine.sampling.kv_pool import BLOCK_SIZE, KVPool

if TYPE_CHECKING:
    from mint.engine.sampling.scheduler import PrefillStep

MOST_TOKENS = 512
_SIZES = (64, 128, 256, MOST_TOKENS)
_CHUNKS = 16  # the most prompts in one pass
_NOWHERE = -1  # the place in the pool of a token that fills up


class PrefillGraphs(Recordings[tuple[int, int], tuple[torch.cuda.CUDAGraph, Tensor]]):
    """The recorded passes of one model, by their size and number of slots."""

    def __init__(self, model: BaseModel, pool: KVPool) -> None:
        super().__init__(model.bank, "Prompts are computed")
        self.is_possible = not model.has_experts  # what these run depends on the data
        self._model, self._pool = model, pool
        self._buffers = _Buffers(model, pool)

    def replay(self, steps: list[PrefillStep]) -> Tensor | None:
        """Return the hidden states [N, H] of chunks, or None: run them without a graph."""
        count = sum(len(step.chunk.tokens) for step in steps)
        if not self.is_possible or count > MOST_TOKENS or len(steps) > _CHUNKS:
            return None
        bank = self._model.bank
        adapters = [step.prefill.adapter for step in steps]
        slots = bank.use(adapter for adapter in adapters if adapter is not None)
        key = (next(size for size in _SIZES if size >= count), bank.slots if slots else 0)
        if (recorded := self.find(key, lambda memory: self._record(key, memory))) is None:
            return None
        owners = [-1 if adapter is None else slots[adapter] for adapter in adapters]
        self._buffers.load(steps, owners, key[0])
        graph, hidden = recorded
        graph.replay()
        return hidden[:count].clone()  # the next replay overwrites it

    def _record(
        self, key: tuple[int, int], memory: Any
    ) -> tuple[tuple[torch.cuda.CUDAGraph, Tensor], torch.cuda.CUDAGraph]:
        """Record a pass of this size and number of slots."""
        self._pool.bind()
        self._buffers.clear()  # what runs while recording writes nothing into the pool
        graph, hidden = record(lambda: self._run(*key), memory)
        return (graph, hidden), graph

    def _run(self, size: int, slots: int) -> Tensor:
        b = self._buffers
        view = KernelPrefill(b.slots[:size], b.table, b.starts, b.before, size, is_padded=True)
        lora: Lora = BankedLora(slots, b.mask[:size, :slots]) if slots else NoLora()
        return self._model.hidden(b.tokens[:size], b.positions[:size], view, lora)


class _Buffers:
    """The static tensors that recorded passes read."""

    def __init__(self, model: BaseModel, pool: KVPool) -> None:
        self._device = model.device
        width = min(-(-model.info.context_length // BLOCK_SIZE), pool.blocks)

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=model.device)

        self.rows = zeros(3, MOST_TOKENS, dtype=torch.int64)
        self.tokens, self.positions, self.slots = self.rows
        self.starts, self.before = zeros(_CHUNKS + 1), zeros(_CHUNKS)
        self.table = zeros(_CHUNKS, width)
        self.mask = zeros(MOST_TOKENS, MAX_SLOTS, dtype=torch.float32)

    def clear(self) -> None:
        """Leave no chunk, so that a pass changes nothing."""
        self.slots.fill_(_NOWHERE)
        self.starts.zero_()

    def load(self, steps: list[PrefillStep], adapters: list[int], size: int) -> None:
        """Copy what a pass of ``size`` tokens reads; ``adapters`` are the slots, -1 for none."""
        rows = np.zeros((3, size), np.int64)
        rows[2] = _NOWHERE
        mask = np.zeros((size, MAX_SLOTS), np.float32)
        starts, before = np.zeros(_CHUNKS + 1, np.int32), np.zeros(_CHUNKS, np.int32)
        table = np.zeros((len(steps), max(len(step.chunk.blocks) for step in steps)), np.int32)
        for at, (step, adapter) in enumerate(zip(steps, adapters, strict=True)):
            chunk, first = step.chunk, starts[at]
            part = slice(first, first + len(chunk.tokens))
            rows[:, part] = chunk.tokens, chunk.positions, chunk.slots
            starts[at + 1 :], before[at] = part.stop, chunk.start
            table[at, : len(chunk.blocks)] = chunk.blocks
            if adapter >= 0:
                mask[part, adapter] = 1.0
        for buffer, array in (
            (self.rows[:, :size], rows),
            (self.mask[:size], mask),
            (self.starts, starts),
            (self.before, before),
            (self.table[: len(steps), : table.shape[1]], table),
        ):
            buffer.copy_(to_device(array, self._device))
