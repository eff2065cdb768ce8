"""The stages of a step before training: the policy to sample with, sampling, comparing."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import mint
from mint import types
from mint.rl.algorithms.sequences import part_sizes
from mint.rl.datums.datum import build_datums
from mint.rl.datums.reference import Reference
from mint.rl.loop.progress import sampling_line, show_during
from mint.rl.rollouts.credit import assign_advantages
from mint.rl.rollouts.policy import Filters, Policy
from mint.rl.rollouts.rollout import Group
from mint.rl.sampling.batch import Batch
from mint.rl.sampling.queue import GroupQueue
from mint.rl.settings.config import RLConfig


async def weights_before(client: mint.TrainingClient, step: int) -> mint.SamplingClient:
    """Return a client that samples from the weights as they are before a step."""
    request = client.save_weights_and_get_sampling_client_async(f"rl-step-{step}")
    return await asyncio.shield(request)  # not cancelled: the service waits for what was begun


async def policy_before(
    client: mint.TrainingClient, tokenizer: Any, cfg: RLConfig, step: int
) -> Policy:
    """Return the policy that samples for a step."""
    sampler = await weights_before(client, step)
    return Policy(
        sampler,
        tokenizer,
        cfg.temperature,
        cfg.max_tokens,
        cfg.stop,
        version=step - 1,
        filters=Filters(cfg.top_k, cfg.top_p, cfg.min_p),
        digest=await sampler.weights_digest(),
    )


def mini_batch_sizes(cfg: RLConfig) -> list[int | None]:
    """Return how many groups to sample before each update; None for all of them."""
    if not cfg.stream_mini_batches:
        return [None]
    return [*part_sizes(cfg.batch_size, cfg.mini_batches)]


async def sample(queue: GroupQueue, step: int, size: int | None = None) -> Batch:
    """Take the scored groups of a step from the queue, or the first ``size`` to be complete."""
    since, cfg = time.monotonic(), queue.cfg

    def shown() -> str:
        seconds, answers = time.monotonic() - since, cfg.batch_size * cfg.group_size
        return sampling_line(step, cfg.steps, queue.answered, answers, seconds)

    batch = await show_during(lambda: queue.batch(step, size), shown)
    batch.metrics["time/sample"] = time.monotonic() - since
    return batch


async def penalise(batch: Batch, reference: Reference | None) -> None:
    """Subtract the KL to the reference from the rewards, when there is a reference."""
    if reference is not None:
        clients = {version: policy.client for version, policy in batch.policies.items()}
        policy = None if batch.policy.is_plain else clients
        batch.metrics |= await reference.penalise(batch.groups, policy)


def with_signal(groups: Sequence[Group], cfg: RLConfig) -> list[Group]:
    """Return the groups in which some answer was better than another."""
    return [group for group in groups if group.kind(cfg.success_threshold) == "signal"]


def compare_answers(groups: Sequence[Group], cfg: RLConfig) -> list[types.Datum]:
    """Assign advantages from the rewards, and return the datums to train on."""
    compared = groups if cfg.compares_batch else with_signal(groups, cfg)
    assign_advantages(compared, cfg.advantage)
    every = cfg.trains_every_answer
    chosen = groups if every else compared
    return build_datums(chosen, cfg.token_weights, cfg.max_tokens, cfg.loss_fn, every)
