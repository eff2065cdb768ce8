"""Settings that contradict each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mint.rl.options import ConfigError

if TYPE_CHECKING:
    from mint.rl.config import RLConfig


def require_consistent(cfg: RLConfig) -> None:
    """Raise ConfigError if settings that are valid on their own contradict each other."""
    if cfg.temperature == 0:
        raise ConfigError("temperature is 0, so all answers of a group would be equal. Try 0.8.")
    if cfg.mini_batches > cfg.batch_size:
        raise ConfigError(
            f"mini_batches is {cfg.mini_batches}, more than the {cfg.batch_size} prompts of "
            "a batch. Lower it, or raise batch_size."
        )
    if cfg.temperature_schedule != "constant" and not cfg.temperature_end:
        raise ConfigError("A temperature_schedule needs a temperature_end above 0, as in 0.5.")
    if cfg.matches_sampling and cfg.kl_loss_coef > 0 and not cfg.samples_plainly:
        raise ConfigError(
            "kl_loss_coef compares logprobs at temperature 1 over all tokens, but with "
            "match_sampling or top_k the loss uses those of the sampling distribution. Set "
            "temperature=1.0 and leave out top_k, or use kl_penalty_coef instead of kl_loss_coef."
        )
    if cfg.top_k == 0 and (cfg.top_p < 1 or cfg.min_p > 0):
        raise ConfigError(
            "top_p and min_p need top_k, because the tokens that each position kept are sent for "
            "training and top_k limits their number. Set top_k=64."
        )
    if cfg.overlong_buffer > cfg.max_tokens:
        raise ConfigError(
            f"overlong_buffer is {cfg.overlong_buffer}, over max_tokens={cfg.max_tokens}."
        )
    ends, starts = cfg.reward_weights_end, cfg.reward_weights
    if ends is not None and set(ends) != set(starts or {}):
        raise ConfigError("reward_weights_end needs the same names as reward_weights.")
    if cfg.advantage == "dr_grpo" and cfg.aggregation not in ("sum", "constant"):
        raise ConfigError(
            f"dr_grpo is centred rewards with constant aggregation, not {cfg.aggregation!r}. "
            "Leave aggregation out, or use advantage='centre'."
        )
    if cfg.matches_sampling and cfg.max_staleness > 1 and cfg.temperature_schedule != "constant":
        raise ConfigError(
            "match_sampling (or top_k) trains a step at one temperature, but with max_staleness "
            "above 1 and a temperature_schedule it has answers of several. Leave out one of these."
        )
    if cfg.staleness_rule == "correct" and cfg.truncated_importance is None:
        raise ConfigError(
            "staleness_rule=correct weights old answers by truncated_importance, which is not "
            "set. Set truncated_importance=2.0."
        )
    if cfg.eval_samples > 1 and cfg.eval_temperature == 0:
        raise ConfigError(
            f"eval_samples is {cfg.eval_samples} but eval_temperature is 0, which makes all "
            "answers equal. Set eval_temperature, for example to 0.8."
        )
