"""Sampling: requests join a running batch, decode together, and leave when they are done.

A step is: admit what fits (prefill, each distinct prompt once), then one new token for every
running sequence. Whoever asks while others run joins at the next step. Prompts and answers stay in
a prefix cache, so that a prompt that begins like one of them is prefilled only from there on.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from torch import Tensor

from .attention import DecodeView, Past, TreeView
from .cache import KVCache
from .job import Job, Sequence
from .lora import EVERY_ROW, Adapter, Route, Rows
from .messages import IntArray, SampledToken
from .model import BaseModel
from .picking import Picks, pick, uniform
from .prefix_cache import PrefixCache
from .scoring import score_prompt
from .tree import PrefixTree, pack


class Sampler:
    """The running batch of one base model.

    Its caches hold ``cache_tokens`` in all. Of these, ``kept_tokens`` may be of prefixes that no
    running sequence needs, and they make way for running sequences.
    """

    def __init__(
        self, model: BaseModel, cache_tokens: int, kept_tokens: int, prefill_tokens: int
    ) -> None:
        self._model = model
        self._cache_tokens = cache_tokens
        self._kept_tokens = kept_tokens
        self._prefill_tokens = prefill_tokens
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []  # the sequence of each cache row
        self._cache = KVCache()
        self._prefixes = PrefixCache()
        self.grown: dict[int, list[SampledToken]] = {}  # by ticket, what the last step added

    @property
    def capacity(self) -> int:
        """How many tokens the caches may hold."""
        return self._cache_tokens

    @property
    def tokens_held(self) -> int:
        """How many tokens the caches hold, of running sequences and of kept prefixes."""
        return self.tokens_kept + sum(sequence.length for sequence in self._running)

    @property
    def tokens_kept(self) -> int:
        """How many tokens of prefixes are kept for prompts to come."""
        return len(self._prefixes)

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._running

    def submit(self, job: Job) -> None:
        self._waiting.extend(job.sequences)

    @torch.inference_mode()
    def step(self) -> list[Job]:
        """Advance everything by one token; returns the jobs that this finished."""
        touched = self._prefill(self._admit())
        if self._running:
            touched += self._decode()
        self._keep_finished()
        self._drop_finished()
        if self.is_idle:
            self._cache.clear()
        self._note_progress(touched)
        jobs = dict.fromkeys(sequence.job for sequence in touched)
        return [job for job in jobs if job.is_done]

    def _note_progress(self, sequences: list[Sequence]) -> None:
        self.grown = {}
        for sequence in sequences:
            if sequence.job.request.progress:
                self.grown.setdefault(sequence.job.ticket, []).extend(sequence.fresh())

    @torch.inference_mode()
    def cancel(self, ticket: int) -> bool:
        """Forget a job that is waiting or running; says whether there was one."""
        mine = [s for s in (*self._running, *self._waiting) if s.job.ticket == ticket]
        self._waiting = deque(s for s in self._waiting if s.job.ticket != ticket)
        for sequence in mine:
            sequence.stop_reason = "length"
        self._drop_finished()
        return bool(mine)

    def abandon(self) -> list[Job]:
        """Forget everything in flight, after a failure; returns the jobs that were lost."""
        jobs = dict.fromkeys(s.job for s in (*self._running, *self._waiting))
        self._waiting.clear()
        self._running.clear()
        self._cache.clear()
        self._prefixes = PrefixCache()
        return list(jobs)

    def forget(self, adapter: Adapter) -> None:
        """Drop the prefixes that were kept for an adapter."""
        self._prefixes.forget(adapter)

    def _admit(self) -> list[Sequence]:
        """Take waiting sequences in order while their rows fit into the cache."""
        admitted: list[Sequence] = []
        length = max((self._final_length(s) for s in self._running), default=0)
        while self._waiting:
            length = max(length, self._final_length(self._waiting[0]))
            rows = len(self._running) + len(admitted) + 1
            if rows * length > self._cache_tokens and rows > 1:
                break
            admitted.append(self._waiting.popleft())
        return admitted

    def _final_length(self, sequence: Sequence) -> int:
        return len(sequence.job.request.prompt) + sequence.job.max_tokens

    def _prefill(self, sequences: list[Sequence]) -> list[Sequence]:
        by_job: dict[Job, list[Sequence]] = {}
        for sequence in sequences:
            by_job.setdefault(sequence.job, []).append(sequence)
        jobs = list(by_job)
        adapters = list(dict.fromkeys(job.adapter for job in jobs))
        keys = [adapters.index(job.adapter) for job in jobs]
        rows = len(self._running) + len(sequences)
        for tree in pack([job.request.prompt for job in jobs], self._prefill_tokens, keys):
            groups = [by_job[jobs[member]] for member in tree.members]
            self._prefill_tree(tree, groups, adapters, rows)
        return sequences

    def _prefill_tree(
        self,
        tree: PrefixTree,
        groups: list[list[Sequence]],
        adapters: list[Adapter | None],
        rows: int,
    ) -> None:
        jobs = [group[0].job for group in groups]
        past = self._past(tree, jobs)
        parts: list[tuple[Adapter | None, Rows]] = [
            (adapters[key], slice(*past.rows([nodes.start, nodes.stop])))
            for key, nodes in tree.branches
        ]
        view = TreeView(tree, self._model.device, past)
        tokens, positions = tree.tokens[past.fresh], tree.positions[past.fresh]
        hidden = self._model.hidden(tokens, positions, view, _routes(parts))
        self._keep_prompts(tree, jobs, view)
        last = past.rows([path[-1] for path in tree.paths])
        self._pick_first(groups, hidden[self._model.tensor(last)])
        for group, path in zip(groups, tree.paths, strict=True):
            if group[0].job.wants_scores:
                self._score_prompt(group[0].job, hidden[self._model.tensor(past.rows(path))])
            self._start_rows([s for s in group if s.stop_reason is None], view, path, rows)

    def _past(self, tree: PrefixTree, jobs: list[Job]) -> Past:
        """The nodes of a tree that are in the prefix cache and whose hidden states nobody needs."""
        slots = np.full(len(tree.tokens), -1, np.int64)
        for job, path in zip(jobs, tree.paths, strict=True):
            found = self._prefixes.find(job.adapter, job.request.prompt)
            slots[path[: len(found)]] = found
        for job, path in zip(jobs, tree.paths, strict=True):
            slots[path if job.wants_scores else path[-1:]] = -1
        return Past(slots, self._prefixes.layers)

    def _keep_prompts(self, tree: PrefixTree, jobs: list[Job], view: TreeView) -> None:
        prompts = [(job.adapter, job.request.prompt) for job in jobs]
        new = self._prefixes.add(prompts, self._room_to_keep())
        nodes = self._model.tensor([tree.paths[e.sequence][e.position] for e in new])
        values = ((n, kept.permute(2, 0, 1, 3)[nodes]) for n, kept in view.kept.items())
        self._prefixes.write(new, values)

    def _keep_finished(self) -> None:
        """Keep the prefixes of sequences that are done, while they are still in their rows."""
        done = [(row, s) for row, s in enumerate(self._running) if s.stop_reason is not None]
        if not done:
            return
        texts = [(sequence.job.adapter, sequence.cached) for _, sequence in done]
        new = self._prefixes.add(texts, self._room_to_keep())
        rows = self._model.tensor([done[e.sequence][0] for e in new])
        positions = self._model.tensor([e.position for e in new])
        caches = self._cache.layers.items()
        values = ((n, cache.permute(1, 3, 0, 2, 4)[rows, positions]) for n, cache in caches)
        self._prefixes.write(new, values)

    def _room_to_keep(self) -> int:
        """How many tokens of prefixes fit beside the rows."""
        rows = self._cache.rows * self._cache.length
        return max(0, min(self._kept_tokens, self._cache_tokens - rows))

    def _make_room(self, rows: int) -> None:
        """Let kept prefixes make way for the rows that are about to be."""
        rows, length = self._cache.grown(rows, self._reach())
        self._prefixes.shrink(max(0, self._cache_tokens - rows * length))

    def _pick_first(self, groups: list[list[Sequence]], hidden: Tensor) -> None:
        """The first token of every sequence, from the last hidden state of its prompt."""
        logits = self._logits(hidden, [group[0].job.adapter for group in groups])
        rows = [row for row, group in enumerate(groups) for _ in group]
        sequences = [sequence for group in groups for sequence in group]
        for start in range(0, len(rows), self._model.head.chunk_rows()):
            part = slice(start, start + self._model.head.chunk_rows())
            self._pick_next(sequences[part], logits[self._model.tensor(rows[part])])

    def _score_prompt(self, job: Job, hidden: Tensor) -> None:
        job.scores = score_prompt(job.request, hidden, self._model.head, job.adapter, job.seed)

    def _start_rows(
        self, sequences: list[Sequence], view: TreeView, path: IntArray, rows: int
    ) -> None:
        if not sequences:
            return
        first = len(self._running)
        self._running.extend(sequences)
        self._make_room(rows)
        self._cache.reserve(rows, self._reach(), view.kept)
        self._cache.fill(list(range(first, len(self._running))), view.kept, path)

    def _reach(self) -> int:
        """How long rows are made now: twice what is used, but not longer than they may get."""
        used = max(sequence.length for sequence in self._running)
        longest = max(self._final_length(sequence) for sequence in self._running)
        return min(2 * used, longest)

    def _decode(self) -> list[Sequence]:
        running = list(self._running)
        positions = np.array([s.length - 1 for s in running], np.int64)
        tokens = np.array([s.tokens[-1] for s in running], np.int64)
        length = int(positions.max()) + 1
        if length > self._cache.length:
            self._make_room(self._cache.rows)
            self._cache.lengthen(self._reach())
        adapters = [s.job.adapter for s in running]
        view = DecodeView(self._cache.layers, self._model.tensor(positions), length)
        routes = _routes(self._by_adapter(adapters))
        hidden = self._model.hidden(tokens, positions, view, routes)
        self._pick_next(running, self._logits(hidden, adapters))
        return running

    def _by_adapter(self, adapters: list[Adapter | None]) -> list[tuple[Adapter | None, Rows]]:
        """The rows of each adapter."""
        rows: dict[Adapter | None, list[int]] = {}
        for row, adapter in enumerate(adapters):
            rows.setdefault(adapter, []).append(row)
        return [(adapter, self._model.tensor(numbers)) for adapter, numbers in rows.items()]

    def _logits(self, hidden: Tensor, adapters: list[Adapter | None]) -> Tensor:
        parts = self._by_adapter(adapters)
        if len(parts) == 1:
            return self._model.head.logits(hidden, adapters[0])
        logits = hidden.new_empty(len(hidden), self._model.info.vocab_size, dtype=torch.float32)
        for adapter, rows in parts:
            logits[rows] = self._model.head.logits(hidden[rows], adapter)
        return logits

    def _pick_next(self, sequences: list[Sequence], logits: Tensor) -> None:
        requests = [s.job.request for s in sequences]
        picks = Picks.of([(r.temperature, r.top_k, r.top_p) for r in requests], logits.device)
        uniforms = [uniform(s.job.seed, s.index, len(s.tokens)) for s in sequences]
        numbers = torch.tensor(uniforms, dtype=torch.float32, device=logits.device)
        tokens, logprobs, everything = pick(logits, picks, numbers)
        for sequence, token, logprob in zip(
            sequences, tokens.tolist(), logprobs.tolist(), strict=True
        ):
            sequence.append(token, logprob)
        for row, request in enumerate(requests):
            if request.topk_sample_logprobs:
                top = everything[row].topk(request.topk_sample_logprobs)
                sequences[row].top.append((top.indices.tolist(), top.values.tolist()))

    def _drop_finished(self) -> None:
        """Close the gaps of finished rows by moving the last rows up."""
        row = 0
        while row < len(self._running):
            if self._running[row].stop_reason is None:
                row += 1
                continue
            last = self._running.pop()
            if row < len(self._running):
                if last.stop_reason is None:
                    self._cache.move(len(self._running), row, last.length)
                self._running[row] = last


def _routes(parts: list[tuple[Adapter | None, Rows]]) -> list[Route]:
    if len(parts) == 1:
        return [Route(parts[0][0], EVERY_ROW)] if parts[0][0] is not None else []
    return [Route(adapter, rows) for adapter, rows in parts if adapter is not None]
