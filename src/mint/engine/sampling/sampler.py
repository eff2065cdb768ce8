"""Sampling: requests join a running batch, decode together, and leave when they are done.

A step schedules, runs and records. A request that arrives while others run joins at the next step.
"""

from collections.abc import Callable

import torch

from mint.engine.messages import SampledToken
from mint.engine.sampling.kv_blocks import BlockManager
from mint.engine.sampling.kv_pool import BLOCK_SIZE
from mint.engine.sampling.runner import Runner, Tokens
from mint.engine.sampling.scheduler import PrefillStep, Scheduler
from mint.engine.sampling.scoring import score_prompt
from mint.engine.sampling.sequence import Job, Sequence


class Sampler:
    """The running batch of one base model."""

    def __init__(
        self, runner: Runner, max_rows: int, chunk_tokens: int, busy_tokens: int | None = None
    ) -> None:
        self._runner = runner
        self._blocks = BlockManager(runner.pool.blocks)
        self.scheduler = Scheduler(self._blocks, max_rows, chunk_tokens, busy_tokens)
        self._jobs: dict[int, Job] = {}  # by ticket
        self._over: list[Job] = []  # finished or failed, for the next step to return
        self._growing: dict[int, list[SampledToken]] = {}
        self.grown: dict[int, list[SampledToken]] = {}  # by ticket, what the last step added
        self.started: list[int] = []  # tickets of jobs whose first answer began in the last step

    @property
    def capacity(self) -> int:
        """The number of tokens that the pool holds."""
        return self._blocks.capacity * BLOCK_SIZE

    def room(self, prompt: int) -> int:
        """Return how many tokens an answer to a prompt of this length can have.

        More than one take a block to begin in, beside those of the prompt.
        """
        left = self.capacity - prompt
        return left if left >= BLOCK_SIZE else min(left, 1)

    @property
    def tokens_held(self) -> int:
        """The number of tokens in blocks that are in use or known."""
        return self.capacity - (self._blocks.free - self._blocks.kept) * BLOCK_SIZE

    @property
    def tokens_kept(self) -> int:
        """The number of tokens in free blocks that later prompts can reuse."""
        return self._blocks.kept * BLOCK_SIZE

    @property
    def is_idle(self) -> bool:
        return self.scheduler.is_idle and self._runner.is_idle and not self._over

    def submit(self, job: Job) -> None:
        """Queue a job. A later ``step`` returns it when it is done or has failed."""
        self._jobs[job.ticket] = job
        self.scheduler.submit(job)

    @torch.inference_mode()
    def step(self) -> list[Job]:
        """Advance everything by one token; return the jobs that this finished."""
        self.started = []
        self.scheduler.begin_step()
        self._decode()  # before prompts: picking a first token waits for the pass of its prompt
        if self.scheduler.may_preempt():
            self._drain()
        if steps := self.scheduler.next_prefills():
            self._prefill(steps)
        self._start(self.scheduler.next_starts())
        over, self._over = self._over, []
        self.grown, self._growing = self._growing, {}
        for job in over:
            self._jobs.pop(job.ticket, None)
        return over

    @torch.inference_mode()
    def cancel(self, ticket: int) -> bool:
        """Cancel a waiting or running job; return whether there was one."""
        job = self._jobs.pop(ticket, None)
        if job is None:
            return False
        job.is_cancelled = True
        self._drain()
        self.scheduler.cancel(job)
        return True

    def abandon(self, error: Exception) -> list[Job]:
        """Drop every job after a failed step; return all of them, also those that it finished."""
        jobs = [*self._jobs.values()]
        for job in jobs:
            if job not in self._over:
                job.error = error
        self._runner.reset()
        self._blocks.forget_all()
        self._blocks = BlockManager(self._runner.pool.blocks)
        self.scheduler = self.scheduler.emptied(self._blocks)
        self._jobs.clear()
        self._over, self._growing = [], {}
        return jobs

    # ---- prompts --------------------------------------------------------------------------------

    def _prefill(self, steps: list[PrefillStep]) -> None:
        """Compute chunks of prompts. If the pass fails, retry them one by one."""
        try:
            hidden = self._runner.prefill(steps)
        except Exception as error:
            self._runner.recover()
            if len(steps) > 1:
                self.scheduler.separate(steps)
            else:
                prefill = steps[0].prefill
                jobs = [prefill.sequence.job] if prefill.sequence is not None else [*prefill.jobs]
                self.scheduler.drop(prefill)
                for job in jobs:
                    self._fail(job, error)
            return
        at, has_ended = 0, self._runner.pass_end()
        for step in steps:
            prefill, count = step.prefill, len(step.chunk.tokens)
            if prefill.keeps_hidden:
                prefill.hidden.append(hidden[at : at + count])
            at += count
            if step.completes:
                prefill.last_hidden, prefill.has_ended = hidden[at - 1], has_ended
            self.scheduler.prefilled(step)
            if step.completes and prefill.keeps_hidden:
                self._score(prefill.jobs[0], torch.cat(prefill.hidden))
                prefill.hidden = []

    def _score(self, job: Job, hidden: torch.Tensor) -> None:
        if job.scores is not None or job.is_over:
            return
        try:
            lora = self._runner.lora([job.adapter])
            job.scores = score_prompt(job.request, hidden, self._runner.head, lora, job.seed)
        except Exception as error:
            self._runner.recover()
            self._fail(job, error)

    # ---- answers --------------------------------------------------------------------------------

    def _start(self, sequences: list[Sequence]) -> None:
        """Pick the first tokens, each from the last hidden state of its prompt."""
        if not sequences:
            return
        self.started = [s.job.ticket for s in sequences if s.index == 0]
        self._try(self._pick_first, sequences)
        growing = [s for s in sequences if not s.is_done and not s.job.is_over]
        started = {sequence: self.scheduler.start(sequence) for sequence in growing}
        copies = {sequence: copy for sequence, copy in started.items() if copy is not None}
        self._try(lambda some: self._runner.copy_blocks([copies[s] for s in some]), [*copies])
        self.scheduler.started(sequences)

    def _pick_first(self, sequences: list[Sequence]) -> None:
        waiting = [s for s in sequences if not s.tokens and not s.job.is_over]
        for tokens in self._runner.first(waiting):
            self._append(tokens)

    def _try(self, run: Callable[[list[Sequence]], None], sequences: list[Sequence]) -> None:
        """Run something for several answers. If it fails, retry for each alone."""
        try:
            run(sequences)
        except Exception as error:
            self._runner.recover()
            if len(sequences) == 1:
                self._fail(sequences[0].job, error)
                return
            for sequence in sequences:
                self._try(run, [sequence])

    def _decode(self) -> None:
        scheduler = self.scheduler
        if self._runner.must_drain(scheduler.running, scheduler.version):
            self._drain()
        if self._blocks.free < len(scheduler.running):
            self._drain()  # all tokens of a sequence must be known before its blocks are released
        rows = scheduler.next_decodes(self._runner.ahead)
        if not rows:
            self._drain()
            return
        try:
            tokens = self._runner.decode(rows, scheduler.version, scheduler.extended)
        except Exception as error:
            self._recover_from(error)
            return
        scheduler.add_row()
        if tokens is not None:
            self._append(tokens)

    def _recover_from(self, error: Exception) -> None:
        """Continue with half of the rows after a failed step; a row that fails alone is failed."""
        self._runner.recover()
        self._drain()  # the step before it
        self._runner.reset()
        if len(self.scheduler.running) > 1:
            self.scheduler.halve_rows()
        else:
            for sequence in self.scheduler.running:
                self._fail(sequence.job, error)

    def _drain(self) -> None:
        """Wait for the tokens of the step in progress and record them."""
        tokens = self._runner.drain()
        if tokens is not None:
            self._append(tokens)

    def _append(self, tokens: Tokens) -> None:
        """Append each new token to its sequence, and retire sequences that are done."""
        done: set[Sequence] = set()
        for sequence, token, logprob, top in tokens.rows():
            job = sequence.job
            if sequence.is_done or job.is_over:
                continue
            try:
                if top is not None:
                    sequence.top.append(top)
                sequence.append(token, logprob)
            except Exception as error:
                self._fail(job, error)
                continue
            if sequence.blocks:
                self.scheduler.grew(sequence)
            if job.request.progress:
                self._growing.setdefault(job.ticket, []).extend(sequence.fresh())
            if sequence.is_done:
                done.add(sequence)
                job.finished += 1
                if job.is_done:
                    self._over.append(job)
        self.scheduler.retire(done)

    def _fail(self, job: Job, error: Exception) -> None:
        """Fail one job; the others continue."""
        if not job.is_over:
            job.error = error
            self._over.append(job)
            self.scheduler.cancel(job)
