"""Warn about suspicious settings: those without effect, and those that work against each other."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mint.rl.settings.config import RLConfig

_OF_LORA = ("rank", "train_mlp", "train_attn", "train_unembed")
_OF_EVALUATION = ("eval_samples", "eval_temperature", "holdout_size")


def suspicious(cfg: RLConfig, changed: Collection[str]) -> list[str]:
    """Return warnings about suspicious settings, given the names of those not at their default."""
    found = [f"{name} has no effect: {why}" for name, why in _idle(cfg) if name in changed]
    corrected = cfg.truncated_importance is not None or cfg.matches_sampling
    if cfg.clips and cfg.temperature != 1.0 and not corrected:
        found.append(
            f"{cfg.loss_fn} clips the ratio of trainer to sampler, and at temperature "
            f"{cfg.temperature:g} that is not 1 to begin with: set temperature=1.0 or "
            "match_sampling=true."
        )
    if cfg.substeps > 1 and not cfg.clips:
        found.append(
            f"substeps={cfg.substeps} reuses each batch, and {cfg.loss_fn} does not limit the "
            "change of the policy: set loss_fn=ppo."
        )
    if "kl_runaway" in cfg.stop_on and not cfg.measures_kl:
        found.append(
            "kl_runaway in stop_on has no effect, because no KL is measured: set "
            "kl_penalty_coef=0.05, or kl_samples=16."
        )
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


def _idle(cfg: RLConfig) -> Iterator[tuple[str, str]]:
    """Settings that have no effect beside the others, and why."""
    clips = f"{cfg.loss_fn} does not clip: set loss_fn=ppo."
    measured = "no KL is measured: set kl_penalty_coef=0.05, or kl_samples=16."
    in_loss = (cfg.kl_loss_coef > 0, "set kl_loss_coef=0.01.")
    corrected = (cfg.truncated_importance is not None, "set truncated_importance=2.0.")
    masks = (cfg.importance_rule == "mask", "set importance_rule=mask.")
    effects = {
        "clip_low_threshold": (cfg.clips, clips),
        "clip_high_threshold": (cfg.clips, clips),
        "dro_beta": (cfg.loss_fn == "dro", "set loss_fn=dro."),
        "kl_reference": (cfg.measures_kl, measured),
        "kl_limit": (cfg.measures_kl, measured),
        "kl_samples": (cfg.kl_penalty_coef == 0, "with kl_penalty_coef, all answers are measured."),
        "kl_loss": in_loss,
        "kl_loss_ratio": in_loss,
        "importance_level": corrected,
        "importance_rule": corrected,
        "importance_low": corrected if cfg.truncated_importance is None else masks,
        **dict.fromkeys(_OF_LORA, (cfg.start_from is None, "start_from has its own.")),
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
        "mismatch_limit": (
            cfg.temperature == 1.0 or cfg.matches_sampling,
            "it is only checked at temperature=1.0 or with match_sampling=true.",
        ),
        "temperature_end": (
            cfg.temperature_schedule != "constant",
            "set temperature_schedule=linear.",
        ),
        "lr_end": (cfg.lr_schedule != "constant", "set lr_schedule=linear."),
        "overlong_limit": (cfg.overlong_buffer > 0, "set overlong_buffer."),
    }
    for name, (has_effect, why) in effects.items():
        if not has_effect:
            yield name, why
