"""The OpenAI API: models, completions, chat completions."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from mint.engine.messages import SampleResult
from mint.service.api.failures import describe_failure
from mint.service.api.openai.answers import ChatForm, CompletionForm, Form
from mint.service.api.openai.inference import (
    Piece,
    find_model,
    prepare,
    sample_whole,
    stream_pieces,
    whole_pieces,
)
from mint.service.api.openai.requests import ChatCompletion, Completion
from mint.service.api.pieces import PiecewiseResponse
from mint.service.api.routes.caller import JsonRoute, ReadCaller, SampleCaller, TheService
from mint.service.checkpoints.storage import SAMPLER, unexpired
from mint.service.errors import ApiError
from mint.service.results import Share
from mint.service.service import Service
from mint.service.store.database import CheckpointRow

T = TypeVar("T")
_MOST_CHECKPOINTS = 1000
_CLIENT_GONE = 499
_LARGE = 2**14
"""Answers with more logprobs are encoded two at a time, one of each user."""
_KINDS = {429: "rate_limit_error"}
_CODES = {401: "invalid_api_key", 403: "insufficient_scope", 404: "model_not_found"}


class OpenAIRoute(JsonRoute):
    """A route whose errors have the format that OpenAI clients expect."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_with_errors(request: Request) -> Response:
            try:
                return await handle(request)
            except Exception as error:
                status, body = _error(error, request)
                return JSONResponse(body, status)

        return handle_with_errors


router = APIRouter(route_class=OpenAIRoute, tags=["openai"])


def _error(error: Exception, request: Request) -> tuple[int, dict[str, Any]]:
    """Return the status and body for a failure."""
    status, text = describe_failure(error, request)
    kind = "server_error" if status >= 500 else _KINDS.get(status, "invalid_request_error")
    param = "model" if status == 404 else None
    if isinstance(error, RequestValidationError):
        status, param = 400, ".".join(str(part) for part in error.errors()[0]["loc"][1:]) or None
    body = {"message": text, "type": kind, "param": param, "code": _CODES.get(status)}
    return status, {"error": body}


@router.get("/models")
async def list_models(service: TheService, caller: ReadCaller) -> dict[str, Any]:
    """List the base models of this service and the caller's sampler checkpoints."""
    samplers = (CheckpointRow.kind == SAMPLER, unexpired())
    rows, _ = await asyncio.to_thread(
        service.store.page, CheckpointRow, caller.user, _MOST_CHECKPOINTS, 0, *samplers
    )
    listed = [_model(name, "mint") for name in service.engines.names()]
    listed += [_model(row.uri, row.user, int(row.created_at.timestamp())) for row in rows]
    return {"object": "list", "data": listed}


@router.get("/models/{name:path}")
async def get_model(service: TheService, caller: ReadCaller, name: str) -> dict[str, Any]:
    sampler = await find_model(service, caller, name)
    return _model(name, sampler.row.user or "mint")


def _model(name: str, owner: str, created: int = 0) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": owner}


@router.post("/completions")
async def completions(
    service: TheService, caller: SampleCaller, body: Completion, request: Request
) -> Response:
    job = await prepare(service, caller, body)
    return await _answer(service, CompletionForm(job), request)


@router.post("/chat/completions")
async def chat_completions(
    service: TheService, caller: SampleCaller, body: ChatCompletion, request: Request
) -> Response:
    job = await prepare(service, caller, body)
    return await _answer(service, ChatForm(job), request)


async def _answer(service: Service, form: Form, request: Request) -> Response:
    user = form.job.sampler.tenant
    _require_room(service, user)
    if not form.job.request.stream:
        results = await _while_awaited(request, sample_whole(service, form.job))
        if form.job.most_scores < _LARGE:
            body = await asyncio.to_thread(_encode, form, results)
        else:
            async with service.encoding_of[user], service.encoding:
                body = await asyncio.to_thread(_encode, form, results)
        _require_room(service, user)
        return _CountedResponse(body, service.unsent, user)
    # an invalid request fails before its first piece, and gets an error status
    found = stream_pieces(service, form.job)
    first = await _while_awaited(request, anext(found))
    events = _events(form, first, found, request)
    return StreamingResponse(events, media_type="text/event-stream")


def _require_room(service: Service, user: str) -> None:
    if not service.unsent.has_room(user):
        raise ApiError(429, "This user's clients have too many unread answers; retry.")


def _encode(form: Form, results: list[SampleResult]) -> bytes:
    return to_json(form.whole(whole_pieces(form.job, results)))


class _CountedResponse(PiecewiseResponse):
    """An answer that is counted until its client has read it."""

    def __init__(self, body: bytes, unsent: Share, user: str) -> None:
        super().__init__(body, "application/json")
        unsent.add(user, len(body))
        self._uncount = partial(unsent.add, user, -len(body))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._uncount()


async def _while_awaited(request: Request, work: Awaitable[T]) -> T:
    """Return the result of some work; cancel it if the client disconnects."""
    task, gone = asyncio.ensure_future(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(_CLIENT_GONE, "The client disconnected before the response was ready.")
        return await task
    finally:
        task.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _events(
    form: Form, first: Piece, rest: AsyncIterator[Piece], request: Request
) -> AsyncIterator[str]:
    """Yield server-sent events: a chunk per piece, the usage if requested, and the end."""
    opened = set()
    piece: Piece | None = first
    try:
        while piece is not None:
            if piece.choice not in opened and (opening := form.opening(piece.choice)):
                opened.add(piece.choice)
                yield _event(opening)
            yield _event(form.chunk(piece))
            piece = await anext(rest, None)
        if form.job.request.stream_options.include_usage:
            yield _event(form.usage_chunk())
    except Exception as error:
        yield _event(_error(error, request)[1])
    yield "data: [DONE]\n\n"


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"
