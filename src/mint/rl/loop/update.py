"""Train on a batch: forward_backward and optim_step, as often as the config says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

import mint
from mint import types
from mint.extensions import error_code
from mint.rl.algorithms.importance import Array, Correction
from mint.rl.algorithms.kl import kl_figures
from mint.rl.datums.datum import has_weight, scaled, split, trained_pairs, trained_tokens
from mint.rl.datums.ratios import clipped_share, corrected, masked_share, mismatch
from mint.rl.datums.reference import Reference
from mint.rl.rollouts.policy import Policy
from mint.rl.sampling.batch import Update
from mint.rl.settings.config import RLConfig
from mint.rl.settings.extensions import extensions, require_accepted, require_known

_TURNS = 5
"""Turns of the event loop in which started groups send their requests. An engine that has them
before it begins a training pass samples first, so that they are scored during the pass."""


def loss_config(cfg: RLConfig, temperature: float = 1.0) -> dict[str, float | str] | None:
    """Return the loss's thresholds that the config sets, and the terms that are added to it."""
    given = {
        "clip_low_threshold": cfg.clip_low_threshold if cfg.clips else None,
        "clip_high_threshold": cfg.clip_high_threshold if cfg.clips else None,
        "beta": cfg.dro_beta if cfg.loss_fn == "dro" else None,
    }
    own = {name: value for name, value in given.items() if value is not None}
    return {**own, **extensions(cfg, temperature)} or None


LossFunction = Callable[
    [mint.TrainingClient, list[types.Datum], RLConfig, float],
    Awaitable[types.ForwardBackwardOutput],
]
"""Requests the gradients of a mini-batch that was sampled at a temperature. It is called for every
mini-batch before the first answer is waited for."""


def service_loss(
    client: mint.TrainingClient, datums: list[types.Datum], cfg: RLConfig, temperature: float
) -> Awaitable[types.ForwardBackwardOutput]:
    """Request the gradients of ``cfg.loss_fn``, which the service computes."""
    loss_fn: Any = cfg.loss_fn
    return client.forward_backward(datums, loss_fn, loss_config(cfg, temperature))


async def train(
    client: mint.TrainingClient,
    datums: Sequence[types.Datum],
    cfg: RLConfig,
    learning_rate: float,
    reference: Reference | None = None,
    policy: Policy | None = None,
    loss: LossFunction = service_loss,
) -> Update:
    """Train on datums that a policy sampled. All requests are sent before any is awaited."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    since, temperature = time.monotonic(), policy.temperature if policy else 1.0
    update = Update(datums, {})
    try:
        if datums:
            update = await _update(client, datums, cfg, learning_rate, reference, temperature, loss)
    except mint.RequestFailedError as error:
        if error_code(error) != "not_finite":
            if policy is not None and policy.digest is None:  # then this is not a mint service
                require_accepted(cfg, error, temperature)
            raise
        update = Update(datums, {"train/refused": 1.0}, refused=str(error))
    update.metrics.update(
        {
            "train/learning_rate": learning_rate,
            "train/tokens": float(trained_tokens(datums)),
            "policy/temperature": temperature,
            "time/train": time.monotonic() - since,
        }
    )
    return update


async def _update(
    client: mint.TrainingClient,
    datums: Sequence[types.Datum],
    cfg: RLConfig,
    learning_rate: float,
    reference: Reference | None,
    temperature: float,
    loss: LossFunction,
) -> Update:
    """Request the gradients and the optimizer steps, and read the answers."""
    batch, found = list(datums), dict[str, float]()
    if cfg.kl_loss_coef > 0:
        assert reference is not None
        batch = await reference.with_logprobs(batch)
    old: list[Array] | None = None
    if cfg.truncated_importance is not None:
        loss_fn: Any = cfg.loss_fn
        request = client.forward(batch, loss_fn, loss_config(cfg, temperature))
        old = read_logprobs(await request)
        found |= mismatch(batch, old)
        limit, level = cfg.truncated_importance, cfg.importance_level
        correction = Correction(limit, level, cfg.importance_rule, cfg.importance_low)
        batch, before = corrected(batch, old, correction), batch
        if cfg.importance_rule == "mask":
            found["mismatch/masked"] = masked_share(before, batch)
    parts = split(batch, 1 if cfg.stream_mini_batches else cfg.mini_batches)
    adam = types.AdamParams(
        learning_rate=learning_rate,
        betas=cfg.betas,
        eps=cfg.eps,
        weight_decay=cfg.weight_decay,
        grad_clip_norm=cfg.grad_clip_norm,
    )
    factor = 1.0 if cfg.token_weights == "sum" else float(len(parts))  # a mean over each part
    waiting: list[Awaitable[Any]] = []
    passes = parts * cfg.substeps
    for part in passes:
        weighed = [scaled(datum, factor) for datum in part]
        waiting.append(loss(client, weighed, cfg, temperature))
        waiting.append(client.optim_step(adam))
    answers = await _all(waiting)
    losses, steps = answers[::2], answers[1::2]
    require_known(cfg, losses, temperature)
    first = losses[: len(parts)]
    first_D_T = [each for answer in first for each in read_logprobs(answer)]
    entropy_D_T: list[Array] = []
    if cfg.measures_entropy:
        entropy_D_T = [each for answer in first for each in read_outputs(answer, "entropy")]
        pairs = zip(batch, entropy_D_T, strict=True)
        inside = np.concatenate([array[has_weight(datum)] for datum, array in pairs])
        found["train/entropy"] = float(inside.mean()) if len(inside) else 0.0
    if cfg.clips:
        found |= clipped_share(cfg, list(zip(passes, map(read_logprobs, losses), strict=True)))
    if cfg.kl_loss_coef > 0:
        found |= kl_figures(trained_pairs(batch, first_D_T, "reference_logprobs"))
    if cfg.truncated_importance is None:
        found |= mismatch(parts[0], read_logprobs(losses[0]))
    if len(losses) > 1:
        moved = mismatch(parts[-1], read_logprobs(losses[-1]))  # the effect of the earlier updates
        found["train/drift"] = moved.get("mismatch/k3", 0.0)
    norms = [step.metrics["grad_norm"] for step in steps if "grad_norm" in (step.metrics or {})]
    found["train/loss"] = float(sum(answer.metrics.get("loss:sum", 0.0) for answer in losses))
    found["train/updates"] = float(len(steps))
    found |= {"train/grad_norm": float(np.mean(norms))} if norms else {}
    return Update(datums, found, first_D_T if old is None else old, entropy_D_T)


async def _all(waiting: Sequence[Awaitable[Any]]) -> list[Any]:
    """Wait for all requests; return their results, or raise the first failure."""
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return list(answers)


def read_logprobs(output: types.ForwardBackwardOutput) -> list[Array]:
    """Return the trainer's logprob of every target token, for each datum."""
    return read_outputs(output, "logprobs")


def read_outputs(output: types.ForwardBackwardOutput, name: str) -> list[Array]:
    """Return one of the arrays that the service returned for each datum."""
    return [np.asarray(result[name].data, dtype=np.float64) for result in output.loss_fn_outputs]
