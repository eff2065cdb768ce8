"""The scheduler: which prompts are prefilled next, which answers start, which ones decode.

It works on block counts, not tensors. Tenants share the engine evenly: the one that holds the least
is served next, and the adapters of each take turns. A lone tenant may use everything; when another
waits, its newest answers beyond its share are preempted and resume later. A prompt is computed in
chunks, so that a long one does not stall running answers. When the pool is full, the newest answer
of the tenant that holds the most is preempted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice

from mint.engine.adapters.lora import MAX_SLOTS, Adapter
from mint.engine.attention.layout import Chunk
from mint.engine.sampling.holdings import Holdings
from mint.engine.sampling.kv_blocks import BlockManager
from mint.engine.sampling.kv_pool import BLOCK_SIZE
from mint.engine.sampling.sequence import Job, Prefill, Sequence, new_uid
from mint.engine.sampling.slots import SlotTurns
from mint.engine.sampling.waiting import WaitingJobs

_MAX_OVERTAKEN = 32
"""How many prompts of others may overtake one that waits for blocks."""


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

    def __init__(
        self, blocks: BlockManager, max_rows: int, chunk_tokens: int, busy_tokens: int | None = None
    ) -> None:
        self.blocks = blocks
        self.running: list[Sequence] = []  # in starting order
        self.version = 0  # counts changes of ``running``
        self.extended: list[Sequence] = []  # those with a new block for the next step
        self._max_rows = self._rows_now = max_rows  # fewer for a while after a failed step
        self._chunk_tokens = chunk_tokens
        self._busy_tokens = busy_tokens or chunk_tokens
        self._waiting = WaitingJobs()
        self._prefilling: list[Prefill] = []
        self._ready: deque[Prefill] = deque()  # with sequences that have not started
        self._prompts: dict[tuple[str, Adapter | None, bytes], Prefill] = {}
        self._ended: set[Prefill] = set()  # those that the device had computed before the step
        self._overtaken = 0
        self._slot_turns = SlotTurns()
        self._may_preempt = False
        self._is_preemption_due = False
        self._alone = 0  # prefills still to be computed one by one, after a failure

    @property
    def is_idle(self) -> bool:
        return not any((self.running, self._prefilling, self._ready, self._waiting))

    def emptied(self, blocks: BlockManager) -> Scheduler:
        """Return a scheduler with the same settings and nothing in its queues."""
        scheduler = Scheduler(blocks, self._max_rows, self._chunk_tokens, self._busy_tokens)
        scheduler.version = self.version + 1
        return scheduler

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._waiting.add(job)

    def begin_step(self) -> None:
        """Note which prompts the device has computed, before the step waits for it."""
        self._ended = {p for p in self._ready if p.has_ended is not None and p.has_ended()}

    def may_preempt(self) -> bool:
        """Return whether running sequences may be preempted in this step, once it has decoded.

        All their tokens must be known then. The previous step found a tenant below its share.
        """
        self._may_preempt, self._is_preemption_due = self._is_preemption_due, False
        return self._may_preempt

    def _holdings(self) -> Holdings:
        prefills = (*self._prefilling, *self._ready)
        waiting = self._waiting.tenants()
        return Holdings(self._rows_now, self.blocks.capacity, self.running, prefills, waiting)

    # ---- prefill --------------------------------------------------------------------------------

    def next_prefills(self) -> list[PrefillStep]:
        """Choose the chunks of the next prefill pass and take the blocks for them."""
        steps: list[PrefillStep] = []
        if not (self._prefilling or self._waiting):
            return steps
        room = most = self._busy_tokens if self._is_busy() else self._chunk_tokens
        held = self._holdings()
        prefilling = {prefill.tenant for prefill in self._prefilling}
        if any(t not in prefilling and held.may_claim(t) for t in self._waiting.tenants()):
            room -= most // 2  # a long prompt leaves room for those of others
        for prefill in self._prefilling:
            if room <= 0 or (steps and self._alone):
                break
            room -= self._add(steps, prefill, room)
        room = most - sum(len(step.chunk.tokens) for step in steps)
        adapters = {step.prefill.adapter for step in steps}
        while room > 0 and not (steps and self._alone):
            admitted = self._admit(adapters, held)
            if admitted is None:
                break
            held = self._holdings() if self._may_preempt else held
            held.add(admitted)
            adapters.add(admitted.adapter)
            self._prefilling.append(admitted)
            room -= self._add(steps, admitted, room)
        return steps

    def _is_busy(self) -> bool:
        """Return whether few prompts wait, compared with the answers that run.

        A short pass delays the running ones less; where many wait, long passes start them sooner.
        """
        few = max(len(self.running) // 4, 1)
        waiting = len(self._prefilling) + sum(1 for _ in islice(self._waiting.jobs(), few + 1))
        return bool(self.running) and waiting <= few

    def _add(self, steps: list[PrefillStep], prefill: Prefill, room: int) -> int:
        end = min(prefill.done + room, len(prefill.tokens))
        tokens = prefill.tokens[prefill.done : end]
        steps.append(PrefillStep(prefill, Chunk(tokens, prefill.done, prefill.blocks)))
        # Known from here on: a prompt that shares these blocks is computed in the same pass or a
        # later one, and within a pass keys are written before they are read.
        self._learn(prefill, end)
        return len(tokens)

    def _admit(self, adapters: set[Adapter | None], held: Holdings) -> Prefill | None:
        """Take the next prompt whose tokens must be computed, with its blocks."""
        passed = False
        for tenant in sorted(self._waiting.tenants(), key=held.claim):
            if held.claimed >= self._rows_now and not held.may_claim(tenant):
                continue
            prefill = self._next_prefill(tenant)
            if prefill is None:
                self._waiting.served(tenant)
            elif self._finds_room(prefill, adapters, held):
                self._leave_queue(prefill)
                self._overtaken = self._overtaken + 1 if passed else 0
                return prefill
            else:
                blocks = _blocks_for(prefill)
                if held.is_owed(tenant, blocks=blocks) or self._overtaken >= _MAX_OVERTAKEN:
                    return None
                passed = True
        return None

    def _next_prefill(self, tenant: str) -> Prefill | None:
        """Return the next prefill of a tenant; it stays in its queue."""
        if resuming := self._waiting.resuming(tenant):
            return resuming[0]
        while (found := self._waiting.queue(tenant)) is not None:
            adapter, queue = found
            if (prefill := self._make_prefill(queue, tenant, adapter)) is not None:
                return prefill
            self._waiting.next_queue(tenant)
        return None

    def _leave_queue(self, prefill: Prefill) -> None:
        if prefill.sequence is not None:
            self._waiting.resuming(prefill.tenant).popleft()
        elif (found := self._waiting.queue(prefill.tenant)) is not None:
            found[1].popleft().prefill = prefill
            self._waiting.next_queue(prefill.tenant)
            if not prefill.keeps_hidden:
                self._prompts[_prompt_key(prefill)] = prefill
        self._waiting.served(prefill.tenant)

    def _make_prefill(
        self, queue: deque[Job], tenant: str, adapter: Adapter | None
    ) -> Prefill | None:
        """Return a new prefill for the first job of a queue; jobs that can share one join it."""
        while queue:
            job = queue[0]
            prefill = Prefill(job.request.prompt, adapter, tenant=tenant, jobs=[job])
            prefill.keeps_hidden = job.wants_scores
            shared = self._prompts.get(_prompt_key(prefill))
            if not job.is_over and (shared is None or job.wants_scores):
                return prefill
            queue.popleft()
            if shared is not None and not job.is_over:
                shared.jobs.append(job)
                job.prefill = shared
        return None

    def _finds_room(self, prefill: Prefill, adapters: set[Adapter | None], held: Holdings) -> bool:
        """Allocate a prefill's blocks (and a row if it resumes), by preemption if needed."""
        tenant, blocks = prefill.tenant, _blocks_for(prefill)
        if prefill.sequence is not None:
            slots = self._slots() | {prefill.adapter}
            if len(slots) > MAX_SLOTS and not self._preempt_adapter(tenant):
                return False
            while len(self.running) + self._resuming_rows() >= self._rows_now:
                if not (held.is_owed(tenant, rows=1) and self._preempt(tenant, ())):
                    return False
        if len(adapters | {prefill.adapter}) > MAX_SLOTS:
            return False
        while not self._fits(prefill):
            if not (held.is_owed(tenant, blocks=blocks) and self._preempt(tenant, self._ready)):
                return False
        return True

    def _fits(self, prefill: Prefill) -> bool:
        """Allocate a prefill's blocks if one remains free for every running sequence."""
        # Never all tokens: the hidden state of the last is needed, and of all for scores.
        reusable = prefill.tokens[: 0 if prefill.keeps_hidden else -1]
        known, number = self.blocks.find(prefill.adapter, reusable)
        needed = _blocks_for(prefill) - len(known)
        is_alone = not (self.running or self._prefilling or self._ready)
        reserve = 0 if is_alone else len(self.running) + 1
        if needed + reserve > self.blocks.free:
            self.blocks.release(known)
            return False
        prefill.blocks = known + [self._take() for _ in range(needed)]
        prefill.done = len(known) * BLOCK_SIZE
        prefill.known, prefill.number = len(known), number
        return True

    def _take(self) -> int:
        block = self.blocks.take()
        assert block is not None, "the blocks were counted"
        return block

    def prefilled(self, step: PrefillStep) -> None:
        """Record that a chunk has been computed."""
        prefill = step.prefill
        prefill.done = step.chunk.end
        if not prefill.is_done:
            return
        self._alone = max(self._alone - 1, 0)
        self._prefilling.remove(prefill)
        sequence = prefill.sequence
        if sequence is None:
            self._ready.append(prefill)
        elif sequence.job.is_over:
            self.blocks.release(prefill.blocks)
        else:
            self._run(sequence, prefill, prefill.blocks)

    def drop(self, prefill: Prefill) -> None:
        """Abort a prefill whose pass failed; the contents of its blocks are unknown."""
        if prefill in self._prefilling:
            self._prefilling.remove(prefill)
        self._alone = max(self._alone - 1, 0)
        self.blocks.forget_all()
        self._free(prefill)

    def separate(self, steps: list[PrefillStep]) -> None:
        """Restart the prefills of a failed pass, one by one.

        They start from scratch: one may rely on blocks that another was to compute.
        """
        self.blocks.forget_all()
        self._alone = len(steps)
        for step in reversed(steps):
            self._prefilling.remove(step.prefill)
            self._queue_again(step.prefill)

    # ---- starting -------------------------------------------------------------------------------

    def next_starts(self) -> list[Sequence]:
        """Choose the sequences whose first token is picked next, among prompts in the pool.

        The tenant with the fewest rows comes first, and its prompts take turns. ``start``
        allocates blocks later: most short answers need none. Picking waits for the device, so
        a prompt is left out beside many running answers until its pass has ended before a step.
        """
        waits = self._is_busy()
        rows = Counter(sequence.job.tenant for sequence in self.running)
        turns: dict[str, deque[Prefill]] = {}
        for prefill in self._ready:
            if not waits or prefill.has_ended is None or prefill in self._ended:
                turns.setdefault(prefill.tenant, deque()).append(prefill)
        chosen: dict[Prefill, list[Sequence]] = {prefill: [] for prefill in self._ready}
        taken, short = 0, self._rows_now
        starting: set[Adapter | None] = set()
        may_start = self._slot_turns.may_start(self._slots(), self._wanted_slots())
        while turns:
            tenant = min(turns, key=rows.__getitem__)  # in a tie, the first
            prefill = turns[tenant].popleft()
            job = _next_job(prefill)
            if job is not None:
                is_short = job.max_tokens == 1
                has_row = short > 0 if is_short else self._has_row(tenant, rows[tenant], taken)
                if has_row and self._has_slot(prefill, may_start, starting):
                    starting.add(prefill.adapter)
                    chosen[prefill].append(job.sequences[job.started])
                    job.started += 1
                    rows[tenant] += not is_short
                    taken, short = taken + (not is_short), short - is_short
                    turns[tenant].append(prefill)
            if not turns[tenant]:
                del turns[tenant]
        for prefill, sequences in chosen.items():
            if _next_job(prefill) is None and not sequences:
                self._free(prefill)
        return [sequence for sequences in chosen.values() for sequence in sequences]

    def _has_row(self, tenant: str, rows: int, taken: int) -> bool:
        """Return whether one more answer can start beside those taken, by preemption if needed."""
        while True:
            used = len(self.running) + self._resuming_rows() + taken
            if used < self._rows_now and taken < self.blocks.free:  # each takes a block to begin
                return True
            if not (rows + 1 <= self._holdings().fair_rows and self._preempt(tenant, ())):
                return False

    def _has_slot(
        self, prefill: Prefill, may_start: set[Adapter | None], starting: set[Adapter | None]
    ) -> bool:
        """Return whether an adapter has a slot in the decoding batch, or can get one."""
        if prefill.adapter in may_start or prefill.adapter in self._slots():
            return prefill.adapter in may_start
        freed = self._preempt_adapter(prefill.tenant, but=starting)
        if freed:
            may_start -= freed
            may_start.add(prefill.adapter)
        return bool(freed)

    def _wanted_slots(self) -> list[Adapter | None]:
        """Return the adapters of all answers that could start or resume now."""
        resuming = [queue[0].adapter for queue in self._waiting.all_resuming()]
        return [*resuming, *(p.adapter for p in self._ready if _next_job(p) is not None)]

    def _slots(self) -> set[Adapter | None]:
        """Return the adapters of all rows."""
        resuming = {p.adapter for p in self._prefilling if p.sequence is not None}
        return {sequence.job.adapter for sequence in self.running} | resuming

    def _resuming_rows(self) -> int:
        return sum(prefill.sequence is not None for prefill in self._prefilling)

    # ---- preemption -----------------------------------------------------------------------------

    def _preempt(self, tenant: str, prompts: Iterable[Prefill]) -> bool:
        """Preempt a prompt or row of the largest tenant, if it holds more than its share."""
        victim = self._holdings().largest_above_share()
        if victim is None or victim == tenant:
            return False
        self._is_preemption_due = True
        return self._may_preempt and self._give_way(victim, prompts)

    def _preempt_adapter(
        self, tenant: str, but: Collection[Adapter | None] = ()
    ) -> set[Adapter | None]:
        """Preempt all rows of one adapter of the tenant with the most; return the adapter.

        Adapters in ``but`` are about to get another row.
        """
        held = self._holdings()
        victim = held.most_slots_above_share()
        if victim in (None, tenant) or not held.is_owed_slot(tenant):
            return set()
        self._is_preemption_due = True
        rows = [s for s in self.running if s.job.tenant == victim and s.job.adapter not in but]
        if not (rows and self._may_preempt):
            return set()
        adapter = min(Counter(s.job.adapter for s in rows).items(), key=lambda item: item[1])[0]
        for sequence in [s for s in rows if s.job.adapter is adapter]:
            self.put_back(sequence)
        is_used = any(s.job.adapter is adapter for s in self.running)
        return set() if is_used else {adapter}

    def _give_way(self, tenant: str, prompts: Iterable[Prefill]) -> bool:
        """Preempt a tenant's newest prompt, or else its newest answer."""
        prefill = next((p for p in reversed([*prompts]) if p.tenant == tenant), None)
        if prefill is not None:
            if prefill in self._prefilling:
                self._prefilling.remove(prefill)
            self._queue_again(prefill)
            return True
        sequence = next((s for s in reversed(self.running) if s.job.tenant == tenant), None)
        if sequence is not None:
            self.put_back(sequence)
        return sequence is not None

    def start(self, sequence: Sequence) -> tuple[int, int] | None:
        """Start decoding a sequence whose first token is known.

        Full blocks of the prompt are shared. Return the source and target of the copy that it
        needs of the last, partial block.
        """
        prefill = sequence.job.prefill
        assert prefill is not None
        full, rest = divmod(len(prefill.tokens), BLOCK_SIZE)
        self._run(sequence, prefill, prefill.blocks[:full])
        for block in sequence.blocks:
            self.blocks.share(block)
        if not rest:
            return None
        sequence.blocks.append(self._take())
        return prefill.blocks[full], sequence.blocks[full]

    def _run(self, sequence: Sequence, prefill: Prefill, blocks: list[int]) -> None:
        """Let a sequence decode from these blocks of its prefill."""
        sequence.blocks = blocks
        sequence.known, sequence.number = prefill.known, prefill.number
        self.running.append(sequence)
        self.version += 1

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
        for sequence in list(self.running):
            if sequence.blocks:  # it has none if it was preempted for an earlier one
                self._make_room(sequence, ahead)
        self.extended = [sequence for sequence in self.extended if sequence.blocks]
        return self.running

    def _make_room(self, sequence: Sequence, ahead: int) -> None:
        position = sequence.length - 1 + ahead
        while position // BLOCK_SIZE >= len(sequence.blocks):
            block = self.blocks.take()
            if block is not None:
                sequence.blocks.append(block)
                self.extended.append(sequence)
                continue
            self._give_way(self._holdings().largest(), (*self._prefilling, *self._ready))
            if not sequence.blocks:
                return

    def _queue_again(self, prefill: Prefill) -> None:
        """Release a prefill's blocks and return its jobs to the front of the queue."""
        if prefill.sequence is not None:
            again = Prefill(prefill.tokens, prefill.adapter, prefill.sequence, prefill.tenant)
            self._waiting.add_resuming(again)
        for job in reversed(prefill.jobs):
            self._waiting.add(job, at_front=True)
        self._free(prefill)

    def put_back(self, sequence: Sequence) -> None:
        """Preempt a sequence: release its blocks; it resumes from its tokens when there is room."""
        self.running.remove(sequence)
        self.version += 1
        self._release(sequence)
        sequence.uid = new_uid()  # what a runner knows of its row and blocks is out of date
        job = sequence.job
        self._waiting.add_resuming(Prefill(sequence.cached, job.adapter, sequence, job.tenant))

    def halve_rows(self) -> None:
        """Preempt the newer half of the running sequences, after a step of all of them failed."""
        self._rows_now = max(len(self.running) // 2, 1)
        for sequence in self.running[self._rows_now :]:
            self.put_back(sequence)

    def add_row(self) -> None:
        """Allow one more row after a step that succeeded, up to the usual number."""
        self._rows_now = min(self._rows_now + 1, self._max_rows)

    def grew(self, sequence: Sequence) -> None:
        """Record that a sequence has a new token, which may have filled a block."""
        self._learn(sequence, sequence.length - 1)

    def _learn(self, holder: Prefill | Sequence, tokens: int) -> None:
        """Record the contents of the blocks that the first tokens of a holder fill."""
        while holder.known < min(tokens // BLOCK_SIZE, len(holder.blocks)):
            block, part = holder.blocks[holder.known], holder.block(holder.known)
            holder.number = self.blocks.learn(block, holder.number, part)
            holder.known += 1

    def retire(self, done: set[Sequence]) -> None:
        """Remove finished sequences."""
        if not done:
            return
        self.running = [sequence for sequence in self.running if sequence not in done]
        self.version += 1
        for sequence in done:
            self._release(sequence)

    def cancel(self, job: Job) -> None:
        """Remove a job's running sequences; waiting ones are skipped when their turn comes.

        Its prompt stays until then: sequences of other jobs may be about to start from it.
        """
        self.retire({s for s in self.running if s.job is job})
        self._waiting.cancel(job)

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
        if self._prompts.get(key := _prompt_key(prefill)) is prefill:
            del self._prompts[key]


def _next_job(prefill: Prefill) -> Job | None:
    """Return the first job of a prompt with sequences to start; drop those before it."""
    while prefill.jobs:
        job = prefill.jobs[0]
        if not job.is_over and job.started < len(job.sequences):
            return job
        prefill.jobs.pop(0)
    return None


def _prompt_key(prefill: Prefill) -> tuple[str, Adapter | None, bytes]:
    return prefill.tenant, prefill.adapter, prefill.tokens.tobytes()


def _blocks_for(prefill: Prefill) -> int:
    return -(-len(prefill.tokens) // BLOCK_SIZE)
