"""A service in the test's own process, reached without a network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from mint.service.admin.settings import Settings
from mint.service.api.app import create_app
from mint.service.service import Service

T = TypeVar("T")


@dataclass
class Local:
    """The service and a client of it."""

    service: Service
    http: httpx.AsyncClient

    async def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        if body is not None:
            options["json"] = body
        return await self.http.post(f"/api/v1{path}", **options)

    async def session(self, **options: Any) -> str:
        answer = await self.post("/create_session", {"tags": []}, **options)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["session_id"])


def with_service(home: Path, work: Callable[[Local], Awaitable[T]], **settings: Any) -> T:
    """Do some work with a service on this home folder."""

    async def run() -> T:
        service = Service(Settings(home=home, **settings))
        service.store.migrate()
        transport = httpx.ASGITransport(create_app(service), raise_app_exceptions=False)
        address = f"http://{settings.get('host', '127.0.0.1')}"
        async with httpx.AsyncClient(transport=transport, base_url=address) as http:
            try:
                return await work(Local(service, http))
            finally:
                await service.stop()

    return asyncio.run(run())
