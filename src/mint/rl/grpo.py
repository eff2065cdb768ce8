"""GRPO from the first prompt to the saved weights."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import mint
from mint.rl.config import RLConfig
from mint.rl.run import Run


def run_grpo(
    adapter: Any, cfg: RLConfig | None = None, *, service: mint.ServiceClient | None = None
) -> str:
    """Train on a task, and return the path of the trained weights.

    ``adapter`` is an :class:`mint.rl.RLAdapter` or an :class:`mint.rl.Environment`. Without ``cfg``
    the settings come from the environment; without ``service`` it is the one that
    ``mint.ServiceClient()`` finds. Called again after an interruption, it continues.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(adapter, cfg, service)
    return _in_a_thread(adapter, cfg, service)  # a notebook has a loop of its own


def _run(
    adapter: Any,
    cfg: RLConfig | None,
    service: mint.ServiceClient | None,
    begun: Callable[[Run], None] = lambda run: None,
) -> str:
    with Run(adapter, cfg, service) as run:
        begun(run)
        for step in run:
            batch = run.sample(step)
            datums = run.train(batch, run.prefer(batch))
            run.record(batch, datums)
        return run.finish()


def _in_a_thread(adapter: Any, cfg: RLConfig | None, service: mint.ServiceClient | None) -> str:
    runs: list[Run] = []
    end: Future[str] = Future()

    def work() -> None:
        try:
            end.set_result(_run(adapter, cfg, service, runs.append))
        except BaseException as error:
            end.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        return end.result()
    except KeyboardInterrupt:
        if end.done() or not runs:
            raise
        for run in runs:
            run.interrupt()
        return end.result()
