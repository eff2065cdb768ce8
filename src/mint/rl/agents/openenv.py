"""A client of OpenEnv servers, for environments whose own package is not installed."""

import asyncio
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

_LARGEST = 100 * 2**20  # bytes of one observation


class OpenEnvSocket:
    """Speaks OpenEnv's WebSocket protocol: one episode per connection (``POST /step`` has none).

    Needs the package ``websockets``. Every rollout has a connection of its own::

        OpenEnvEnvironment(lambda: OpenEnvSocket("http://127.0.0.1:8000"))
    """

    def __init__(self, url: str, timeout: float = 60.0) -> None:
        scheme, _, rest = url.rstrip("/").partition("://")
        self.url = f"{'wss' if scheme in ('https', 'wss') else 'ws'}://{rest}/ws"
        self._timeout = timeout
        self._socket: Any = None

    async def reset(self, **task: Any) -> Any:
        if self._socket is None:
            self._socket = await self._connect()
        return await self._ask("reset", task)

    async def step(self, action: Any) -> Any:
        """Carry out an action: a mapping with the fields of the environment's action."""
        return await self._ask("step", action)

    async def close(self) -> None:
        if self._socket is not None:
            socket, self._socket = self._socket, None
            await socket.close()

    async def _connect(self) -> Any:
        try:
            from websockets.asyncio.client import connect
        except ModuleNotFoundError as error:
            raise RuntimeError(
                "An OpenEnv server is reached over a WebSocket, which needs the package "
                "websockets. Type: pip install websockets"
            ) from error
        try:
            return await connect(self.url, open_timeout=self._timeout, max_size=_LARGEST)
        except OSError as error:
            raise RuntimeError(
                f"There is no OpenEnv server at {self.url}: {error}. Start it, or correct the URL."
            ) from error

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> Any:
        await self._socket.send(json.dumps({"type": kind, "data": dict(data)}))
        text = await asyncio.wait_for(self._socket.recv(), self._timeout)
        answer = json.loads(text)
        found = answer.get("data") or {}
        if answer.get("type") == "error":
            raise RuntimeError(
                f"The OpenEnv server rejected {kind}: {found.get('message', 'no reason given')} "
                f"(code {found.get('code', 'unknown')})."
            )
        done = bool(found.get("done"))
        return SimpleNamespace(
            observation=found.get("observation"), reward=found.get("reward"), done=done
        )
