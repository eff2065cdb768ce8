"""Where clients come back for results."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from .. import requests
from .caller import TheService, User

router = APIRouter()


@router.post("/retrieve_future")
async def retrieve_future(
    service: TheService, user: User, body: requests.RetrieveFuture
) -> Response:
    """Wait for a result; 408 says it is not there yet and the client should ask again."""
    future = await service.future(body.request_id, user)
    answer = await future.wait(service.settings.long_poll_s)
    if answer is not None:
        service.futures.retrieved(future)
        return Response(answer.body, media_type=answer.content_type)
    pending: dict[str, Any] = {
        "type": "try_again",
        "request_id": future.request_id,
        "queue_state": "active",
    }
    if (reason := future.reason()) is not None:
        pending |= {"queue_state": "paused_capacity", "queue_state_reason": reason}
    return JSONResponse(pending, 408)
