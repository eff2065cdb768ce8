"""Samples the prompts of a request, and returns pieces of text."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mint.engine.messages import (
    SampledSequence,
    SampledToken,
    SampleRequest,
    SampleResult,
    TopkLogprobs,
)
from mint.service.access.scopes import Caller
from mint.service.api.openai.requests import ChatCompletion, Completion, Inference
from mint.service.errors import ApiError, UserError
from mint.service.sampling.session import SamplingSession
from mint.service.service import Service
from mint.service.text.stream import TextStream, TokenScore
from mint.service.text.tokenizer import ModelTokenizer, check_length, load_tokenizer
from mint.service.wire.requests import engine_fields

_LOWEST = -9999.0  # JSON has no infinity


@dataclass(frozen=True)
class Piece:
    """A piece of the text of one choice. The last one has the finish reason."""

    choice: int
    text: str
    scores: list[TokenScore]
    finish_reason: str | None = None


@dataclass
class PreparedRequest:
    """A request with its sampler, its tokenizer and its prompts as tokens."""

    request: Inference
    sampler: SamplingSession
    tokenizer: ModelTokenizer
    prompts: list[list[int]]
    engine_request: SampleRequest
    completion_tokens: int = 0

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.request.n

    @property
    def echo(self) -> bool:
        return isinstance(self.request, Completion) and self.request.echo

    @property
    def usage(self) -> dict[str, int]:
        prompt = sum(map(len, self.prompts))
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt + self.completion_tokens,
        }


async def find_model(service: Service, caller: Caller, name: str) -> SamplingSession:
    """Return the sampler of a base model or checkpoint. Raises ApiError 404 if there is none."""
    try:
        return await service.samplers.named(caller, name)
    except UserError as error:
        raise ApiError(404, str(error)) from error


async def prepare(
    service: Service, caller: Caller, request: Completion | ChatCompletion
) -> PreparedRequest:
    """Find the model and encode the prompts. Raises ApiError 404 if there is no such model."""
    sampler = await find_model(service, caller, request.model)
    folder = await service.engines.locate(sampler.row.base_model)
    tokenizer = await asyncio.to_thread(load_tokenizer, folder)
    encode = _chat_prompt if isinstance(request, ChatCompletion) else _plain_prompts
    prompts = await asyncio.to_thread(encode, request, tokenizer)  # type: ignore[arg-type]
    return PreparedRequest(request, sampler, tokenizer, prompts, engine_request(request))


def _chat_prompt(request: ChatCompletion, tokenizer: ModelTokenizer) -> list[list[int]]:
    messages = [message.for_template() for message in request.messages]
    text = tokenizer.render(messages, request.tools_for_template(), request.chat_template_kwargs)
    return [tokenizer.encode(text, special=False)]


def _plain_prompts(request: Completion, tokenizer: ModelTokenizer) -> list[list[int]]:
    check_length(sum(len(text) for text in request.prompts() if isinstance(text, str)))
    return [
        tokenizer.encode(prompt, special=True) if isinstance(prompt, str) else _check_ids(prompt)
        for prompt in request.prompts()
    ]


def _check_ids(prompt: list[int]) -> list[int]:
    """Return a prompt of valid integers; the engine checks them against its vocabulary."""
    if any(not 0 <= token < 2**31 for token in prompt):
        raise UserError(
            "prompt contains a number that is not a token id. Encode the text with the model's "
            "own tokenizer, or send the text itself."
        )
    return prompt


def engine_request(request: Completion | ChatCompletion) -> SampleRequest:
    """Return the request for the engine, without a prompt."""
    if isinstance(request, ChatCompletion):
        max_tokens = request.max_completion_tokens or request.max_tokens
        top = request.top_logprobs
        scores_prompt = False
    else:
        max_tokens = request.max_tokens
        top = request.logprobs or 0
        scores_prompt = request.echo and request.logprobs is not None
    return SampleRequest(
        **engine_fields(request)
        | {
            "prompt": np.zeros(0, np.int64),
            "num_samples": request.n,
            "max_tokens": 1 if max_tokens == 0 else max_tokens,
            "renormalize": True,  # report the distribution that was sampled from, as vLLM does
            "stop": request.stops() or None,
            "topk_sample_logprobs": top,
            "prompt_logprobs": scores_prompt,
            "topk_prompt_logprobs": top if scores_prompt else 0,
            "progress": request.stream,
        }
    )


async def pieces(service: Service, job: PreparedRequest) -> AsyncIterator[Piece]:
    """Yield the text of every choice as it is sampled."""
    news: _News = asyncio.Queue()
    choices = [_Choice(job, number) for number in range(job.choices)]
    n = job.request.n
    samples = [
        asyncio.create_task(_sample(service, job, choices[i : i + n], news))
        for i in range(0, job.choices, n)
    ]
    try:
        for _ in samples:
            while (item := await news.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
    finally:
        for sample in samples:
            sample.cancel()


_News = asyncio.Queue[Piece | Exception | None]
"""Pieces as they are sampled; None after the last one of a prompt."""


async def _sample(
    service: Service, job: PreparedRequest, choices: list[_Choice], news: _News
) -> None:
    """Sample the choices of one prompt."""

    def tell(tokens: list[SampledToken]) -> None:
        for token in tokens:
            top = [(other, max(logprob, _LOWEST)) for other, logprob in token.top]
            score = TokenScore(token.token, max(token.logprob, _LOWEST), top)
            for piece in choices[token.sequence].feed([score]):
                news.put_nowait(piece)

    prompt = np.array(choices[0].prompt, np.int64)
    request = dataclasses.replace(job.engine_request, prompt=prompt)
    try:
        result = await service.samplers.sample(
            job.sampler, request, tell if request.progress else None
        )
        ended = list(zip(choices, result.sequences, strict=True))
        rest = await asyncio.to_thread(lambda: [p for c, s in ended for p in c.finish(s, result)])
        for piece in [*rest, None]:
            news.put_nowait(piece)
    except Exception as error:
        news.put_nowait(error)


class _Choice:
    """One choice in progress: converts its tokens to pieces of text."""

    def __init__(self, job: PreparedRequest, number: int) -> None:
        self.number = number
        self.prompt = job.prompts[number // job.request.n]
        self._job = job
        self._stream = TextStream(job.tokenizer, job.request.stops(), self.prompt)
        self._fed = 0

    def feed(self, scores: list[TokenScore]) -> list[Piece]:
        """Add tokens; return the pieces that are certain now."""
        found = []
        for score in scores:
            self._fed += 1
            text, given = self._stream.feed(score)
            if text or given:
                found.append(Piece(self.number, text, given))
        return found

    def finish(self, sequence: SampledSequence, result: SampleResult) -> list[Piece]:
        """Return the prompt if it is echoed, the tokens that were not streamed, and the end."""
        found = [self._echo(result)] if self._job.echo else []
        if self._job.echo and self._job.request.max_tokens == 0:
            return [*found, Piece(self.number, "", [], "length")]
        self._job.completion_tokens += len(sequence.tokens)
        everything = _scores(sequence.tokens, sequence.logprobs, sequence.topk_logprobs)
        found += self.feed(everything[self._fed :])
        text, scores = self._stream.finish()
        if sequence.stop_reason == "stop" and scores and scores[-1].token == sequence.tokens[-1]:
            scores = scores[:-1]  # the token that ended the answer has no text
        return [*found, Piece(self.number, text, scores, sequence.stop_reason)]

    def _echo(self, result: SampleResult) -> Piece:
        stream, logprobs = TextStream(self._job.tokenizer), result.prompt_logprobs
        if logprobs is None:
            logprobs = np.full(len(self.prompt), np.nan, np.float32)
        scores = _scores(np.array(self.prompt), logprobs, result.topk_prompt_logprobs)
        parts = [*map(stream.feed, scores), stream.finish()]
        text = "".join(text for text, _ in parts)
        return Piece(self.number, text, [score for _, given in parts for score in given])


def _scores(tokens: Any, logprobs: Any, topk: TopkLogprobs | None) -> list[TokenScore]:
    scores = []
    for row, (token, logprob) in enumerate(zip(tokens.tolist(), logprobs.tolist(), strict=True)):
        is_scored = logprob == logprob
        top: list[tuple[int, float]] = []
        if topk is not None and is_scored:
            pairs = zip(topk.token_ids[row].tolist(), topk.logprobs[row].tolist(), strict=True)
            top = [(int(other), max(float(value), _LOWEST)) for other, value in pairs]
        scores.append(TokenScore(token, max(logprob, _LOWEST) if is_scored else None, top))
    return scores
