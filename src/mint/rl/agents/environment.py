"""Environments: objects that hold a conversation with the policy and score it."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import mint
from mint.rl.agents.chat import Chat
from mint.rl.rollouts.credit import keep_turn_rewards
from mint.rl.rollouts.failures import CodeFailure, noting
from mint.rl.rollouts.policy import Policy
from mint.rl.rollouts.rollout import MissingLogprobs, Rollout
from mint.rl.rollouts.scoring import apply_score
from mint.rl.settings.config import RLConfig


@runtime_checkable
class Environment(Protocol):
    """An object with ``build_dataset()`` for its tasks and an async ``rollout(task, chat)``.

    ``rollout`` talks to the model through ``chat`` and returns the reward: a number, or a
    :class:`mint.rewards.Score` whose components say what it is made of (outcome, tool cost,
    steps). It may also have ``build_holdout``, ``identity`` and ``evaluate``, as an
    :class:`mint.rl.RLAdapter` has, and ``holdout_reward(task, chat)``, which evaluation uses in
    place of the reward when the conversation has ended.
    """

    def build_dataset(self) -> list[Any]:
        """Return the tasks to draw from, for one step."""

    async def rollout(self, task: Any, chat: Chat) -> Any:
        """Let the policy attempt a task, and return its reward."""


async def run_environment(
    environment: Environment,
    task: Any,
    policy: Policy,
    cfg: RLConfig,
    seed: int | None,
    weights: Mapping[str, float] | None = None,
) -> Rollout:
    """Run one rollout; an exception is recorded as its error.

    A lost service, missing logprobs and an interruption are raised: they concern every rollout.
    """
    chat = Chat(policy, seed, cfg.max_turns, cfg.context_length)
    value: Any
    failures: list[CodeFailure] = []
    limit = asyncio.timeout(cfg.rollout_timeout)
    try:
        with noting(failures):
            async with limit:
                value = await environment.rollout(task, chat)
    except (mint.APIConnectionError, MissingLogprobs, KeyboardInterrupt, GeneratorExit):
        raise
    except Exception as error:
        value = error
        if limit.expired():
            wait = f"not finished after {cfg.rollout_timeout:g} s"
            value = TimeoutError(f"{wait}; raise rollout_timeout if it needs longer")
            value.__cause__ = error  # its traceback shows where the rollout was waiting
    except BaseException as error:
        task_of_step = asyncio.current_task()
        if task_of_step is not None and task_of_step.cancelling():
            raise  # the step is cancelled, and not only something that the rollout waited for
        value = RuntimeError(f"{type(error).__name__}: {error}")
        value.__cause__ = error
    finally:
        chat.close()
    rollout = Rollout(
        chat.segments,
        chat.text,
        truncated=chat.truncated,
        trace=chat.trace,
        prompt=chat.prompt,
        turns=chat.replies,
        failures=failures,
    )
    try:
        keep_turn_rewards(rollout, value, cfg.discount, weighed=weights is not None)
    except ValueError as error:
        value = error
    apply_score(rollout, value, weights)
    return rollout
