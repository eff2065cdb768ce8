"""``serve``: run the service until it is stopped or its parent exits."""

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import uvicorn
from fastapi import FastAPI

from mint.service.admin import logs
from mint.service.admin.settings import Settings
from mint.service.api.app import create_app
from mint.service.api.limits import timed_protocol

from .errors import EngineDied, UserError
from .service import Service

__all__ = ["Settings", "serve"]
log = logging.getLogger(__name__)
_BACKLOG = 4096
_PARENT_POLL_S = 0.5
_GRACE_S = 5


def serve(settings: Settings) -> None:
    """Run the service; returns after SIGTERM, SIGINT or the end of the parent process.

    Prints ``mint is ready at http://…`` on standard output once requests are answered, and then
    one line for each model that it loaded.
    """
    os.umask(0o077)  # only the user of the service may read its files
    logs.configure(settings)
    _raise_file_limit()
    service = Service(settings)
    service.store.migrate()
    service.auth.check_start()
    sock = _bind(settings)
    app = create_app(service)
    config = uvicorn.Config(
        app,
        http=timed_protocol(settings.request_limit_s),
        log_config=None,
        access_log=False,
        lifespan="on",
        backlog=_BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_GRACE_S,
        ssl_certfile=settings.tls_certificate if settings.uses_tls else None,
        ssl_keyfile=settings.tls_key if settings.uses_tls else None,
    )
    try:
        config.load()
    except OSError as error:  # also of the ssl module
        raise SystemExit(
            f"mint serve: the certificate {settings.tls_certificate} cannot be used: {error}. "
            "tls_certificate and tls_key must be PEM files that belong together."
        ) from None
    server = _Server(config, service, sock)
    app.router.lifespan_context = server.lifespan_of_app
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[sock])
    if server.failure is not None:
        raise SystemExit(f"mint serve: {server.failure}")


class _Server(uvicorn.Server):
    """uvicorn's server, which also starts and stops the service."""

    def __init__(self, config: uvicorn.Config, service: Service, sock: socket.socket) -> None:
        super().__init__(config)
        self._service = service
        self._sock = sock
        self._tasks: list[asyncio.Task[None]] = []
        self.failure: str | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to shut down. An embedded service ignores SIGTERM, which Slurm and systemd send to
        all processes: its script needs it to save a checkpoint, and ends it by SIGINT."""
        if self._service.settings.parent_pid is None:
            super().handle_exit(sig, frame)
        elif sig == signal.SIGINT:  # then uvicorn ends it at once, without joining threads
            super().handle_exit(signal.SIGTERM, frame)

    @contextlib.asynccontextmanager
    async def lifespan_of_app(self, _: FastAPI) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(32, thread_name_prefix="mint"))
        self._service.start()
        self._tasks.append(asyncio.create_task(self._watch_parent()))
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await self._service.stop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._tasks.append(asyncio.create_task(self._get_ready()))

    async def _get_ready(self) -> None:
        """Load the models, while health checks are already answered; then print the address."""
        try:
            await self._service.preload()
        except Exception as error:
            self.failure = str(error)
            if not isinstance(error, UserError | EngineDied):
                log.exception("the service cannot start")
            self.should_exit = True
            return
        url = self._service.settings.url(*self._sock.getsockname()[:2])
        loaded = self._service.engines.loaded()
        plans = [f"mint: {engine.plan}" for engine in loaded if engine.plan is not None]
        # one write, because many programs read only the first line
        print("\n".join([f"mint is ready at {url}", *plans]), flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.futures.close()
        await super().shutdown(sockets)

    async def _watch_parent(self) -> None:
        parent = self._service.settings.parent_pid
        while parent is not None and os.getppid() == parent:
            await asyncio.sleep(_PARENT_POLL_S)
        if parent is not None:
            log.info("the parent process %d has exited; shutting down", parent)
            self.should_exit = True


def _bind(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio disables Nagle's delay (40 ms per answer) only on sockets that are declared as TCP
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((settings.host, settings.port))
    except OSError as error:
        raise SystemExit(
            f"mint serve: cannot listen on {settings.host}:{settings.port}: {error.strerror}. "
            "Choose another port with --port (0 takes any free one), or address with --host."
        ) from None
    return sock


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
