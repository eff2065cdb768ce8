"""A sample request on its way to a result, and the continuations that it grows."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

import numpy as np

from .lora import Adapter
from .messages import (
    IntArray,
    SampledSequence,
    SampledToken,
    SampleRequest,
    SampleResult,
    StopReason,
    TopkLogprobs,
)
from .scoring import PromptScores, is_wanted
from .stopping import StopRule


@dataclass(eq=False)
class Sequence:
    """One continuation while it grows."""

    job: Job
    index: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[tuple[list[int], list[float]]] = field(default_factory=list)
    stop_reason: StopReason | None = None
    reported: int = 0  # tokens that have been told as progress

    @property
    def length(self) -> int:
        """Tokens so far, prompt included."""
        return len(self.job.request.prompt) + len(self.tokens)

    @property
    def cached(self) -> IntArray:
        """The tokens whose keys and values are in its row: all but the newest."""
        return np.concatenate([self.job.request.prompt, np.array(self.tokens[:-1], np.int64)])

    def append(self, token: int, logprob: float) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.job.stop.reached(self.tokens):
            self.stop_reason = "stop"
        elif len(self.tokens) >= self.job.max_tokens:
            self.stop_reason = "length"

    def fresh(self) -> list[SampledToken]:
        """The tokens that it grew by since it was last asked."""
        start, self.reported = self.reported, len(self.tokens)
        return [
            SampledToken(
                self.index,
                self.tokens[at],
                self.logprobs[at],
                list(zip(*self.top[at], strict=True)) if self.top else [],
            )
            for at in range(start, self.reported)
        ]

    def result(self) -> SampledSequence:
        assert self.stop_reason is not None, "only a finished sequence has a result"
        top = None
        if self.top:
            ids, values = zip(*self.top, strict=True)
            top = TopkLogprobs(np.array(ids, np.int64), np.array(values, np.float32))
        tokens, logprobs = np.array(self.tokens, np.int64), np.array(self.logprobs, np.float32)
        return SampledSequence(tokens, logprobs, self.stop_reason, top)


@dataclass(eq=False)
class Job:
    """A sample request on its way to a result. ``ticket`` is the caller's own name for it."""

    ticket: int
    request: SampleRequest
    adapter: Adapter | None
    stop: StopRule
    max_tokens: int
    seed: int = field(default_factory=lambda: secrets.randbits(63))
    scores: PromptScores | None = None
    sequences: list[Sequence] = field(init=False)

    def __post_init__(self) -> None:
        self.sequences = [Sequence(self, i) for i in range(self.request.num_samples)]
        if self.request.seed is not None:
            self.seed = self.request.seed

    @property
    def wants_scores(self) -> bool:
        return self.scores is None and is_wanted(self.request)

    @property
    def is_done(self) -> bool:
        return all(sequence.stop_reason is not None for sequence in self.sequences)

    def result(self) -> SampleResult:
        scores = self.scores or PromptScores()
        return SampleResult(
            sequences=[sequence.result() for sequence in self.sequences],
            prompt_logprobs=scores.logprobs,
            topk_prompt_logprobs=scores.topk,
            target_prompt_logprobs=scores.targets,
            prompt_alt_tokens=scores.alternatives,
        )
