"""The scheduler: which prompts are prefilled next, which answers start, which ones decode.

It decides with block counts and knows no tensors. Jobs wait in one queue per adapter, and the
queues take turns. A prompt enters in chunks, so that a long one does not stall running answers.
When the pool is full, the answer that started last gives its blocks back and resumes later.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from .attention.layout import Chunk
from .blocks import BlockManager
from .lora import MAX_SLOTS, Adapter
from .messages import IntArray
from .pool import BLOCK_SIZE
from .sequence import Job, Prefill, Sequence


@dataclass(frozen=True)
class PrefillStep:
    """A chunk of a prefill that is computed in the next pass."""

    prefill: Prefill
    chunk: Chunk

    @property
    def completes(self) -> bool:
        return self.chunk.end == len(self.prefill.tokens)


class Scheduler:
    """The queues of one engine."""

    def __init__(self, blocks: BlockManager, max_rows: int, chunk_tokens: int) -> None:
        self.blocks = blocks
        self.running: list[Sequence] = []  # in the order in which they started
        self.version = 0  # of that list
        self.extended: list[Sequence] = []  # that got a new block for the next step
        self._max_rows = max_rows
        self._chunk_tokens = chunk_tokens
        self._waiting: OrderedDict[Adapter | None, deque[Job]] = OrderedDict()
        self._resuming: deque[Prefill] = deque()
        self._prefilling: list[Prefill] = []
        self._ready: deque[Prefill] = deque()  # with sequences that have not started
        self._prompts: dict[tuple[Adapter | None, bytes], Prefill] = {}
        self._alone = 0  # prefills that are still to be computed one by one, after a failure

    @property
    def is_idle(self) -> bool:
        others = (self.running, self._prefilling, self._ready, self._resuming, self._waiting)
        return not any(others)

    def emptied(self, blocks: BlockManager) -> Scheduler:
        """Return a scheduler with the same settings and nothing in its queues."""
        scheduler = Scheduler(blocks, self._max_rows, self._chunk_tokens)
        scheduler.version = self.version + 1
        return scheduler

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._waiting.setdefault(job.adapter, deque()).append(job)

    # ---- prefill --------------------------------------------------------------------------------

    def next_prefills(self) -> list[PrefillStep]:
        """Choose the chunks of the next prefill pass and take the blocks for them."""
        steps: list[PrefillStep] = []
        room = self._chunk_tokens
        for prefill in self._prefilling:
            if room <= 0 or (steps and self._alone):
                break
            room -= self._add(steps, prefill, room)
        adapters = {step.prefill.adapter for step in steps}
        while room > 0 and not (steps and self._alone):
            admitted = self._admit(adapters)
            if admitted is None:
                break
            adapters.add(admitted.adapter)
            self._prefilling.append(admitted)
            room -= self._add(steps, admitted, room)
        return steps

    def _add(self, steps: list[PrefillStep], prefill: Prefill, room: int) -> int:
        end = min(prefill.done + room, len(prefill.tokens))
        tokens = prefill.tokens[prefill.done : end]
        steps.append(PrefillStep(prefill, Chunk(tokens, prefill.done, prefill.blocks)))
        # Known from here on: a prompt that shares these blocks is computed in the same pass or in
        # a later one, and within a pass keys are written before anyone reads them.
        full = end // BLOCK_SIZE
        for index in range(prefill.known, full):
            part = prefill.tokens[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE]
            prefill.number = self.blocks.learn(prefill.blocks[index], prefill.number, part)
        prefill.known = max(prefill.known, full)
        return len(tokens)

    def _admit(self, adapters: set[Adapter | None]) -> Prefill | None:
        """Take the next prompt whose tokens must be computed, with its blocks."""
        if self._claimed_rows() >= self._max_rows:
            return None
        if self._resuming:
            return self._resuming.popleft() if self._fits(self._resuming[0], adapters) else None
        for _ in range(len(self._waiting)):
            adapter, queue = next(iter(self._waiting.items()))
            prefill = self._prefill_of(queue, adapter)
            if prefill is not None:
                if not self._fits(prefill, adapters):
                    self._prompts.pop((adapter, prefill.tokens.tobytes()), None)
                    return None
                for job in prefill.jobs:
                    job.prefill = prefill
                queue.popleft()
            if queue:
                self._waiting.move_to_end(adapter)
            else:
                del self._waiting[adapter]
            if prefill is not None:
                return prefill
        return None

    def _claimed_rows(self) -> int:
        """Count the sequences that run, or will as soon as their prompt is in the pool."""
        prefills = [*self._prefilling, *self._ready]
        starting = [job for prefill in prefills for job in prefill.jobs]
        resuming = sum(prefill.sequence is not None for prefill in prefills)
        most = self._max_rows // 4  # one job alone does not keep all others out
        waiting = sum(min(len(job.sequences) - job.started, most) for job in starting)
        return len(self.running) + resuming + waiting

    def _prefill_of(self, queue: deque[Job], adapter: Adapter | None) -> Prefill | None:
        """Return a new prefill for the first job of a queue; jobs that can share one join it."""
        while queue:
            job = queue[0]
            key = (adapter, job.request.prompt.tobytes())
            shared = self._prompts.get(key)
            if job.is_over:
                queue.popleft()
            elif shared is not None and not job.wants_scores:
                queue.popleft()
                self._join(shared, job)
            else:
                prefill = Prefill(
                    job.request.prompt, adapter, jobs=[job], keeps_hidden=job.wants_scores
                )
                if not job.wants_scores:
                    self._prompts[key] = prefill
                return prefill
        return None

    def _join(self, prefill: Prefill, job: Job) -> None:
        prefill.jobs.append(job)
        job.prefill = prefill
        if prefill.is_done and prefill not in self._ready:
            self._ready.append(prefill)

    def _fits(self, prefill: Prefill, adapters: set[Adapter | None]) -> bool:
        """Take a prefill's blocks if they are there, and leave one for every running sequence."""
        if len(adapters | {prefill.adapter}) > MAX_SLOTS:
            return False
        known = self.blocks.find(prefill.adapter, _reusable(prefill))
        needed = -(-len(prefill.tokens) // BLOCK_SIZE) - len(known)
        is_alone = not (self.running or self._prefilling or self._ready)
        reserve = 0 if is_alone else len(self.running) + 1
        if needed + reserve > self.blocks.free:
            self.blocks.release(known)
            return False
        prefill.blocks = known + [self._take() for _ in range(needed)]
        prefill.done = len(known) * BLOCK_SIZE
        prefill.known, prefill.number = 0, self.blocks.root(prefill.adapter)
        for index in range(len(known)):
            part = prefill.tokens[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE]
            prefill.number = self.blocks.learn(known[index], prefill.number, part)
        prefill.known = len(known)
        return True

    def _take(self) -> int:
        block = self.blocks.take()
        assert block is not None, "the blocks were counted"
        return block

    def prefilled(self, step: PrefillStep) -> None:
        """Note that a chunk has been computed."""
        prefill = step.prefill
        prefill.done = step.chunk.end
        if not prefill.is_done:
            return
        self._alone = max(self._alone - 1, 0)
        self._prefilling.remove(prefill)
        if prefill.sequence is not None:
            sequence = prefill.sequence
            sequence.blocks, sequence.known = prefill.blocks, prefill.known
            sequence.number = prefill.number
            if sequence.job.is_over:
                self._release(sequence)
            else:
                self.running.append(sequence)
                self.version += 1
        else:
            self._ready.append(prefill)

    def drop(self, prefill: Prefill) -> None:
        """Give up on a prefill whose pass failed; what its blocks hold is not known."""
        if prefill in self._prefilling:
            self._prefilling.remove(prefill)
        self._alone = max(self._alone - 1, 0)
        self.blocks.forget_all()
        self._free(prefill)

    def separate(self, steps: list[PrefillStep]) -> None:
        """Start the prefills of a failed pass again, one by one.

        They begin from nothing: one may have counted on blocks that another was to compute.
        """
        self.blocks.forget_all()
        self._alone = len(steps)
        for step in reversed(steps):
            self._prefilling.remove(step.prefill)
            self._queue_again(step.prefill)

    # ---- starting -------------------------------------------------------------------------------

    def next_starts(self) -> list[Sequence]:
        """Choose the sequences whose first token is picked next, of prompts that are in the pool.

        Prompts take turns. Blocks come after that, by ``start``: most short answers need none.
        """
        resuming = sum(prefill.sequence is not None for prefill in self._prefilling)
        rows = self._max_rows - len(self.running) - resuming
        rows = min(rows, self.blocks.free)  # a sequence takes one block to begin with
        adapters = {sequence.job.adapter for sequence in self.running}
        chosen: dict[Prefill, list[Sequence]] = {prefill: [] for prefill in self._ready}
        short = self._max_rows
        turns = deque(self._ready)
        while turns:
            prefill = turns.popleft()
            job = _next_job(prefill)
            if job is None:
                continue
            is_short = job.max_tokens == 1
            if (short if is_short else rows) <= 0 or len(adapters | {prefill.adapter}) > MAX_SLOTS:
                continue
            adapters.add(prefill.adapter)
            chosen[prefill].append(job.sequences[job.started])
            job.started += 1
            rows, short = rows - (not is_short), short - is_short
            turns.append(prefill)
        for prefill, sequences in chosen.items():
            if _next_job(prefill) is None and not sequences:
                self._free(prefill)
        return [sequence for sequences in chosen.values() for sequence in sequences]

    def start(self, sequence: Sequence) -> tuple[int, int] | None:
        """Let a sequence decode whose first token is known.

        Full blocks of the prompt are shared. Of the last one it needs a copy: returns its source
        and target.
        """
        prefill = sequence.job.prefill
        assert prefill is not None
        full, rest = divmod(len(prefill.tokens), BLOCK_SIZE)
        sequence.blocks = prefill.blocks[:full]
        for block in sequence.blocks:
            self.blocks.share(block)
        sequence.known, sequence.number = prefill.known, prefill.number
        self.running.append(sequence)
        self.version += 1
        if not rest:
            return None
        sequence.blocks.append(self._take())
        return prefill.blocks[full], sequence.blocks[full]

    def started(self, sequences: list[Sequence]) -> None:
        """Free the prompts whose last sequence has started."""
        for prefill in dict.fromkeys(sequence.job.prefill for sequence in sequences):
            if prefill is not None and _next_job(prefill) is None:
                self._free(prefill)

    # ---- decoding -------------------------------------------------------------------------------

    def next_decodes(self, ahead: int = 0) -> list[Sequence]:
        """Return the sequences that decode next, each with a block for its new token.

        ``ahead`` tokens of each are still being computed and not known here.
        """
        self.extended = []
        index = 0
        while index < len(self.running):  # only the last ones ever leave on the way
            self._make_room(self.running[index], ahead)
            index += 1
        return self.running

    def _make_room(self, sequence: Sequence, ahead: int) -> None:
        position = sequence.length - 1 + ahead
        while position // BLOCK_SIZE >= len(sequence.blocks):
            block = self.blocks.take()
            if block is not None:
                sequence.blocks.append(block)
                self.extended.append(sequence)
            elif not self._reclaim():
                victim = self.running[-1]
                self.put_back_last()
                if victim is sequence:
                    return

    def _reclaim(self) -> bool:
        """Take the blocks of a prompt from which nothing has started yet; its jobs wait again."""
        if not (self._ready or self._prefilling):
            return False
        self._queue_again(self._ready[-1] if self._ready else self._prefilling.pop())
        return True

    def _queue_again(self, prefill: Prefill) -> None:
        """Take a prefill's blocks and put whoever waits for it back to the front of the queue."""
        if prefill.sequence is not None:
            again = Prefill(prefill.tokens, prefill.adapter, prefill.sequence)
            self._resuming.appendleft(again)
        for job in reversed(prefill.jobs):
            self._waiting.setdefault(prefill.adapter, deque()).appendleft(job)
        self._free(prefill)

    def put_back_last(self) -> None:
        """Take the blocks of the last sequence; it resumes from its tokens when there is room."""
        sequence = self.running.pop()
        self.version += 1
        self._release(sequence)
        self._resuming.appendleft(Prefill(sequence.cached, sequence.job.adapter, sequence))

    def grew(self, sequence: Sequence) -> None:
        """Note that a sequence has a new token: a block may be full now."""
        full = (sequence.length - 1) // BLOCK_SIZE
        while sequence.known < min(full, len(sequence.blocks)):
            part = sequence.block(sequence.known)
            block = sequence.blocks[sequence.known]
            sequence.number = self.blocks.learn(block, sequence.number, part)
            sequence.known += 1

    def retire(self, done: set[Sequence]) -> None:
        """Let finished sequences go."""
        if not done:
            return
        self.running = [sequence for sequence in self.running if sequence not in done]
        self.version += 1
        for sequence in done:
            self._release(sequence)

    def cancel(self, job: Job) -> None:
        """Let go of a job's running sequences; those that wait are skipped in their turn."""
        self.retire({s for s in self.running if s.job is job})
        self._resuming = deque(p for p in self._resuming if p.sequence not in job.sequences)
        for prefill in [p for p in self._ready if job in p.jobs]:
            prefill.jobs.remove(job)
            if not prefill.jobs:
                self._free(prefill)

    def jobs(self) -> list[Job]:
        """Return every job that waits or runs."""
        waiting = [job for queue in self._waiting.values() for job in queue]
        prefills = [*self._prefilling, *self._ready, *self._resuming]
        queued = [job for prefill in prefills for job in prefill.jobs]
        resuming = [p.sequence.job for p in prefills if p.sequence is not None]
        running = [sequence.job for sequence in self.running]
        return list(dict.fromkeys([*running, *resuming, *queued, *waiting]))

    def _release(self, sequence: Sequence) -> None:
        self.blocks.release(sequence.blocks)
        sequence.blocks = []
        sequence.known = 0

    def _free(self, prefill: Prefill) -> None:
        self.blocks.release(prefill.blocks)
        prefill.blocks = []
        prefill.hidden, prefill.last_hidden = [], None
        if prefill in self._ready:
            self._ready.remove(prefill)
        key = (prefill.adapter, prefill.tokens.tobytes())
        if self._prompts.get(key) is prefill:
            del self._prompts[key]


def _next_job(prefill: Prefill) -> Job | None:
    """Return the first job of a prompt that has sequences to start; forget those before it."""
    while prefill.jobs:
        job = prefill.jobs[0]
        if not job.is_over and job.started < len(job.sequences):
            return job
        prefill.jobs.pop(0)
    return None


def _reusable(prefill: Prefill) -> IntArray:
    """Return the tokens that may be known already: never the last, whose hidden state counts."""
    if prefill.keeps_hidden:
        return prefill.tokens[:0]
    return prefill.tokens[:-1]
