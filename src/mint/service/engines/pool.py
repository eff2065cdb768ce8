"""The engines of this service: one worker per base model, loaded on first use.

An engine that is idle for a while is unloaded. With a memory budget, the least recently used idle
engine is unloaded to make room for another; an engine in use never is.
"""

import asyncio
import logging
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from mint.catalog import Catalog, ModelNotFound
from mint.engine.messages import EngineOptions
from mint.service.admin.settings import Settings
from mint.service.engines.process import GB, EngineProcess
from mint.service.errors import EXPLAINED, ApiError, EngineDied, UserError

log = logging.getLogger(__name__)
_PROCESS_BYTES = GB * 2 // 5
"""The memory of a worker besides its weights, until it can be measured."""
MAX_DEATHS = 3
"""How often a worker may die during one operation or sample before it is not retried."""
MAX_LOOK_UPS = 32
"""How many model names are looked up at once; each may wait for the hub."""


@dataclass(eq=False)
class Slot:
    """One base model that is loaded, loading or being unloaded."""

    name: str
    weights_bytes: int
    starting: asyncio.Task[EngineProcess]
    granted_bytes: int | None = None
    users: int = 0
    used_at: float = field(default_factory=time.monotonic)
    ending: asyncio.Task[None] | None = None

    @property
    def engine(self) -> EngineProcess | None:
        """The engine, while it is running."""
        task = self.starting
        if not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result() if task.result().is_alive else None

    @property
    def is_over(self) -> bool:
        """Whether the engine failed to start, or has died."""
        return self.starting.done() and self.engine is None

    @property
    def is_idle(self) -> bool:
        return self.users == 0 and self.ending is None and self.starting.done()

    @property
    def size(self) -> int:
        """The bytes it uses of its device, or may use once it is running."""
        if self.engine is None:
            return max(self.weights_bytes + _PROCESS_BYTES, self.granted_bytes or 0)
        plan = self.engine.info.plan
        if plan is not None and plan.device != "cpu":
            return plan.device_bytes
        return max(self.engine.resident_bytes, self.weights_bytes)


class Engines:
    """Locates base models, and starts, shares, watches and stops their workers."""

    def __init__(
        self, settings: Settings, before_unload: Callable[[EngineProcess], Awaitable[None]]
    ) -> None:
        self._settings = settings
        self._before_unload = before_unload
        self._catalog = Catalog(
            aliases=settings.aliases, cache=settings.cache, local_paths=settings.is_loopback
        )
        self._folders: dict[str, Path] = {}
        self._looking_up: dict[str, asyncio.Task[Path]] = {}
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="mint-catalog")
        self._slots: dict[Path, Slot] = {}
        self._changed = asyncio.Condition()
        self._suspects: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._not_yet_loaded = set(settings.models)

    def names(self) -> list[str]:
        """Return the model names that are known without the hub, those in use first."""
        names = [*self._folders, *self._settings.models, *self._catalog.names()]
        return list(dict.fromkeys(names))

    async def locate(self, base_model: str) -> Path:
        """Return the folder of a base model. Raises UserError with every place that was tried."""
        if base_model in self._folders:
            return self._folders[base_model]
        if base_model not in self._looking_up:
            if len(self._looking_up) >= MAX_LOOK_UPS:
                raise ApiError(429, "Too many model lookups are in progress. Try again later.")
            self._looking_up[base_model] = asyncio.create_task(self._look_up(base_model))
        try:
            return await asyncio.shield(self._looking_up[base_model])
        except ModelNotFound as error:
            raise UserError(str(error)) from error

    async def _look_up(self, base_model: str) -> Path:
        """Find a model's folder in a separate thread pool, as the hub may take long to answer."""
        loop, find = asyncio.get_running_loop(), self._catalog.locate
        try:
            folder = await loop.run_in_executor(self._threads, find, base_model)
            return self._folders.setdefault(base_model, folder)
        finally:
            del self._looking_up[base_model]

    @asynccontextmanager
    async def using(self, base_model: str) -> AsyncIterator[EngineProcess]:
        """Provide the engine of a base model, started if needed; it stays loaded while in use."""
        slot = await self._slot(base_model)
        slot.users += 1
        try:
            yield await asyncio.shield(slot.starting)
        finally:
            slot.users -= 1
            slot.used_at = time.monotonic()
            await self._tell_waiters()

    def alone(self, base_model: str, is_suspect: bool) -> AbstractAsyncContextManager[None]:
        """Return a context for retrying work during which a worker died. Only one caller enters
        it at a time, so that only the one that kills workers fails."""
        return self._suspects[base_model] if is_suspect else nullcontext()

    async def get(self, base_model: str) -> EngineProcess:
        """Load a base model, if it is not loaded. It may be unloaded again when it is idle."""
        async with self.using(base_model) as engine:
            return engine

    def running(self, base_model: str) -> EngineProcess | None:
        """Return the engine of a base model, if it is running."""
        folder = self._folders.get(base_model)
        slot = self._slots.get(folder) if folder is not None else None
        return slot.engine if slot is not None else None

    def loaded(self) -> list[EngineProcess]:
        """Return every running engine."""
        return [slot.engine for slot in self._slots.values() if slot.engine is not None]

    def why_waiting(self, base_model: str) -> str | None:
        """Return what a request for this model waits for; None if its engine is running."""
        if self.running(base_model) is not None:
            return None
        folder = self._folders.get(base_model)
        if folder is not None and folder not in self._slots:
            others = ", ".join(slot.name for slot in self._slots.values())
            return f"the base model {base_model} waits for memory that others use ({others})"
        return f"the base model {base_model} is loading"

    async def _slot(self, base_model: str) -> Slot:
        folder = await self.locate(base_model)
        while True:
            slot = self._slots.get(folder)
            if slot is not None and slot.ending is not None:
                await asyncio.shield(slot.ending)
            elif slot is not None and not slot.is_over:
                return slot
            else:
                self._slots.pop(folder, None)
                weights = await asyncio.to_thread(_weights_bytes, folder)
                await self._make_room(base_model, weights + _PROCESS_BYTES)
                if folder not in self._slots:
                    granted = self._grant(folder, weights + _PROCESS_BYTES)
                    starting = asyncio.create_task(self._start(base_model, folder, granted))
                    self._slots[folder] = Slot(base_model, weights, starting, granted)

    async def _start(self, base_model: str, folder: Path, granted: int | None) -> EngineProcess:
        """Start an engine and log its plan; `mint serve` prints those of the preloaded models."""
        memory_gb = None if granted is None else granted / GB
        options = EngineOptions(self._settings.precision, memory_gb)
        safe = re.sub(r"[^A-Za-z0-9._-]+", "--", base_model).strip("-.")
        log_file = self._settings.logs / f"engine-{safe[-100:]}.log"
        limit_s = self._settings.load_limit_s
        try:
            engine = await EngineProcess.start(base_model, folder, log_file, limit_s, options)
        finally:
            await self._tell_waiters()  # from now on its memory is measured, not estimated
        if base_model not in self._not_yet_loaded and engine.plan is not None:
            log.info("%s", engine.plan)
        self._not_yet_loaded.discard(base_model)
        return engine

    def _grant(self, folder: Path, needed: int) -> int | None:
        """Return the bytes that an engine may use of what the others leave; None means no limit."""
        if self._settings.memory_gb is None:
            return None
        left = int(self._settings.memory_gb * GB) - self._used_bytes()
        awaited = {self._folders[name] for name in self._not_yet_loaded & self._folders.keys()}
        others = awaited - self._slots.keys() - {folder}
        return share(left, needed, [_weights_bytes(other) + _PROCESS_BYTES for other in others])

    async def _make_room(self, base_model: str, needed: int) -> None:
        """Unload idle engines until a model fits; wait for engines in use, up to a limit."""
        if self._settings.memory_gb is None:
            return
        budget = int(self._settings.memory_gb * GB)
        if needed > budget:
            raise UserError(
                f"{base_model} needs about {needed / GB:.1f} GB, but this service may use only "
                f"{self._settings.memory_gb:g} GB for models. Raise memory_gb, or use a smaller "
                "model."
            )
        try:
            async with asyncio.timeout(self._settings.load_limit_s):
                while self._used_bytes() + needed > budget:
                    idle = [slot for slot in self._slots.values() if slot.is_idle]
                    if idle:
                        await self._unload(min(idle, key=lambda slot: slot.used_at))
                    else:
                        async with self._changed:
                            await self._changed.wait()
        except TimeoutError:
            busy = ", ".join(slot.name for slot in self._slots.values())
            raise EngineDied(
                f"{base_model} was not loaded: other models were using the "
                f"{self._settings.memory_gb:g} GB of memory the whole time ({busy}). Try "
                "again later."
            ) from None

    def _used_bytes(self) -> int:
        return sum(slot.size for slot in self._slots.values() if not slot.is_over)

    async def unload_idle(self) -> None:
        """Unload the engines that were idle for ``model_idle_s``."""
        cutoff = time.monotonic() - self._settings.model_idle_s
        for slot in list(self._slots.values()):
            if slot.is_idle and slot.used_at < cutoff and slot.name not in self._settings.models:
                await self._unload(slot)

    async def _unload(self, slot: Slot) -> None:
        slot.ending = asyncio.create_task(self._end(slot))
        await asyncio.shield(slot.ending)

    async def _end(self, slot: Slot) -> None:
        """Save what an engine holds and stop it. It is stopped also if it cannot be saved: the
        journals have what is needed to restore it."""
        try:
            if (engine := slot.engine) is not None:
                try:
                    await self._before_unload(engine)
                except Exception as error:
                    is_bug = not isinstance(error, (*EXPLAINED, RuntimeError))
                    log.warning("%s was not saved: %s", slot.name, error, exc_info=is_bug)
                finally:
                    await engine.stop()
                log.info("unloaded %s", slot.name)
        finally:
            self._slots = {f: s for f, s in self._slots.items() if s is not slot}
            await self._tell_waiters()

    async def _tell_waiters(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def end_stuck(self) -> None:
        """Kill every engine that has not answered any call for ``stuck_after_s``."""
        for engine in self.loaded():
            if engine.silent_s > self._settings.stuck_after_s:
                engine.kill()

    async def stop(self) -> None:
        """Stop every worker."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        starting = [slot.starting for slot in self._slots.values()]
        for task in starting:
            task.cancel()  # if it is not done
        started = await asyncio.gather(*starting, return_exceptions=True)
        await asyncio.gather(*(one.stop() for one in started if isinstance(one, EngineProcess)))


def share(left: int, needed: int, others: Sequence[int]) -> int:
    """Return one engine's share of the free memory: what it needs and an even part of the rest.

    >>> share(100, needed=10, others=[]), share(100, needed=10, others=[50])
    (100, 30)
    """
    rest = left - needed - sum(others)
    return needed + max(rest, 0) // (1 + len(others))


def _weights_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
