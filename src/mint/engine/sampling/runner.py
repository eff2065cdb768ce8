"""The runner: runs the model on the sequences that the scheduler chose, and picks tokens."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mint.engine.adapters.lora import Adapter
from mint.engine.attention import pool_attention
from mint.engine.attention.layout import Chunk
from mint.engine.messages import FloatArray, IntArray
from mint.engine.model.base_model import BaseModel
from mint.engine.model.context import Lora
from mint.engine.model.head import Head
from mint.engine.sampling.kv_pool import KVPool
from mint.engine.sampling.picking import (
    Picked,
    Picks,
    RowSettings,
    is_penalized,
    penalize,
    pick,
    pick_by_kernels,
)
from mint.engine.sampling.scheduler import PrefillStep
from mint.engine.sampling.sequence import Sequence


@dataclass(frozen=True)
class Tokens:
    """The tokens that one step picked, still on the device."""

    sequences: list[Sequence]
    picked: Picked

    def rows(self) -> Iterator[tuple[Sequence, int, float, tuple[IntArray, FloatArray] | None]]:
        """Copy tokens and logprobs to the host, in one transfer each, and yield them row by row."""
        picked = self.picked
        tokens, logprobs = picked.tokens.tolist(), picked.logprobs.tolist()
        ids = None if picked.top_ids is None else picked.top_ids.cpu().numpy()
        values = None if picked.top_logprobs is None else picked.top_logprobs.cpu().numpy()
        for row, sequence in enumerate(self.sequences):
            top, count = None, sequence.job.request.topk_sample_logprobs
            if ids is not None and values is not None and count:
                # Copies: a view would keep those of all rows.
                top = ids[row, :count].copy(), values[row, :count].copy()
            yield sequence, tokens[row], logprobs[row], top


class Runner:
    """Runs passes one at a time, as on a CPU; :mod:`.graphs` extends it for a GPU."""

    ahead = 0  # tokens of each sequence that are launched but not known yet

    def __init__(self, model: BaseModel, pool: KVPool) -> None:
        self.pool = pool
        self.head: Head = model.head
        self._model = model
        self._bank = model.bank

    @property
    def is_idle(self) -> bool:
        """Whether no step is in progress."""
        return True

    def lora(self, adapters: list[Adapter | None]) -> Lora:
        """Return the LoRA context of a pass whose rows use these adapters."""
        return self._bank.rows(adapters, self._model.device)

    def prefill(self, steps: list[PrefillStep]) -> Tensor:
        """Return the hidden states [N, H] of chunks, whose keys and values go to the pool."""
        owners = [step.prefill.adapter for step in steps for _ in range(len(step.chunk.tokens))]
        return self._run([step.chunk for step in steps], owners)[0]

    def _run(self, chunks: list[Chunk], owners: list[Adapter | None]) -> tuple[Tensor, Lora]:
        """Run a pass whose rows use these adapters; return its hidden states and LoRA context."""
        self.pool.bind()
        tokens = np.concatenate([chunk.tokens for chunk in chunks])
        positions = np.concatenate([chunk.positions for chunk in chunks])
        view = pool_attention(self.pool, chunks, self._model.precision.has_kernels)
        lora = self.lora(owners)
        return self._model.hidden(tokens, positions, view, lora), lora

    def pass_end(self) -> Callable[[], bool] | None:
        """Return a check whether the last pass has ended; None if passes are synchronous."""
        return None

    def first(self, sequences: list[Sequence]) -> Iterator[Tokens]:
        """Pick the first token of each sequence, from the last hidden state of its prompt."""
        rows = self.head.chunk_rows()
        for start in range(0, len(sequences), rows):
            part = sequences[start : start + rows]
            prefills = [sequence.job.prefill for sequence in part]
            distinct = list(dict.fromkeys(prefills))
            hidden = torch.stack([p.last_hidden for p in distinct])  # type: ignore[union-attr,misc]
            lora = self.lora([p.adapter for p in distinct])  # type: ignore[union-attr]
            logits = self.head.logits(hidden, lora)
            order = [distinct.index(prefill) for prefill in prefills]
            yield self._pick(part, logits[self._model.tensor(order)])

    def decode(
        self, sequences: list[Sequence], version: int, extended: list[Sequence]
    ) -> Tokens | None:
        """Run one step for these sequences; return the tokens of the newest step that is done.

        ``version`` changes whenever the list does; ``extended`` have a new block since last time.
        """
        sequences = list(sequences)
        chunks = [
            Chunk(np.array(s.tokens[-1:]), s.length - 1, s.blocks, len(s.job.request.prompt))
            for s in sequences
        ]
        hidden, lora = self._run(chunks, [s.job.adapter for s in sequences])
        return self._pick(sequences, self.head.logits(hidden, lora))

    def _pick(self, sequences: list[Sequence], logits: Tensor) -> Tokens:
        rows = [RowSettings(s.job.request, s.seed, s.sample) for s in sequences]
        for at, row in enumerate(rows):
            if is_penalized(row.request):
                penalize(logits, at, row.request, sequences[at].tokens)
        steps = self._model.tensor([len(sequence.tokens) for sequence in sequences])
        if self._model.precision.has_kernels:
            return Tokens(sequences, pick_by_kernels(logits, rows, steps))
        picks = Picks.of(rows, logits.shape[-1], logits.device)
        return Tokens(sequences, pick(logits, picks, steps))

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """Copy blocks of the pool, source to target."""
        if not copies:
            return
        sources, targets = (self._model.tensor(list(ids)) for ids in zip(*copies, strict=True))
        for layer in self.pool.layers():
            layer[:, targets] = layer[:, sources]

    def must_drain(self, sequences: list[Sequence], version: int) -> bool:
        """Return whether the step in progress must finish before these sequences can continue."""
        return False

    def drain(self) -> Tokens | None:
        """Wait for the step in progress and return its tokens."""
        return None

    def recover(self) -> None:
        """Free memory after a pass failed."""
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()

    def reset(self) -> None:
        """Discard the step in progress."""
        self.drain()


def make_runner(model: BaseModel, pool: KVPool) -> Runner:
    """Create the runner for a model's device."""
    if model.device.type == "cuda":
        from mint.engine.sampling.graphs import GraphRunner

        return GraphRunner(model, pool)
    return Runner(model, pool)
