"""Checks of settings against each other: conflicts, which are errors, and warnings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mint.rl.settings.config import RLConfig

_OF_THE_BATCH = ("batch", "global")  # advantages that compare all answers of a step
_OF_LORA = ("rank", "train_mlp", "train_attn", "train_unembed")
_OF_EVALUATION = ("eval_samples", "eval_temperature", "holdout_size")
_NO_KL = "no KL is measured: set kl_penalty_coef=0.05, or kl_samples=16."
_OF_CONVERSATIONS = ("discount", "max_turns", "rollout_timeout", "context_length")
_NO_ENTROPY = "with a temperature_schedule it needs measure_entropy=true, without match_sampling."
_NO_MISMATCH = "it is only checked at temperature=1.0 or with match_sampling=true."


def conflicts(cfg: RLConfig) -> Iterator[str]:
    """Return what is wrong with settings that are valid one by one, and what to set."""
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
    mixes_temperatures = cfg.max_staleness > 1 and cfg.temperature_schedule != "constant"
    if cfg.matches_sampling and mixes_temperatures:
        yield (
            "match_sampling (or top_k) trains a step at one temperature, but with max_staleness "
            "above 1 and a temperature_schedule it has answers of several. Leave out one of these."
        )
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
    limit = 1.0 if cfg.truncated_importance is None else cfg.truncated_importance
    if cfg.importance_rule == "mask" and not cfg.importance_low <= 1 <= limit:
        yield (
            f"importance_rule=mask keeps ratios from importance_low={cfg.importance_low:g} to "
            f"truncated_importance={limit:g}, without 1, which most tokens have. Set "
            "importance_low=0.5 and truncated_importance=2.0."
        )
    if cfg.staleness_rule == "correct" and cfg.truncated_importance is None:
        yield (
            "staleness_rule=correct weights old answers by truncated_importance, which is not "
            "set. Set truncated_importance=2.0."
        )


def suspicious(cfg: RLConfig, converses: bool | None = None) -> list[str]:
    """Return warnings about suspicious settings. ``converses`` says whether the task is an
    environment, if it is known."""
    found = [
        f"{name} has no effect: {why}"
        for name, (has_effect, why) in _effects(cfg, converses).items()
        if not has_effect and getattr(cfg, name) != type(cfg).model_fields[name].default
    ]
    corrected = cfg.truncated_importance is not None or cfg.matches_sampling
    if cfg.clips and not (cfg.samples_plainly or corrected):
        end = f" to {cfg.temperature_end}" if cfg.temperature_schedule != "constant" else ""
        found.append(
            f"{cfg.loss_fn} clips the ratio of trainer to sampler, and at temperature "
            f"{cfg.temperature:g}{end} that is not 1 to begin with: set temperature=1.0 or "
            "match_sampling=true."
        )
    if cfg.substeps > 1 and not cfg.clips:
        found.append(
            f"substeps={cfg.substeps} reuses each batch, and {cfg.loss_fn} does not limit the "
            "change of the policy: set loss_fn=ppo."
        )
    needs = {
        "kl_runaway": (cfg.measures_kl, _NO_KL),
        "entropy_collapse": (cfg.entropy_to_compare is not None, _NO_ENTROPY),
        "reward_hacking": (cfg.eval_every > 0, "nothing is evaluated: set eval_every=10."),
        "mismatch": (cfg.temperature == 1.0 or cfg.matches_sampling, _NO_MISMATCH),
    }
    for finding, (is_checked, why) in needs.items():
        if finding in cfg.stop_on and not is_checked:
            found.append(f"{finding} in stop_on has no effect: {why}")
    if cfg.start_from and cfg.measures_kl and cfg.kl_reference == "base":
        found.append(
            f"The KL is measured against {cfg.base_model}, not against start_from: set "
            "kl_reference=start to change that."
        )
    if cfg.kl_loss_coef > 0 and cfg.kl_loss == "k1" and not cfg.kl_loss_ratio:
        found.append(
            "The gradient of kl_loss=k1 is 0 on average: set kl_loss_ratio=true or kl_loss=k2."
        )
    return found


def _effects(cfg: RLConfig, converses: bool | None) -> dict[str, tuple[bool, str]]:
    """Settings that need others: whether they have an effect, and if not, why."""
    clips = f"{cfg.loss_fn} does not clip: set loss_fn=ppo."
    in_loss = (cfg.kl_loss_coef > 0, "set kl_loss_coef=0.01.")
    corrected = (cfg.truncated_importance is not None, "set truncated_importance=2.0.")
    masks = (cfg.importance_rule == "mask", "set importance_rule=mask.")
    return {
        "clip_low_threshold": (cfg.clips, clips),
        "clip_high_threshold": (cfg.clips, clips),
        "dro_beta": (cfg.loss_fn == "dro", "set loss_fn=dro."),
        "kl_reference": (cfg.measures_kl, _NO_KL),
        "kl_limit": (cfg.measures_kl, _NO_KL),
        "kl_samples": (cfg.kl_penalty_coef == 0, "with kl_penalty_coef, all answers are measured."),
        "kl_loss": in_loss,
        "kl_loss_ratio": in_loss,
        "importance_level": corrected,
        "importance_rule": corrected,
        "importance_low": corrected if cfg.truncated_importance is None else masks,
        **dict.fromkeys(_OF_LORA, (cfg.start_from is None, "start_from has its own.")),
        **dict.fromkeys(_OF_CONVERSATIONS, (converses is not False, "prompts have one reply.")),
        "reward_workers": (not converses, "an environment computes its rewards itself."),
        **dict.fromkeys(_OF_EVALUATION, (cfg.eval_every > 0, "set eval_every=10.")),
        "stream_mini_batches": (cfg.mini_batches > 1, "set mini_batches=2."),
        "staleness_rule": (cfg.max_staleness > 1, "no answer can be too old: set max_staleness=2."),
        "measure_entropy": (cfg.entropy_coef == 0, "with entropy_coef, it is always measured."),
        "match_sampling": (
            not cfg.samples_plainly and cfg.top_k == 0,
            "with top_k, it is always on."
            if cfg.top_k
            else "at temperature=1.0 the logprobs are the same.",
        ),
        "entropy_floor": (cfg.entropy_to_compare is not None, _NO_ENTROPY),
        "mismatch_limit": (cfg.temperature == 1.0 or cfg.matches_sampling, _NO_MISMATCH),
        "temperature_end": (
            cfg.temperature_schedule != "constant",
            "set temperature_schedule=linear.",
        ),
        "lr_end": (cfg.lr_schedule != "constant", "set lr_schedule=linear."),
        "overlong_limit": (cfg.overlong_buffer > 0, "set overlong_buffer."),
    }
