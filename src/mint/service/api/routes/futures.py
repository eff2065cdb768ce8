"""Routes that return results of earlier requests."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from mint.service.api.pieces import PiecewiseResponse
from mint.service.api.routes.caller import JsonRoute, OneField, SampleCaller, TheService
from mint.service.futures import Future, ResultExpired
from mint.service.service import gone
from mint.service.wire import requests


class PollRoute(JsonRoute):
    """A route that thousands of clients may call at once: see :mod:`mint.service.turns`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_in_turn(request: Request) -> Response:
            await request.app.state.service.futures.turns.take()
            return await handle(request)

        return handle_in_turn


router = APIRouter(route_class=PollRoute)
WEIGHTS_HEADER = "X-Mint-Weights"
"""The header of a sample with the SHA-256 of the adapter it was drawn from."""
_CLONE_BLOCK = 10**9
"""The requests of a copy of a sampling client are numbered from its id times this."""


@router.post("/retrieve_future")
async def retrieve_future(
    service: TheService, caller: SampleCaller, request_id: OneField
) -> Response:
    """Wait for a result; 408 means that it is pending, and the client polls again."""
    future = await service.future(request_id, caller.user)
    try:
        answer = await future.wait(service.settings.long_poll_s)
    except ResultExpired:
        raise gone(future.request_id) from None
    await service.futures.turns.take()
    if answer is not None:
        service.futures.retrieved(future)
        headers = {WEIGHTS_HEADER: answer.digest} if answer.digest else None
        return PiecewiseResponse(answer.mapped or answer.body, answer.content_type, headers)
    pending = {"type": "try_again", "request_id": future.request_id, "queue_state": "active"}
    if (why := future.reason()) is not None:
        pending |= {"queue_state": why.state, "queue_state_reason": why.reason}
    return JSONResponse(pending, 408)


@router.post("/retrieve_futures")
async def retrieve_futures(
    service: TheService, caller: SampleCaller, body: requests.RetrieveFutures
) -> dict[str, Any]:
    """Wait for samples of a sampling session; return those finished since the cursor."""
    target = body.target
    await service.samplers.find(target.sampling_session_id, caller.user)
    for request_id in body.retrieved_request_ids:
        service.futures.forget(request_id, caller.user)
    limit = service.settings.long_poll_s
    finished = await service.futures.finished_since(
        target.sampling_session_id,
        body.prev_cursor,
        lambda future: (
            future.user == caller.user and _clone_number(future) == target.cloned_sampler_id
        ),
        limit if body.timeout is None else min(limit, body.timeout),
    )
    return {
        "completions": [_completion(future) for future in finished],
        "cursor": finished[-1].number if finished else body.prev_cursor,
    }


def _clone_number(future: Future) -> int:
    number = future.request_id.rpartition(":")[2]
    return int(number) // _CLONE_BLOCK if number.lstrip("-").isdigit() else 0


def _completion(future: Future) -> dict[str, Any]:
    if future.answer is None or future.answer.is_failure:
        return {"state": "failed", "request_id": future.request_id}
    return {
        "state": "finished",
        "request_id": future.request_id,
        "response_payload_uncompressed_size": future.size,
    }


@router.post("/cancel_future")
async def cancel_future(
    service: TheService, caller: SampleCaller, request_id: OneField
) -> dict[str, Any]:
    """Cancel a sample. Training operations cannot be cancelled."""
    future = await service.future(request_id, caller.user)
    return {"request_id": future.request_id, "cancelled": service.samplers.cancel(request_id)}
