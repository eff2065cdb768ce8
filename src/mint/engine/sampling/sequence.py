"""A sample request in progress: its prompt and its growing answers."""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from torch import Tensor

from mint.engine.adapters.lora import Adapter
from mint.engine.messages import (
    FloatArray,
    IntArray,
    SampledSequence,
    SampledToken,
    SampleRequest,
    SampleResult,
    StopReason,
    TopkLogprobs,
    UserError,
)
from mint.engine.sampling.kv_pool import BLOCK_SIZE
from mint.engine.sampling.picking import is_filtered, is_penalized
from mint.engine.sampling.scoring import BROKEN_WEIGHTS, EXTREME_PARAMETERS
from mint.engine.sampling.stopping import StopRule

new_uid = itertools.count().__next__


@dataclass(eq=False)
class Prefill:
    """Tokens being computed into the pool: a prompt, or a sequence that lost its blocks.

    Jobs with the same prompt share one. It holds the blocks until its last user has started.
    """

    tokens: IntArray
    adapter: Adapter | None
    sequence: Sequence | None = None  # the one that resumes afterwards
    tenant: str = ""
    jobs: list[Job] = field(default_factory=list)  # jobs whose answers start from it
    blocks: list[int] = field(default_factory=list)
    done: int = 0  # tokens that are in the pool
    known: int = 0  # blocks whose content the block manager knows
    number: int = 0  # the number of the last known block
    keeps_hidden: bool = False  # whether to keep all hidden states, to score the prompt
    hidden: list[Tensor] = field(default_factory=list)
    last_hidden: Tensor | None = None
    has_ended: Callable[[], bool] | None = None  # whether a GPU has run its last pass

    @property
    def is_done(self) -> bool:
        return self.done == len(self.tokens)

    def block(self, index: int) -> IntArray:
        """Return the tokens of one full block."""
        return self.tokens[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE]


@dataclass(eq=False)
class Sequence:
    """One answer while it grows."""

    job: Job
    index: int
    seed: int
    sample: int  # its number among the samples with this seed
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[tuple[IntArray, FloatArray]] = field(default_factory=list)  # ids and logprobs [K]
    stop_reason: StopReason | None = None
    blocks: list[int] = field(default_factory=list)
    known: int = 0  # blocks whose content the block manager knows
    number: int = 0  # the number of the last known block
    reported: int = 0  # tokens that were sent as progress
    uid: int = field(default_factory=new_uid)

    @property
    def length(self) -> int:
        """Tokens so far, prompt included."""
        return len(self.job.request.prompt) + len(self.tokens)

    @property
    def is_done(self) -> bool:
        return self.stop_reason is not None

    @property
    def cached(self) -> IntArray:
        """The tokens whose keys and values are in the pool: all but the newest."""
        return np.concatenate([self.job.request.prompt, np.array(self.tokens[:-1], np.int64)])

    def block(self, index: int) -> IntArray:
        """Return the tokens of one full block."""
        prompt, start = self.job.request.prompt, index * BLOCK_SIZE
        end = start + BLOCK_SIZE
        answer = self.tokens[max(start - len(prompt), 0) : end - len(prompt)]
        return np.concatenate([prompt[start:end], np.array(answer, np.int64)])

    def append(self, token: int, logprob: float) -> None:
        """Add a token. Raises UserError when its logprob is NaN, with what may have caused it."""
        if math.isnan(logprob):
            request = self.job.request
            is_shaped = is_penalized(request) or request.temperature not in (0, 1)
            raise UserError(EXTREME_PARAMETERS if is_shaped else BROKEN_WEIGHTS)
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.job.stop.reached(self.tokens):
            self.stop_reason = "stop"
        elif len(self.tokens) >= self.job.max_tokens:
            self.stop_reason = "length"

    def fresh(self) -> list[SampledToken]:
        """Return the tokens since the last call."""
        fresh = []
        for at in range(self.reported, len(self.tokens)):
            ids, logprobs = self.top[at] if self.top else ((), ())
            top = [(int(one), float(lp)) for one, lp in zip(ids, logprobs, strict=True)]
            fresh.append(SampledToken(self.index, self.tokens[at], self.logprobs[at], top))
        self.reported = len(self.tokens)
        return fresh

    def result(self) -> SampledSequence:
        assert self.stop_reason is not None, "only a finished sequence has a result"
        top = None
        if self.top:
            top = TopkLogprobs(*(np.stack(rows) for rows in zip(*self.top, strict=True)))
        tokens, logprobs = np.array(self.tokens, np.int64), np.array(self.logprobs, np.float32)
        return SampledSequence(tokens, logprobs, self.stop_reason, top)


@dataclass(eq=False)
class Job:
    """A sample request in progress. ``ticket`` is the caller's id for it."""

    ticket: int
    request: SampleRequest
    adapter: Adapter | None
    stop: StopRule
    max_tokens: int
    seed: int = field(init=False)
    scores: SampleResult | None = None  # scores of its prompt
    error: Exception | None = None
    is_cancelled: bool = False
    prefill: Prefill | None = None
    sequences: list[Sequence] = field(init=False)
    started: int = 0  # sequences that have left the queue
    finished: int = 0

    def __post_init__(self) -> None:
        seed, seeds, count = self.request.seed, self.request.seeds, self.request.num_samples
        self.seed = secrets.randbits(63) if seed is None else seed
        drawn = [(self.seed, i) for i in range(count)] if seeds is None else [(s, 0) for s in seeds]
        self.sequences = [Sequence(self, i, *each) for i, each in enumerate(drawn)]

    @property
    def tenant(self) -> str:
        return self.request.tenant

    @cached_property
    def is_special(self) -> bool:
        """Return whether picking its tokens takes more than a temperature."""
        request = self.request
        return is_filtered(request) or is_penalized(request) or request.topk_sample_logprobs > 0

    @property
    def wants_scores(self) -> bool:
        """Whether the request asks for anything about its prompt."""
        request = self.request
        return (
            request.prompt_logprobs
            or request.topk_prompt_logprobs > 0
            or request.target_prompt_logprobs is not None
            or request.prompt_alt_tokens_k > 0
        )

    @property
    def is_done(self) -> bool:
        return self.finished == len(self.sequences)

    @property
    def is_over(self) -> bool:
        """Whether it was cancelled or has failed."""
        return self.is_cancelled or self.error is not None

    def result(self) -> SampleResult:
        sequences = [sequence.result() for sequence in self.sequences]
        digest = None if self.adapter is None else self.adapter.digest
        return replace(self.scores or SampleResult([]), sequences=sequences, digest=digest)
