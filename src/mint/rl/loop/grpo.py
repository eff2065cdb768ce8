"""GRPO: sample, score, compare, train, record.

:func:`grpo` is the whole algorithm. Copy it into a script to change it, and pass the copy to
:func:`run_loop`, which opens the run before it and handles Ctrl-C and a lost service around it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import mint
from mint.rewards.reward import in_event_loop
from mint.rl.loop.run import Run, open_run
from mint.rl.loop.stages import compare_answers, mini_batch_sizes, penalise, policy_before, sample
from mint.rl.loop.update import LossFunction, service_loss, train
from mint.rl.runtime.endings import Interrupted
from mint.rl.runtime.interruption import Interruption
from mint.rl.runtime.threads import in_a_thread
from mint.rl.settings.config import RLConfig
from mint.rl.settings.schedules import learning_rate_at


async def grpo(run: Run, loss: LossFunction = service_loss) -> None:
    """Train a run to its last step. ``loss`` computes the gradients of a mini-batch."""
    cfg, client, queue, reference = run.cfg, run.client, run.queue, run.reference
    for step in run.steps():
        # Sample with the newest weights, up to max_staleness steps ahead. All groups are in flight
        # at once, and each is scored as soon as it is complete.
        queue.publish(await policy_before(client, run.tokenizer, cfg, step))
        queue.fill(min(max(1, cfg.max_staleness), cfg.steps - step + 1))
        parts = []
        for size in mini_batch_sizes(cfg):
            batch = await sample(queue, step, size)

            # Compare the answers of each group, after the KL has been subtracted from the rewards.
            await penalise(batch, reference)
            datums_D = run.edit_datums(batch, compare_answers(batch.groups, cfg))

            # Train, while the groups of later steps are sampled.
            queue.fill(min(cfg.max_staleness, cfg.steps - step))
            rate = learning_rate_at(cfg, step)
            update = await train(client, datums_D, cfg, rate, reference, batch.policy, loss)
            batch.updates.append(update)
            parts.append(batch)

        # Record metrics and rollouts, check the guards, evaluate and save when it is time.
        await run.record(parts)


def run_grpo(
    adapter: Any,
    cfg: RLConfig | None = None,
    *,
    service: mint.ServiceClient | None = None,
    loss: LossFunction = service_loss,
) -> str:
    """Train on a task, and return the path of the trained weights. Called again, it resumes.

    ``adapter`` is an :class:`mint.rl.RLAdapter` or an :class:`mint.rl.Environment`. The settings
    default to those of the environment, and ``service`` to ``mint.ServiceClient()``. ``loss``
    replaces ``cfg.loss_fn``.
    """
    return run_loop(lambda run: grpo(run, loss), adapter, cfg, service)


def run_loop(
    loop: Callable[[Run], Awaitable[None]],
    adapter: Any,
    cfg: RLConfig | None = None,
    service: mint.ServiceClient | None = None,
) -> str:
    """Train on a task with a loop like :func:`grpo`, and return the path of the trained weights."""
    interruption = Interruption()

    async def work() -> str:
        async with open_run(adapter, cfg, service, interruption) as run:
            await loop(run)
            return await run.finish()

    final = _run_outside(interruption, work) if in_event_loop() else interruption.run(work)
    if interruption.presses:
        print(f"Interrupted. The run is already finished: {final}", flush=True)
        raise Interrupted(interruption.code)
    return final


def _run_outside(interruption: Interruption, work: Callable[[], Coroutine[Any, Any, str]]) -> str:
    """Run where an event loop runs already, as in a notebook: in a thread."""
    end = in_a_thread(lambda: interruption.run(work))
    try:
        return end.result()
    except KeyboardInterrupt:
        if end.done():
            raise
        interruption.press()
        return end.result()
