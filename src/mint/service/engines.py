"""The engines of this service: one worker per base model, started on first use."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from mint.catalog import Catalog, ModelNotFound

from .engine_process import EngineProcess
from .errors import UserError
from .settings import Settings


class Engines:
    """Finds, starts, watches and restarts the workers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._catalog = Catalog(aliases=settings.aliases, cache=settings.cache)
        self._folders: dict[str, asyncio.Task[Path]] = {}
        self._engines: dict[Path, asyncio.Task[EngineProcess]] = {}

    def names(self) -> list[str]:
        """Model names known without asking the hub, those in use first."""
        used = [name for name, task in self._folders.items() if _succeeded(task)]
        return list(dict.fromkeys([*used, *self._settings.models, *self._catalog.names()]))

    async def locate(self, base_model: str) -> Path:
        """The folder of a base model. Raises UserError with every place that was tried."""
        task = self._folders.get(base_model)
        if task is None or (task.done() and not _succeeded(task)):
            task = asyncio.create_task(asyncio.to_thread(self._catalog.locate, base_model))
            self._folders[base_model] = task
        try:
            return await asyncio.shield(task)
        except ModelNotFound as error:
            self._folders.pop(base_model, None)
            raise UserError(str(error)) from error

    async def get(self, base_model: str) -> EngineProcess:
        """The running engine of a base model; starts it, or starts it again."""
        folder = await self.locate(base_model)
        task = self._engines.get(folder)
        if task is None or (task.done() and not (_succeeded(task) and task.result().is_alive)):
            start = EngineProcess.start(
                base_model, folder, self._log_of(base_model), self._settings.load_limit_s
            )
            task = self._engines[folder] = asyncio.create_task(start)
        return await asyncio.shield(task)

    def running(self, base_model: str) -> EngineProcess | None:
        """The engine of a base model if it is up now."""
        located = self._folders.get(base_model)
        if located is None or not _succeeded(located):
            return None
        task = self._engines.get(located.result())
        if task is None or not _succeeded(task) or not task.result().is_alive:
            return None
        return task.result()

    def end_stuck(self) -> None:
        """End every engine that has left its calls without an answer for too long."""
        for task in self._engines.values():
            if _succeeded(task) and task.result().silent_s > self._settings.stuck_after_s:
                task.result().kill()

    async def stop(self) -> None:
        """End every worker."""
        for task in self._engines.values():
            if not task.done():
                task.cancel()
        await asyncio.gather(*self._engines.values(), return_exceptions=True)
        await asyncio.gather(*(t.result().stop() for t in self._engines.values() if _succeeded(t)))

    def _log_of(self, base_model: str) -> Path:
        safe = re.sub(r"[^A-Za-z0-9._-]+", "--", base_model).strip("-.")
        return self._settings.logs / f"engine-{safe[-100:]}.log"


def _succeeded(task: asyncio.Task[Path] | asyncio.Task[EngineProcess]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
