"""The policy: frozen weights to sample from, with a logprob for every token."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

import mint
from mint import types
from mint.config_error import ConfigError
from mint.rl.messages.rendering import special_tokens
from mint.rl.rollouts.rollout import Kept, Segment


@dataclass(frozen=True)
class Filters:
    """``top_k``, ``top_p`` and ``min_p`` of sampling.

    The sampler reports which tokens it kept (``top_k`` bounds their number), and logprobs among
    these, so that the trainer can compute logprobs of the same distribution.
    """

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def is_on(self) -> bool:
        return self.top_k > 0

    def params(self) -> dict[str, Any]:
        return {**asdict(self), "renormalize": True} if self.is_on else {}

    def kept_tokens(self, sequence: Any) -> list[Kept] | None:
        """Return what each token was chosen from; ConfigError if the service does not say."""
        if not self.is_on:
            return None
        top, missing = sequence.topk_logprobs_np, ""
        if top is None:
            missing = "returns no top-k logprobs of sampled tokens"
        elif np.abs(np.exp(top.logprobs.astype(np.float64)).sum(-1) - 1).max() > 1e-3:
            missing = "reports logprobs before the filters"
        if missing:
            raise ConfigError(
                f"top_k, top_p and min_p need a mint service, and this one {missing}. Train on a "
                "service started by `mint serve`, or leave them out."
            )
        rows = zip(top.token_ids, np.isfinite(top.logprobs), strict=True)
        return [tuple(int(token) for token in ids[inside]) for ids, inside in rows]


@dataclass(frozen=True)
class PolicyAnswer:
    """An answer: its tokens with logprobs, and the version of the weights that sampled it."""

    tokens: list[int]
    logprobs: list[float] | None
    truncated: bool
    version: int = 0
    kept: list[Kept] | None = None  # the tokens that each was chosen from, where some were left out


@dataclass(frozen=True)
class Policy:
    """Weights to sample from, after ``version`` training steps."""

    client: mint.SamplingClient
    tokenizer: Any
    temperature: float
    max_tokens: int
    stop: tuple[str, ...] = ()
    version: int = 0
    filters: Filters = Filters()
    digest: str | None = None  # the service's digest of the weights
    newest: Callable[[], Policy] | None = None  # asked before every request, for newer weights

    @property
    def is_plain(self) -> bool:
        """Whether it samples from the model's own distribution."""
        return self.temperature == 1.0 and not self.filters.is_on

    async def sample(
        self,
        prompt: Sequence[int],
        count: int,
        seed: int | Sequence[int] | None,
        max_tokens: int | None = None,
        stop: Sequence[str] | None = None,
    ) -> list[PolicyAnswer]:
        """Return ``count`` answers to a prompt, from these weights or from ``newest()``.

        With a list of seeds, each answer is the one that its seed alone gives.
        """
        if self.newest is not None:
            current = replace(self.newest(), temperature=self.temperature)
            return await current.sample(prompt, count, seed, max_tokens, stop)
        texts, end = list(stop or self.stop), self.end_token
        params = types.SamplingParams(
            max_tokens=max_tokens or self.max_tokens,
            temperature=self.temperature,
            seed=seed if isinstance(seed, int) else None,
            seeds=None if seed is None or isinstance(seed, int) else seed,
            stop=texts or None,
            stop_token_ids=None if texts or end is None else [end],
            **self.filters.params(),
        )
        filtered = self.filters.is_on
        asked: dict[str, Any] = {"topk_sample_logprobs": self.filters.top_k} if filtered else {}
        tokens = types.ModelInput.from_ints(tokens=list(prompt))
        answer = await self.client.sample_async(
            prompt=tokens, num_samples=count, sampling_params=params, **asked
        )
        return [
            PolicyAnswer(
                list(sequence.tokens),
                sequence.logprobs,
                sequence.stop_reason == "length",
                self.version,
                self.filters.kept_tokens(sequence),
            )
            for sequence in answer.sequences
        ]

    @property
    def end_token(self) -> int | None:
        end = getattr(self.tokenizer, "eos_token_id", None)
        return end if isinstance(end, int) else None

    @cached_property
    def _marks(self) -> frozenset[int]:
        return special_tokens(self.tokenizer)

    def has_ended(self, answer: PolicyAnswer, stop: Sequence[str] | None = None) -> bool:
        """Return whether the model ended its answer itself, with an end-of-turn token."""
        if not answer.tokens:
            return False
        last = answer.tokens[-1]
        if last == self.end_token:
            return True
        word = str(self.tokenizer.decode([last]))
        stopped = answer.truncated or any(word in text for text in stop or self.stop)
        return last in self._marks and not stopped

    def text(self, answer: PolicyAnswer, stop: Sequence[str] | None = None) -> str:
        """Return the text of an answer, without the mark that closed it."""
        kept = answer.tokens[:-1] if self.has_ended(answer, stop) else answer.tokens
        return str(self.tokenizer.decode(kept))


def make_segment(prompt: Sequence[int], answer: PolicyAnswer) -> Segment:
    """Return the segment of a prompt and an answer. Raises :class:`mint.rl.MissingLogprobs`."""
    return Segment.of(prompt, answer.tokens, answer.logprobs, answer.version, answer.kept)


def seed_for(seed: int | None, *place: object) -> int | None:
    """Return a seed that depends on nothing but the run's seed and the place where it is used.

    >>> seed_for(0, 1, "a") == seed_for(0, 1, "a") != seed_for(0, 2, "a")
    True
    """
    if seed is None:
        return None
    digest = hashlib.sha256(repr((seed, *place)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
