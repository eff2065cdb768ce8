"""A run step by step, for tests that look at what is between the lines of ``grpo``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mint
from mint import types
from mint.rl import (
    Group,
    RLConfig,
    Run,
    compare_answers,
    learning_rate_at,
    open_run,
    penalise,
    policy_before,
    sample,
    train,
    with_signal,
)
from mint.rl.sampling.batch import Batch


class Stepper:
    """Calls the coroutines of a run, each to its end."""

    def __init__(self, run: Run, runner: asyncio.Runner) -> None:
        self.run, self.runner = run, runner
        self.cfg, self.client, self.checkpoints = run.cfg, run.client, run.checkpoints
        self.tokenizer = run.tokenizer

    def __iter__(self) -> Iterator[int]:
        return self.run.steps()

    def sample(self, step: int) -> Batch:
        return self.runner.run(self._sample(step))

    async def _sample(self, step: int) -> Batch:
        self.run.queue.publish(await policy_before(self.client, self.tokenizer, self.cfg, step))
        self.run.queue.fill(min(max(1, self.cfg.max_staleness), self.cfg.steps - step + 1))
        return await sample(self.run.queue, step)

    def build_datums(self, batch: Batch) -> list[types.Datum]:
        self.runner.run(penalise(batch, self.run.reference))
        return compare_answers(batch.groups, self.cfg)

    def useful(self, batch: Batch) -> list[Group]:
        return with_signal(batch.groups, self.cfg)

    def train(self, batch: Batch, datums: Sequence[types.Datum]) -> list[types.Datum]:
        return self.runner.run(self._train(batch, datums))

    async def _train(self, batch: Batch, datums: Sequence[types.Datum]) -> list[types.Datum]:
        run, cfg = self.run, self.cfg
        edited, rate = run.edit_datums(batch, datums), learning_rate_at(cfg, batch.step)
        run.queue.fill(min(cfg.max_staleness, cfg.steps - batch.step))
        update = await train(run.client, edited, cfg, rate, run.reference, batch.policy)
        batch.updates.append(update)
        return edited

    def record(self, batch: Batch, datums: Sequence[types.Datum]) -> None:
        self.runner.run(self.run.record([batch]))

    def finish(self) -> str:
        return self.runner.run(self.run.finish())


@contextmanager
def stepping(adapter: Any, cfg: RLConfig, client: mint.ServiceClient) -> Iterator[Stepper]:
    """Open a run, and close it at the end."""
    with asyncio.Runner() as runner:
        opened = open_run(adapter, cfg, client)
        run = runner.run(opened.__aenter__())
        try:
            yield Stepper(run, runner)
        except BaseException as error:
            runner.run(opened.__aexit__(type(error), error, error.__traceback__))
            raise
        runner.run(opened.__aexit__(None, None, None))
