"""Watch the connection to the service, so that nothing waits for it without a limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

import mint
from mint.embedded import embedded_service_ended
from mint.rl.runtime.threads import to_thread

_EVERY = 5.0  # seconds between two polls of the service
_OWN_EVERY = 0.25  # seconds between two checks whether this process's own service has ended
_HEALTH = "/api/v1/healthz"
TRUST_IT = "If it is the right service, set SSL_CERT_FILE to the file of its issuer's certificate."


class NoAnswer(ConnectionError):
    """The service has been silent for too long."""


class Ended(NoAnswer):
    """The service that this process started has exited and will not answer."""


class ServiceMonitor:
    """Polls the service while something waits for it.

    The client retries a request that times out indefinitely. Here a service that does not respond
    is reported at once, and has ``patience`` seconds to return; it has then kept all requests, and
    nothing is lost.
    """

    def __init__(self, service: mint.ServiceClient, patience: float) -> None:
        assert service._base_url is not None
        self.url = service._base_url.rstrip("/")
        self.patience = patience
        self._silent_since: float | None = None

    async def reach(self) -> None:
        """Wait for the first answer."""
        async with httpx.AsyncClient() as http:
            while not await self._look(http):
                await self._pause()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Cancel the work in this context and raise :class:`NoAnswer` if the service is gone."""
        task = asyncio.current_task()
        assert task is not None
        watch = asyncio.ensure_future(self._watch(task))
        try:
            yield
        except asyncio.CancelledError:
            if watch.done():
                watch.result()
            raise
        finally:
            watch.cancel()

    async def _watch(self, task: asyncio.Task[Any]) -> None:
        watch = asyncio.current_task()
        assert watch is not None
        try:
            async with httpx.AsyncClient() as http:
                while not watch.cancelling():  # a timeout in httpx may swallow a cancellation
                    await self._pause()
                    await self._look(http)
        except NoAnswer:
            task.cancel()
            raise

    async def _look(self, http: httpx.AsyncClient) -> bool:
        """Poll; report the first failure, and raise when ``patience`` is exhausted."""
        now = time.monotonic()
        try:
            answer = await http.get(self.url + _HEALTH, timeout=min(2 * _EVERY, self.patience))
            if answer.is_server_error:  # a proxy in front of a service that is gone
                answer.raise_for_status()
        except (httpx.TransportError, httpx.HTTPStatusError) as error:
            if "CERTIFICATE" in str(error):
                raise NoAnswer(f"{self.url} is not trusted: {error}. {TRUST_IT}") from None
            if self._silent_since is None:
                self._silent_since = now
                waiting = f"Waiting up to {self.patience:g} s."
                print(f"The service at {self.url} is not responding. {waiting}", flush=True)
            if time.monotonic() - self._silent_since >= self.patience:
                raise NoAnswer(
                    f"The service at {self.url} has not responded for {self.patience:g} s."
                ) from None
            return False
        if self._silent_since is not None:
            self._silent_since = None
            print(f"The service at {self.url} is back.", flush=True)
        return True

    async def _pause(self) -> None:
        until = time.monotonic() + min(_EVERY, self.patience / 4)
        while (left := until - time.monotonic()) > 0:
            if embedded_service_ended(self.url):
                raise Ended(f"The embedded service at {self.url} has exited.")
            await asyncio.sleep(min(left, _OWN_EVERY))


async def connect(service: mint.ServiceClient) -> None:
    """Open a session in a thread: the client blocks until it is open."""
    await to_thread(lambda: service.holder)
    await to_thread(service.create_rest_client)
