"""GRPO from the first prompt to the saved weights."""

from __future__ import annotations

from typing import Any

import mint
from mint.rewards.reward import in_event_loop
from mint.rl.loop.run import Run
from mint.rl.runtime.interruption import Interruption
from mint.rl.runtime.threads import in_a_thread
from mint.rl.settings.config import RLConfig


def run_grpo(
    adapter: Any, cfg: RLConfig | None = None, *, service: mint.ServiceClient | None = None
) -> str:
    """Train on a task, and return the path of the trained weights.

    ``adapter`` is an :class:`mint.rl.RLAdapter` or an :class:`mint.rl.Environment`. Without ``cfg``
    the settings come from the environment; without ``service`` it is the one that
    ``mint.ServiceClient()`` finds. Called again after an interruption, it continues.
    """
    interruption = Interruption()
    if not in_event_loop():
        return _run(adapter, cfg, service, interruption)
    end = in_a_thread(lambda: _run(adapter, cfg, service, interruption))  # as in a notebook
    try:
        return end.result()
    except KeyboardInterrupt:
        if end.done():
            raise
        interruption.press()
        return end.result()


def _run(
    adapter: Any,
    cfg: RLConfig | None,
    service: mint.ServiceClient | None,
    interruption: Interruption,
) -> str:
    with Run(adapter, cfg, service, interruption) as run:
        for step in run:
            batch, datums = run.learn(step)
            run.record(batch, datums)
        return run.finish()
