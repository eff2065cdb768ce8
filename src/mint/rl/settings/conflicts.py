"""Settings that contradict each other: what a config is refused for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mint.rl.settings.config import RLConfig

_OF_THE_BATCH = ("batch", "global")
"""Advantages that compare all answers of a step."""


def conflicts(cfg: RLConfig) -> Iterator[str]:
    """Return what is wrong with settings that are each right by themselves, and what to set."""
    if cfg.temperature == 0:
        yield "temperature is 0, so all answers of a group would be equal. Try 0.8."
    if cfg.temperature_schedule != "constant" and not cfg.temperature_end:
        yield "A temperature_schedule needs a temperature_end above 0, as in 0.5."
    if cfg.overlong_buffer > cfg.max_tokens:
        yield f"overlong_buffer is {cfg.overlong_buffer}, over max_tokens={cfg.max_tokens}."
    ends, starts = cfg.reward_weights_end, cfg.reward_weights
    if ends is not None and set(ends) != set(starts or {}):
        yield "reward_weights_end needs the same names as reward_weights."
    if cfg.advantage == "dr_grpo" and cfg.aggregation not in ("sum", "constant"):
        yield (
            f"dr_grpo is centred rewards with constant aggregation, not {cfg.aggregation!r}. "
            "Leave aggregation out, or use advantage='centre'."
        )
    if cfg.eval_samples > 1 and cfg.eval_temperature == 0:
        yield (
            f"eval_samples is {cfg.eval_samples} but eval_temperature is 0, which makes all "
            "answers equal. Set eval_temperature, for example to 0.8."
        )
    yield from _of_the_temperature(cfg)
    yield from _of_the_order(cfg)


def _of_the_temperature(cfg: RLConfig) -> Iterator[str]:
    """Conflicts of training on the distribution that was sampled from."""
    if cfg.matches_sampling and cfg.kl_loss_coef > 0 and not cfg.samples_plainly:
        yield (
            "kl_loss_coef compares logprobs at temperature 1 over all tokens, but with "
            "match_sampling or top_k the loss uses those of the sampling distribution. Set "
            "temperature=1.0 and leave out top_k, or use kl_penalty_coef instead of kl_loss_coef."
        )
    if cfg.top_k == 0 and (cfg.top_p < 1 or cfg.min_p > 0):
        yield (
            "top_p and min_p need top_k, because the tokens that each position kept are sent for "
            "training and top_k limits their number. Set top_k=64."
        )
    mixed = cfg.max_staleness > 1 and cfg.temperature_schedule != "constant"
    if cfg.matches_sampling and mixed:
        yield (
            "match_sampling (or top_k) trains a step at one temperature, but with max_staleness "
            "above 1 and a temperature_schedule it has answers of several. Leave out one of these."
        )


def _of_the_order(cfg: RLConfig) -> Iterator[str]:
    """Conflicts of mini-batches and of sampling ahead."""
    if cfg.mini_batches > cfg.batch_size:
        yield (
            f"mini_batches is {cfg.mini_batches}, more than the {cfg.batch_size} prompts of "
            "a batch. Lower it, or raise batch_size."
        )
    if cfg.stream_mini_batches and (cfg.substeps > 1 or cfg.advantage in _OF_THE_BATCH):
        why = f"substeps={cfg.substeps}" if cfg.substeps > 1 else f"advantage={cfg.advantage}"
        yield (
            "stream_mini_batches trains on the first answers of a step before the others are "
            f"complete, but {why} needs all of them. Leave out one of these."
        )
    if cfg.staleness_rule == "correct" and cfg.truncated_importance is None:
        yield (
            "staleness_rule=correct weights old answers by truncated_importance, which is not "
            "set. Set truncated_importance=2.0."
        )
