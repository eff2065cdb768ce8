"""The service: creates its parts, starts and stops them, and does the housekeeping."""

import asyncio
import logging
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

from mint.service.access.usage import SAVE_EVERY_S
from mint.service.admin.settings import Settings
from mint.service.checkpoints.links import Links
from mint.service.checkpoints.retention import Rule, find_old
from mint.service.checkpoints.transfers import INTERPOLATION, Transfers
from mint.service.engines.process import EngineProcess
from mint.service.runs.disk_space import why_paused
from mint.service.runs.registry import Runs
from mint.service.sampling.samplers import Samplers
from mint.service.store.database import CheckpointRow, Condition, now

from .errors import ApiError, not_found
from .files import delete_leftovers, free_bytes, require_writable, shorten_logs
from .futures import Future
from .idleness import Idleness
from .results import Share
from .shared_components import SharedComponents

log = logging.getLogger(__name__)
HOUSEKEEPING_S = 10.0
MAX_UNSENT_BYTES = 256 * 1024 * 1024
"""How much of the answers and streams of the OpenAI API may wait for their clients."""
_KEPT = "results are kept for a while and up to a size (result_kept_s, max_result_bytes)."
_RUN_REQUEST = re.compile(r"(?P<id>[^:]+:train:\d+):(?P<number>-?\d{1,18})")
_SAMPLE_REQUEST = re.compile(r"(?P<id>[^:]+:sample:\d+):(?P<number>[0-9a-f-]+)")


class Service(SharedComponents):
    """Everything behind the HTTP routes."""

    def __init__(self, settings: Settings) -> None:
        require_writable(settings.home)
        super().__init__(settings, before_unload=self._save_what_is_in)
        self.samplers = Samplers(self, lambda run_id, user: self.runs.restore(run_id, user))
        self.idleness = Idleness(settings.home / "idle.json")
        self.runs = Runs(self, self.samplers)
        self.transfers = Transfers(self)
        self.links = Links(self.auth.secret, settings.link_kept_s)
        self.unsent = Share(MAX_UNSENT_BYTES)
        self.encoding = asyncio.Semaphore(2)  # large answers of the OpenAI API
        self.encoding_of = defaultdict[str, asyncio.Lock](asyncio.Lock)
        self.is_ready = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start housekeeping."""
        settings = self.settings
        limits = (settings.session_idle_s, settings.model_idle_s, settings.stuck_after_s)
        round_s = max(min(HOUSEKEEPING_S, *(limit / 2 for limit in limits)), 0.05)
        self._tasks = [
            asyncio.create_task(asyncio.to_thread(delete_leftovers, self.settings.home)),
            asyncio.create_task(_try(partial(asyncio.to_thread, self.checkpoints.finish_changes))),
            asyncio.create_task(_every(round_s, self.tidy)),
            # separate from other housekeeping, which may wait for a stuck engine
            asyncio.create_task(_every(round_s, self.engines.end_stuck)),
            asyncio.create_task(_every(SAVE_EVERY_S, self.usage.save)),
        ]

    async def preload(self) -> None:
        """Load the models of the settings; then the service is ready.

        The service of a script loads each when it is first used: its start has a limit.
        """
        names = self.settings.models if self.settings.parent_pid is None else ()
        for name in names:
            await self.engines.locate(name)
        await asyncio.gather(*(self.engines.get(name) for name in names))
        self.is_ready = True

    def why_paused(self) -> str | None:
        """Return why training is paused, if it is."""
        free, reserve = free_bytes(self.settings.home), self.settings.disk_reserve_bytes
        return why_paused(free, reserve) if free < reserve else next(iter(self.runs.paused), None)

    async def stop(self) -> None:
        """Stop the engines, and save what is only in memory."""
        for task in self._tasks:
            task.cancel()
        self.futures.close()
        await self.runs.close()
        await self.engines.stop()
        self.decoder.close()
        self.transfers.close()
        await self.store.save_uses()
        await self.usage.save()
        self.store.close()

    async def future(self, request_id: str, user: str) -> Future:
        """Return the future of a request, also after a restart. Raises ApiError 404 or 410."""
        if (future := self.futures.find(request_id, user)) is not None:
            if future.answer is None and (match := _RUN_REQUEST.fullmatch(request_id)):
                await self.runs.resume_if_due(match["id"], user, match["number"] != "0")
            return future
        if match := _RUN_REQUEST.fullmatch(request_id):
            run = await self.runs.find(match["id"], user)
            if (future := self.futures.find(request_id, user)) is not None:
                return future
            if run.was_taken(int(match["number"])):
                raise ApiError(
                    410,
                    f"The operation {request_id} was carried out, but its result is no longer "
                    f"kept: {_KEPT} Do not send it again; continue with the next operation.",
                )
        elif match := _SAMPLE_REQUEST.fullmatch(request_id):
            await self.samplers.find(match["id"], user)
            raise gone(request_id)
        elif request_id.startswith(INTERPOLATION):
            raise gone(request_id)
        raise not_found("request", request_id, "Send the request that creates it.")

    def old_checkpoints(self, rule: Rule, *conditions: Condition) -> list[CheckpointRow]:
        """Return the checkpoints that a retention rule deletes; those in use are kept."""
        in_use = self.runs.open_runs(), self.samplers.open_paths()
        return find_old(self.store, rule, conditions, self.settings.session_idle_s, *in_use)

    def _delete_due(self) -> None:
        """Delete checkpoints that have expired, or that the configured retention rule deletes.

        Each must have been due for ``expired_kept_s`` of service time, so that a wrong clock
        deletes nothing. Until then an expired one is hidden; correcting the clock restores it.
        """
        settings = self.settings
        due = {"expired": self.store.expired_checkpoints()}
        if (age := settings.retention_older_than_s) is not None:
            rule = Rule(age, settings.retention_keep_last, settings.retention_keep)
            due["old"] = self.old_checkpoints(rule)
        for kind, rows in due.items():
            listed = {str(row.id): row for row in rows}
            marks = {name: f"{row.created_at} {row.expires_at}" for name, row in listed.items()}
            for name in self.idleness.due(kind, marks, self.settings.expired_kept_s):
                self.checkpoints.delete(listed[name])

    def _delete_silent_sessions(self) -> None:
        """Delete the samplers of sessions that were silent for ``run_kept_s``, and those sessions.

        A session that has runs stays; its samplers stay while the state of one of them does. As for
        checkpoints, a clock that jumps and is corrected deletes nothing.
        """
        silent = self.store.forgotten_sessions(now() - timedelta(seconds=self.settings.run_kept_s))
        kept = self.runs.sessions_with_state()
        marks = {row.id: str(row.last_seen) for row in silent if row.id not in kept}
        for session_id in self.idleness.due("session", marks, self.settings.expired_kept_s):
            self.store.delete_session(session_id)

    async def _save_what_is_in(self, engine: EngineProcess) -> None:
        """Save the state of an engine that is about to be unloaded."""
        await self.runs.prepare_to_leave(engine)
        await self.samplers.keep(engine)

    async def tidy(self) -> None:
        """Save heartbeats, release silent sessions, drop old results, delete what has expired.

        A step that fails is logged and tried again in the next round; the others are done.
        """
        kept_s, idleness = self.settings.run_kept_s, self.idleness
        self.futures.forget_old()
        for step in (
            self.store.save_uses,
            self.engines.unload_idle,
            self._release_silent_sessions,
            partial(self.samplers.release_named, self.settings.session_idle_s),
            partial(asyncio.to_thread, self._delete_due),
            partial(asyncio.to_thread, self._delete_silent_sessions),
            partial(asyncio.to_thread, self.runs.delete_forgotten, idleness),
            partial(asyncio.to_thread, shorten_logs, self.settings.logs),
            partial(asyncio.to_thread, self.samplers.evicted.delete_unused, kept_s, idleness),
            partial(asyncio.to_thread, idleness.save),
        ):
            await _try(step)

    async def _release_silent_sessions(self) -> None:
        for session_id in self.sessions.idle(self.settings.session_idle_s):
            if self.samplers.is_sampling(session_id):
                continue
            if await self.runs.release_session(session_id):
                await self.samplers.release_session(session_id)
                self.sessions.forget(session_id)
                log.info("released session %s", session_id)


async def _every(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    """Run some work periodically; a failure is logged, and the next round tries again."""
    while True:
        await asyncio.sleep(seconds)
        await _try(work)


async def _try(work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except Exception:
        log.exception("housekeeping failed and will be retried")


def gone(request_id: str) -> ApiError:
    """Return the error for a sample whose result is no longer kept."""
    return ApiError(
        410, f"The result of {request_id} is no longer kept: {_KEPT} Send the request again."
    )
