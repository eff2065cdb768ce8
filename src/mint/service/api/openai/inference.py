"""Samples the prompts of a request, and returns pieces of text."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator, Sequence
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
from mint.service.api.openai.requests import ChatCompletion, Completion
from mint.service.errors import ApiError, UserError
from mint.service.results import Share
from mint.service.sampling.session import OnTokens, SamplingSession
from mint.service.service import Service
from mint.service.text.stream import TextStream, TokenScore
from mint.service.text.tokenizer import ModelTokenizer, check_length, load_tokenizer
from mint.service.wire.requests import engine_fields

_LOWEST = -9999.0  # JSON has no infinity
_UNREAD = (
    "This user's clients have left too much output unread, so this stream was ended. Read streams "
    "without pauses, or ask for less at once."
)
MAX_SCORES = 2**19
"""The most logprobs that one answer may have: their JSON objects take about 300 MB."""


@dataclass(frozen=True)
class Piece:
    """A piece of the text of one choice. The last one has the finish reason."""

    choice: int
    text: str
    scores: list[TokenScore]
    finish_reason: str | None = None

    @property
    def size(self) -> int:
        """The approximate size in memory, in bytes."""
        return 300 + len(self.text) + sum(200 + 120 * len(score.top) for score in self.scores)


@dataclass
class PreparedRequest:
    """A request with its sampler, its tokenizer and its prompts as tokens."""

    request: Completion | ChatCompletion
    sampler: SamplingSession
    tokenizer: ModelTokenizer
    prompts: list[list[int]]
    engine_request: SampleRequest
    completion_tokens: int = 0
    most_scores: int = 0

    @property
    def is_scored(self) -> bool:
        return self.request.alternatives is not None

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
    job = PreparedRequest(request, sampler, tokenizer, prompts, engine_request(request))
    if job.is_scored:
        await _check_scores(service, job)
    return job


async def _check_scores(service: Service, job: PreparedRequest) -> None:
    """Raise UserError for an answer with too many logprobs; without logprobs it is only text."""
    request, most, prompts = job.request, job.engine_request.max_tokens, job.prompts
    if most is None:
        base_model = job.sampler.row.base_model
        async with service.engines.using(base_model) as engine:
            most = engine.info.context_length
    tokens = len(prompts) * request.n * most
    if request.echo:
        tokens += request.n * sum(map(len, prompts))
    alternatives = request.alternatives or 0
    job.most_scores = scores = tokens * (1 + alternatives)
    if scores > MAX_SCORES:
        raise UserError(
            f"This request may report {scores:,} logprobs ({len(prompts)} prompts, n={request.n}, "
            f"up to {most} tokens each, {1 + alternatives} logprobs for each token), and an answer "
            f"has at most {MAX_SCORES:,}. Lower max_tokens, n or the number of logprobs, or send "
            "fewer prompts at once."
        )


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
    max_tokens = request.max_tokens
    if isinstance(request, ChatCompletion):
        max_tokens = request.max_completion_tokens or max_tokens
    scores_prompt = request.echo and request.alternatives is not None
    top = request.alternatives or 0
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


async def sample_whole(service: Service, job: PreparedRequest) -> list[SampleResult]:
    """Sample every prompt; if one fails, the others are cancelled."""
    samples = [asyncio.create_task(_sample(service, job, prompt)) for prompt in job.prompts]
    try:
        return await asyncio.gather(*samples)
    finally:
        for sample in samples:
            sample.cancel()


def whole_pieces(job: PreparedRequest, results: Sequence[SampleResult]) -> Iterator[Piece]:
    """Return the whole text of every choice."""
    for index, result in enumerate(results):
        for number, sequence in enumerate(result.sequences, index * job.request.n):
            yield from _Choice(job, number).finish(sequence, result)


async def stream_pieces(service: Service, job: PreparedRequest) -> AsyncIterator[Piece]:
    """Yield the text of every choice as it is sampled."""
    unread = _UnreadPieces(service.unsent, job.sampler.tenant)
    samples = [
        asyncio.create_task(_stream(service, job, index, unread))
        for index in range(len(job.prompts))
    ]
    try:
        for _ in samples:
            while (piece := await unread.get()) is not None:
                yield piece
    finally:
        unread.fail(ApiError(499, "The stream has ended."))  # for samples still in progress
        for sample in samples:
            sample.cancel()


class _UnreadPieces:
    """The pieces of one stream that its client has not read.

    All streams together have a bound, of which one user can use only a part. A stream that exceeds
    it ends with an error: waiting for its reader would delay other requests in the engine.
    """

    def __init__(self, unsent: Share, user: str) -> None:
        self._unsent = unsent
        self._user = user
        self._pieces = asyncio.Queue[Piece | None]()
        self._error: Exception | None = None

    def put(self, piece: Piece | None) -> None:
        """Add a piece, or None after the last one of a prompt. Raises ApiError 429."""
        if self._error is None and not self._unsent.has_room(self._user):
            self.fail(ApiError(429, _UNREAD))
        if self._error is not None:
            raise self._error
        if piece is not None:
            self._unsent.add(self._user, piece.size)
        self._pieces.put_nowait(piece)

    def fail(self, error: Exception) -> None:
        """End the stream with an error, and drop the unread pieces."""
        while not self._pieces.empty():
            self._read(self._pieces.get_nowait())
        self._error = error
        self._pieces.put_nowait(None)

    async def get(self) -> Piece | None:
        """Return the next piece. Raises what the stream failed with."""
        piece = await self._pieces.get()
        if self._error is not None:
            raise self._error
        self._read(piece)
        return piece

    def _read(self, piece: Piece | None) -> None:
        if piece is not None:
            self._unsent.add(self._user, -piece.size)


async def _sample(
    service: Service, job: PreparedRequest, prompt: list[int], on_tokens: OnTokens | None = None
) -> SampleResult:
    request = dataclasses.replace(job.engine_request, prompt=np.array(prompt, np.int64))
    return await service.samplers.sample(job.sampler, request, on_tokens)


async def _stream(
    service: Service, job: PreparedRequest, index: int, unread: _UnreadPieces
) -> None:
    """Sample the choices of one prompt."""
    n = job.request.n
    choices = [_Choice(job, number) for number in range(index * n, index * n + n)]

    def tell(tokens: list[SampledToken]) -> None:
        for token in tokens:
            top = [(other, max(logprob, _LOWEST)) for other, logprob in token.top]
            score = TokenScore(token.token, max(token.logprob, _LOWEST), top)
            if (piece := choices[token.sequence].feed([score])) is not None:
                unread.put(piece)

    try:
        result = await _sample(service, job, job.prompts[index], tell)
        ended = list(zip(choices, result.sequences, strict=True))
        rest = await asyncio.to_thread(lambda: [p for c, s in ended for p in c.finish(s, result)])
        for piece in [*rest, None]:
            unread.put(piece)
    except Exception as error:
        unread.fail(error)


class _Choice:
    """One choice in progress: converts its tokens to pieces of text."""

    def __init__(self, job: PreparedRequest, number: int) -> None:
        self.number = number
        self.prompt = job.prompts[number // job.request.n]
        self._job = job
        self._stream = TextStream(job.tokenizer, job.request.stops(), self.prompt)
        self._fed = 0

    def feed(self, scores: list[TokenScore]) -> Piece | None:
        """Add tokens; return what is certain now."""
        self._fed += len(scores)
        parts = [self._stream.feed(score) for score in scores]
        text = "".join(text for text, _ in parts)
        given = [score for _, given in parts for score in given]
        return self._piece(text, given) if text or given else None

    def _piece(self, text: str, scores: list[TokenScore], reason: str | None = None) -> Piece:
        return Piece(self.number, text, scores if self._job.is_scored else [], reason)

    def finish(self, sequence: SampledSequence, result: SampleResult) -> list[Piece]:
        """Return the prompt if it is echoed, the tokens that were not streamed, and the end."""
        found = [self._echo(result)] if self._job.request.echo else []
        if self._job.request.max_tokens == 0:
            return [*found, Piece(self.number, "", [], "length")]
        self._job.completion_tokens += len(sequence.tokens)
        everything = _scores(sequence.tokens, sequence.logprobs, sequence.topk_logprobs)
        if (piece := self.feed(everything[self._fed :])) is not None:
            found.append(piece)
        text, scores = self._stream.finish()
        if sequence.stop_reason == "stop" and scores and scores[-1].token == sequence.tokens[-1]:
            scores = scores[:-1]  # the token that ended the answer has no text
        return [*found, self._piece(text, scores, sequence.stop_reason)]

    def _echo(self, result: SampleResult) -> Piece:
        stream, logprobs = TextStream(self._job.tokenizer), result.prompt_logprobs
        if logprobs is None:
            logprobs = np.full(len(self.prompt), np.nan, np.float32)
        scores = _scores(np.array(self.prompt), logprobs, result.topk_prompt_logprobs)
        parts = [*map(stream.feed, scores), stream.finish()]
        text = "".join(text for text, _ in parts)
        return self._piece(text, [score for _, given in parts for score in given])


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
