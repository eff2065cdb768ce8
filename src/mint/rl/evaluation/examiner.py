"""Evaluate any model on any of a task's sets: weights of the service, or an endpoint's model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mint
from mint.config_error import ConfigError, closest
from mint.rewards import TooManyFailures
from mint.rl.data.prompts import Data, Item
from mint.rl.evaluation.endpoint import EndpointClient
from mint.rl.evaluation.evaluator import HoldoutEvaluator, sample_from
from mint.rl.evaluation.results import SetResult, collect_results
from mint.rl.groups.collect import Collector
from mint.rl.rollouts.policy import Policy
from mint.rl.rollouts.scoring import Ledger
from mint.rl.runtime.threads import Threads, to_thread
from mint.rl.settings.config import RLConfig

HOLDOUT = "holdout"


@dataclass
class Examiner:
    """Evaluates models on the sets of a task: its holdout, and those of ``build_eval_sets()``.

    A task may have ``build_eval_sets() -> {"name": [samples]}``, ``category(sample)`` and
    ``vote(response, sample)``. Every model gets the same prompts and the same seeds.
    """

    adapter: Any
    cfg: RLConfig
    only: Sequence[str] = ()

    def of(self, service: mint.ServiceClient, path: str | None) -> dict[str, SetResult]:
        """Return the results of a checkpoint of the service; None is the base model."""

        async def work(client: mint.SamplingClient) -> dict[str, SetResult]:
            return await self._of(client, await to_thread(client.get_tokenizer))

        return asyncio.run(sample_from(service, self.cfg, path, work))

    def of_endpoint(self, url: str, model: str) -> dict[str, SetResult]:
        """Return the results of a model behind an OpenAI-compatible endpoint."""

        async def work() -> dict[str, SetResult]:
            client = EndpointClient(url, model)
            return await self._of(client, client.get_tokenizer())

        return asyncio.run(work())

    async def _of(self, client: Any, tokenizer: Any) -> dict[str, SetResult]:
        sets = self._sets(Data(self.adapter, tokenizer, self.cfg))
        return {name: await self._result(name, items, client, tokenizer) for name, items in sets}

    def _sets(self, data: Data) -> list[tuple[str, list[Item]]]:
        own: Mapping[str, Sequence[Any]] = getattr(self.adapter, "build_eval_sets", dict)()
        names = [HOLDOUT, *own]
        for name in self.only:
            if name not in names:
                hint = closest(name, names)
                raise ConfigError(
                    f"set={name}: the task has no such set.{hint} It has {', '.join(names)}."
                )
        wanted = [name for name in names if not self.only or name in self.only]
        return [
            (name, data.holdout() if name == HOLDOUT else data.items(list(own[name])))
            for name in wanted
        ]

    async def _result(
        self, name: str, items: Sequence[Item], client: Any, tokenizer: Any
    ) -> SetResult:
        workers = self.cfg.reward_workers
        threads = Threads(workers) if workers else None
        holdout = HoldoutEvaluator(self.adapter, self.cfg, items, tokenizer, threads)
        cfg = holdout.cfg
        policy = Policy(client, tokenizer, cfg.eval_temperature, cfg.max_tokens, cfg.stop)
        collector = Collector(
            holdout.task, cfg, Ledger(1.0), threads, holdout.failures, "evaluation"
        )
        try:
            groups = await collector.groups(policy, holdout.items, 1, cfg.eval_samples, f"{name} ")
        finally:
            if threads is not None:
                threads.shutdown()
        errors = [rollout.error for group in groups for rollout in group.rollouts]
        if errors and all(errors):
            raise TooManyFailures(f"No answer to the set {name!r} could be scored: {errors[0]}")
        return collect_results(name, self.adapter, groups, cfg.success_threshold)
