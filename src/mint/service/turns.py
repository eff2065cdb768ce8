"""Limit how much work one turn of the event loop does."""

import asyncio
from collections import deque

PER_TURN = 32
"""The number of polls that begin, or are answered, in one turn: about 20 ms of work."""


class LoopTurns:
    """Spreads work over turns of the event loop, first come, first served.

    Thousands of polls that arrive or end at the same moment would otherwise all run in one turn,
    and a health check or a heartbeat would wait for the last of them.
    """

    def __init__(self, per_turn: int = PER_TURN) -> None:
        self._per_turn = per_turn
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Return at once if this turn has room, otherwise in a later turn."""
        if self._taken < self._per_turn and not self._waiting:
            self._count()
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        await place

    def _count(self) -> None:
        if self._taken == 0:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._taken += 1

    def _begin_turn(self) -> None:
        self._taken = 0
        while self._waiting and self._taken < self._per_turn:
            place = self._waiting.popleft()
            if not place.done():  # a cancelled one needs no turn
                place.set_result(None)
                self._count()
