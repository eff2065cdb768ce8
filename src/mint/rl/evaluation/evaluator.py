"""Evaluate models on fixed prompts with fixed seeds: checkpoints on a task's holdout, and
checkpoints or models behind an endpoint on any of a task's evaluation sets."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import mint
from mint.config_error import ConfigError, closest
from mint.rewards import TooManyFailures
from mint.rl.agents.chat import Chat, ContextFull, TurnLimit
from mint.rl.data.prompts import Data, Item
from mint.rl.evaluation.endpoint import EndpointClient
from mint.rl.evaluation.results import SetResult, collect_results, find_left_out
from mint.rl.evaluation.scores import Evaluation, evaluate
from mint.rl.rollouts.failures import FailureLog
from mint.rl.rollouts.policy import Policy
from mint.rl.rollouts.rollout import Group
from mint.rl.rollouts.scoring import FailureCounter
from mint.rl.runtime.connection import ServiceMonitor, connect
from mint.rl.runtime.threads import to_thread
from mint.rl.sampling.collector import Collector
from mint.rl.settings.config import RLConfig
from mint.rl.task import overrides

HOLDOUT = "holdout"
LIMITS = (TurnLimit.__name__, ContextFull.__name__)
"""Limits that a weak policy may reach with every answer: these answers are wrong, not unscored."""


class Evaluator:
    """Evaluates checkpoints on a task's holdout, with the same prompts and the same seeds.

    Prompts to which the reward does not apply at the first checkpoint are left out of all. Answers
    are scored by the task's ``holdout_reward``, if it has one::

        Evaluator(adapter, cfg, mint.ServiceClient()).of("tinker://…/weights/step-000040").pass_1
    """

    def __init__(self, adapter: Any, cfg: RLConfig, service: mint.ServiceClient) -> None:
        self.adapter = adapter
        self.cfg = cfg
        self.service = service
        self._items: list[Item] | None = None
        self._holdout = Holdout()

    def of(self, path: str | None) -> Evaluation:
        """Evaluate a checkpoint, of training or of sampling; None is the base model."""

        async def work() -> Evaluation:
            adapter, cfg = self.adapter, self.cfg
            async with sampling_client(self.service, cfg, path) as (client, tokenizer):
                self._items = self._items or Data(adapter, tokenizer, cfg).holdout()
                return await self._holdout.evaluate(adapter, cfg, self._items, client, tokenizer)

        return asyncio.run(work())


@dataclass
class SetEvaluator:
    """Evaluates models on the sets of a task: its holdout, and those of ``build_eval_sets()``.

    A task may have ``build_eval_sets() -> {"name": [samples]}``, ``category(sample)`` and
    ``vote(response, sample)``. Every model gets the same prompts and the same seeds.
    """

    adapter: Any
    cfg: RLConfig
    only: Sequence[str] = ()

    def of(self, service: mint.ServiceClient, path: str | None) -> dict[str, SetResult]:
        """Return the results of a checkpoint of the service; None is the base model."""

        async def work() -> dict[str, SetResult]:
            async with sampling_client(service, self.cfg, path) as (client, tokenizer):
                return await self._evaluate_sets(client, tokenizer)

        return asyncio.run(work())

    def of_endpoint(self, url: str, model: str) -> dict[str, SetResult]:
        """Return the results of a model behind an OpenAI-compatible endpoint."""
        client = EndpointClient(url, model)
        return asyncio.run(self._evaluate_sets(client, client.get_tokenizer()))

    async def _evaluate_sets(self, client: Any, tokenizer: Any) -> dict[str, SetResult]:
        data = Data(self.adapter, tokenizer, self.cfg)
        own: Mapping[str, Sequence[Any]] = getattr(self.adapter, "build_eval_sets", dict)()
        names = [HOLDOUT, *own]
        for name in self.only:
            if name not in names:
                hint = closest(name, names)
                raise ConfigError(
                    f"set={name}: the task has no such set.{hint} It has {', '.join(names)}."
                )
        sets = {
            name: data.holdout() if name == HOLDOUT else data.items(own[name])
            for name in names
            if not self.only or name in self.only
        }
        for name, items in sets.items():
            if not items:
                raise ConfigError(
                    f"The set {name!r} is empty: build_eval_sets() returned no samples for it. "
                    "Return some, or select another set with set=NAME."
                )
        return {n: await self._result(n, items, client, tokenizer) for n, items in sets.items()}

    async def _result(
        self, name: str, items: Sequence[Item], client: Any, tokenizer: Any
    ) -> SetResult:
        adapter, cfg = self.adapter, self.cfg
        groups = await sample_groups(adapter, cfg, items, client, tokenizer, 1.0, name=name)
        errors = [rollout.error for group in groups for rollout in group.rollouts]
        if errors and all(e and e.partition(":")[0] not in LIMITS for e in errors):
            raise TooManyFailures(f"No answer to the set {name!r} could be scored: {errors[0]}")
        return collect_results(name, adapter, groups, cfg.success_threshold)


Examiner = SetEvaluator  # its earlier name, which scripts import from mint.rl


@asynccontextmanager
async def sampling_client(
    service: mint.ServiceClient, cfg: RLConfig, path: str | None
) -> AsyncIterator[tuple[mint.SamplingClient, Any]]:
    """Yield a client that samples from a checkpoint or the base model, and its tokenizer. The
    connection to the service is monitored meanwhile."""
    monitor = ServiceMonitor(service, cfg.service_timeout)
    await monitor.reach()
    async with monitor.watching():
        await connect(service)
        where = {"base_model": cfg.base_model} if path is None else {"model_path": path}
        client = await service.create_sampling_client_async(**where)
        yield client, await to_thread(client.get_tokenizer)


@dataclass
class Holdout:
    """Evaluates weights on held-out items, on the same prompts every time.

    ``left_out`` is decided by the first evaluation: prompts for which the reward of all answers is
    None ("does not apply"). For any other prompt, an answer with a reward of None counts as wrong.
    """

    left_out: list[str] | None = None

    async def evaluate(
        self,
        adapter: Any,
        cfg: RLConfig,
        items: Sequence[Item],
        client: mint.SamplingClient,
        tokenizer: Any,
        failures: FailureLog | None = None,
    ) -> Evaluation:
        """Return the result of some weights."""
        limit = cfg.max_reward_failures
        groups = await sample_groups(adapter, cfg, items, client, tokenizer, limit, failures)
        if self.left_out is None:
            self.left_out = find_left_out(groups)
        kept = [group for group in groups if group.identity not in self.left_out]
        unrewarded = sum(not rollout.applies for group in kept for rollout in group.rollouts)
        rewards = [[rollout.reward for rollout in group.rollouts] for group in kept]
        return evaluate(rewards, cfg.success_threshold, unrewarded, len(groups) - len(kept))


async def sample_groups(
    adapter: Any,
    cfg: RLConfig,
    items: Sequence[Item],
    client: Any,
    tokenizer: Any,
    max_failures: float,
    failures: FailureLog | None = None,
    name: str = HOLDOUT,
) -> list[Group]:
    """Sample answers to all items of a set, and score them as evaluation does."""
    task = with_holdout_reward(adapter)
    weights = cfg.reward_weights_end or cfg.reward_weights  # the same for every checkpoint
    fixed = {"reward_weights": weights if task is adapter else None, "reward_weights_end": None}
    cfg = cfg.model_copy(update=fixed)
    policy = Policy(client, tokenizer, cfg.eval_temperature, cfg.max_tokens, cfg.stop)
    counter = FailureCounter(max_failures, expected=LIMITS)
    collector = Collector(task, cfg, counter, failures, "evaluation")
    return await collector.groups(policy, items, 1, cfg.eval_samples, f"{name} ")


def with_holdout_reward(adapter: Any) -> Any:
    """Return a task that is scored by its ``holdout_reward``, if it has one."""
    if not overrides(adapter, "holdout_reward"):
        return adapter

    async def rollout(task: Any, chat: Chat) -> Any:
        await adapter.rollout(task, chat)
        value = adapter.holdout_reward(task, chat)
        return await value if inspect.isawaitable(value) else value

    return SimpleNamespace(compute_reward=adapter.holdout_reward, rollout=rollout)
