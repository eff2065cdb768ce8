"""Decoding on a GPU: a batch of fixed shape, replayed as a CUDA graph, one step ahead of the host.

Tokens, positions and sampling parameters live in static buffers on the device and advance there.
The host changes a row only when a sequence starts or ends. It launches the next step before it has
read the tokens of the last one, so it learns one step late that a sequence has ended and discards
the token after its end.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mint.engine.adapters.lora import Adapter
from mint.engine.attention.gpu import KernelDecode
from mint.engine.cuda_graph import Recordings, record
from mint.engine.model.base_model import BaseModel
from mint.engine.model.context import BankedLora, Lora, NoLora
from mint.engine.model.precision import to_device
from mint.engine.sampling.kv_pool import BLOCK_SIZE, KVPool
from mint.engine.sampling.picking import Picked, pick_plain, signed
from mint.engine.sampling.prefill_graphs import PrefillGraphs
from mint.engine.sampling.runner import Runner, Tokens
from mint.engine.sampling.scheduler import PrefillStep
from mint.engine.sampling.sequence import Sequence

_BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512)
_NARROWEST = 16  # blocks of the smallest table
_EMPTY = -1  # the position of a row without a sequence
_Key = tuple[int, int, int, bool]  # rows, blocks of the table, slots, whether it picks
_Recorded = tuple[torch.cuda.CUDAGraph, Tensor]


@dataclass(frozen=True)
class _Batch:
    """The rows of a step, valid until a sequence starts or ends."""

    version: int
    sequences: list[Sequence]
    rows: Tensor  # the row of each sequence, on the host
    size: int  # rows that are computed
    slots: int  # adapter slots in use
    is_special: bool  # whether picking takes more than a temperature


@dataclass(frozen=True)
class _Flight:
    """A launched step: its batch, and the host tensors that receive its tokens."""

    batch: _Batch
    tokens: Tensor
    logprobs: Tensor
    ready: torch.cuda.Event


class _Buffers:
    """The static tensors of the batch."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.tokens, self.seeds, self.samples, self.steps = (zeros(rows) for _ in range(4))
        self.positions = zeros(rows) + _EMPTY
        self.temperatures = zeros(rows, dtype=torch.float32) + 1
        self.table = zeros(rows, width, dtype=torch.int32)
        self.picked = zeros(rows)
        self.logprobs = zeros(rows, dtype=torch.float32)


class GraphRunner(Runner):
    """Runs decode steps and short prompts as CUDA graphs; special requests pick without."""

    def __init__(self, model: BaseModel, pool: KVPool, max_rows: int = _BUCKETS[-1]) -> None:
        super().__init__(model, pool)
        self._device = model.device
        self._max_rows = max_rows
        width = -(-model.info.context_length // BLOCK_SIZE)
        self._buffers = _Buffers(max_rows, min(width, pool.blocks), model.device)
        self._mask = torch.zeros(max_rows, 1, device=model.device)
        self._sent: list[int | None] = [None] * max_rows  # blocks of each row; None: it is free
        self._row_of: dict[int, int] = {}  # by the sequence's uid
        self._flight: _Flight | None = None
        self._batch = _Batch(-1, [], torch.empty(0, dtype=torch.long), 1, 0, False)
        self._widest = 1  # block table among the rows
        self._prefills = PrefillGraphs(model, pool)
        self._pick_plain = torch.compile(pick_plain)
        # Not possible where a layer needs the host, such as some ropes do.
        self.graphs: Recordings[_Key, _Recorded] = Recordings(model.bank, "This model decodes")
        self._generation = 0
        self._writes = 0  # the bank's count of writes when the rows' slots were last set

    @property
    def ahead(self) -> int:  # type: ignore[override]
        """The number of tokens of each running sequence that are launched but not known yet."""
        return 1 if self._flight is not None else 0

    @property
    def is_idle(self) -> bool:
        return self._flight is None

    def must_drain(self, sequences: list[Sequence], version: int) -> bool:
        """Special requests and moving rows need all tokens to be known."""
        if self._flight is None or version == self._batch.version:
            return False
        return (
            any(s.job.is_special for s in sequences) or _bucket(len(sequences)) < self._batch.size
        )

    def prefill(self, steps: list[PrefillStep]) -> Tensor:
        hidden = self._prefills.replay(steps)
        return super().prefill(steps) if hidden is None else hidden

    def pass_end(self) -> Callable[[], bool]:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event.query

    def decode(
        self, sequences: list[Sequence], version: int, extended: list[Sequence]
    ) -> Tokens | None:
        """Launch a step for these sequences; return the tokens of the step before it."""
        batch = self._batch
        # A prompt of another adapter may have taken a slot since the last step: look again.
        if version != batch.version or self._bank.writes != self._writes:
            batch = self._batch = self._place(list(sequences), version)
            extended = batch.sequences
        if extended:
            self._send_blocks(extended)
            self._widest = max(self._widest, max(len(s.blocks) for s in extended))
        width = min(1 << (self._widest - 1).bit_length(), self._buffers.table.shape[1])
        result = self._replay(batch.size, max(width, _NARROWEST), batch.slots, not batch.is_special)
        if batch.is_special:
            return self._pick_special(batch, result)
        before, self._flight = self._flight, self._send(batch)
        return _land(before)

    def drain(self) -> Tokens | None:
        before, self._flight = self._flight, None
        return _land(before)

    def reset(self) -> None:
        self._flight = None
        self._sent = [None] * self._max_rows
        self._row_of = {}
        self._batch = replace(self._batch, version=-1)
        self._buffers.positions.fill_(_EMPTY)

    def recover(self) -> None:
        self._prefills.release()
        super().recover()

    # ---- rows -----------------------------------------------------------------------------------

    def _place(self, sequences: list[Sequence], version: int) -> _Batch:
        """Assign a row to every sequence and send the changes to the device."""
        alive = {sequence.uid for sequence in sequences}
        gone = [uid for uid in self._row_of if uid not in alive]
        freed = {self._row_of.pop(uid) for uid in gone}
        wanted = _bucket(len(sequences))
        if self._flight is None:  # rows may move into gaps: all of their tokens are known
            far = [s.uid for s in sequences if self._row_of.get(s.uid, 0) >= wanted]
            freed |= {self._row_of.pop(uid) for uid in far}
        for row in freed:
            self._sent[row] = None
        fresh = [s for s in sequences if s.uid not in self._row_of]
        # Rows of one adapter are neighbours: a tile of them then meets few adapters.
        order = {a: n for n, a in enumerate(dict.fromkeys(s.job.adapter for s in sequences))}
        fresh.sort(key=lambda s: order[s.job.adapter])
        free = (row for row, sent in enumerate(self._sent) if sent is None)
        for sequence in fresh:
            row = next(free)
            self._sent[row] = 0
            self._row_of[sequence.uid] = row
            freed.discard(row)
        slots = self._send_adapters(sequences, fresh)
        if fresh or freed:
            self._send_rows(fresh, sorted(freed))
        rows = [self._row_of[s.uid] for s in sequences]
        self._widest = max(len(s.blocks) for s in sequences)
        is_special = any(s.job.is_special for s in sequences)
        size = _bucket(max(rows) + 1)
        return _Batch(version, sequences, torch.tensor(rows), size, slots, is_special)

    def _send_adapters(self, sequences: list[Sequence], fresh: list[Sequence]) -> int:
        """Load adapters into slots and set the slot of each row; return the number of slots."""
        adapters = self._bank.use(s.job.adapter for s in sequences if s.job.adapter is not None)
        slots = self._bank.slots if adapters else 0
        if self._bank.writes != self._writes:
            self._writes = self._bank.writes
            fresh = sequences
        if self._bank.generation != self._generation:
            self._generation = self._bank.generation
            self.graphs.release()
            self._mask = torch.zeros(self._max_rows, self._bank.slots, device=self._device)
            fresh = sequences
        # Also without adapters: rows that join later may bring some back, and each row must then
        # have a mask of its own, not that of the row before it.
        if fresh and self._bank.slots:
            self._send_masks(fresh, adapters)
        return slots

    def _send_rows(self, fresh: list[Sequence], freed: list[int]) -> None:
        buffers = self._buffers
        rows = [self._row_of[s.uid] for s in fresh]
        integers = np.zeros((6, len(fresh) + len(freed)), np.int64)
        integers[0] = [*rows, *freed]
        integers[1, len(fresh) :] = _EMPTY
        for at, s in enumerate(fresh):
            step = len(s.tokens)
            integers[1:, at] = (s.length - 1, s.tokens[-1], step, signed(s.seed), s.sample)
        sent = to_device(integers, self._device)
        index = sent[0]
        names = ("positions", "tokens", "steps", "seeds", "samples")
        for line, name in enumerate(names, start=1):
            getattr(buffers, name).index_copy_(0, index, sent[line])
        temperatures = [s.job.request.temperature for s in fresh] + [1.0] * len(freed)
        heat = to_device(np.array(temperatures, np.float32), self._device)
        buffers.temperatures.index_copy_(0, index, heat)

    def _send_masks(self, sequences: list[Sequence], adapters: dict[Adapter, int]) -> None:
        mask = np.zeros((len(sequences), self._mask.shape[1]), np.float32)
        for at, sequence in enumerate(sequences):
            if sequence.job.adapter is not None:
                mask[at, adapters[sequence.job.adapter]] = 1.0
        rows = to_device(np.array([self._row_of[s.uid] for s in sequences]), self._device)
        self._mask.index_copy_(0, rows, to_device(mask, self._device))

    def _send_blocks(self, sequences: list[Sequence]) -> None:
        """Send the new entries of block tables."""
        width, entries = self._buffers.table.shape[1], list[tuple[int, int]]()
        for sequence in sequences:
            row, blocks = self._row_of[sequence.uid], sequence.blocks
            for index in range(self._sent[row] or 0, len(blocks)):
                entries.append((row * width + index, blocks[index]))
            self._sent[row] = len(blocks)
        if entries:
            places, numbers = to_device(np.array(entries, np.int64).T, self._device)
            self._buffers.table.view(-1).index_copy_(0, places, numbers.int())

    # ---- steps ----------------------------------------------------------------------------------

    def _replay(self, size: int, width: int, slots: int, picks: bool) -> Tensor:
        """Run one step for the first ``size`` rows; return what it picks, or else their logits."""
        key = (size, width, slots, picks)
        recorded = self.graphs.find(key, lambda memory: self._capture(key, memory), at_once=True)
        if recorded is None:
            return self._step(*key)
        graph, result = recorded
        graph.replay()
        return result

    def _capture(self, key: _Key, memory: Any) -> tuple[_Recorded, torch.cuda.CUDAGraph]:
        """Record a step as a graph. The warm-up runs on empty rows, so that nothing advances."""
        self.pool.bind()
        positions = self._buffers.positions
        saved = positions.clone()
        positions.fill_(_EMPTY)
        try:
            graph, result = record(lambda: self._step(*key), memory, 3)
        finally:
            positions.copy_(saved)
        return (graph, result), graph

    def _step(self, size: int, width: int, slots: int, picks: bool) -> Tensor:
        """Compute one step on the static buffers: this is what a graph records.

        Logits are returned only where they are read: each graph would keep memory for its own.
        """
        b = self._buffers
        positions, table = b.positions[:size], b.table[:size, :width]
        is_running = positions >= 0
        at = positions.clamp(min=0)
        block = table.gather(1, (at // BLOCK_SIZE)[:, None]).squeeze(1).long()
        target = torch.where(is_running, block * BLOCK_SIZE + at % BLOCK_SIZE, _EMPTY)
        view = KernelDecode(target, table, (positions + 1).int())
        lora: Lora = BankedLora(slots, self._mask[:size, :slots]) if slots else NoLora()
        hidden = self._model.hidden(b.tokens[:size], at, view, lora)
        logits = self.head.logits(hidden, lora)
        if not picks:
            return logits
        tokens, logprobs = self._pick_plain(
            logits, b.temperatures[:size], b.seeds[:size], b.samples[:size], b.steps[:size]
        )
        b.picked[:size] = tokens
        b.logprobs[:size] = logprobs
        b.tokens[:size] = torch.where(is_running, tokens, b.tokens[:size])
        b.positions[:size] += is_running
        b.steps[:size] += is_running
        return b.picked

    def _send(self, batch: _Batch) -> _Flight:
        """Start copying a step's tokens to the host."""
        size = batch.size
        tokens = torch.empty(size, dtype=torch.int64, pin_memory=True)
        logprobs = torch.empty(size, dtype=torch.float32, pin_memory=True)
        tokens.copy_(self._buffers.picked[:size], non_blocking=True)
        logprobs.copy_(self._buffers.logprobs[:size], non_blocking=True)
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
        return _Flight(batch, tokens, logprobs, ready)

    def _pick_special(self, batch: _Batch, logits: Tensor) -> Tokens:
        """Pick with filters, penalties or top logprobs, and write the tokens to the buffers."""
        index = batch.rows.to(self._device)
        tokens = self._pick(batch.sequences, logits[index])
        b = self._buffers
        b.tokens.index_copy_(0, index, tokens.picked.tokens)
        ones = torch.ones_like(index)
        b.positions.index_add_(0, index, ones)
        b.steps.index_add_(0, index, ones)
        return tokens


def _bucket(rows: int) -> int:
    """Return the size of the smallest batch that has so many rows."""
    return next(size for size in _BUCKETS if size >= rows)


def _land(flight: _Flight | None) -> Tokens | None:
    """Wait for a step's tokens."""
    if flight is None:
        return None
    flight.ready.synchronize()
    rows = flight.batch.rows
    return Tokens(flight.batch.sequences, Picked(flight.tokens[rows], flight.logprobs[rows]))
