"""The settings of the training command, in groups. RLConfig owns its fields and their defaults."""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from typing import Any, get_type_hints

from mint.rl.settings.config import RLConfig
from mint.rl.settings.config import options as rl_options
from mint.rl.settings.options import option

FIELDS: dict[str, tuple[str, ...]] = {
    "model": ("base_model", "rank", "train_mlp", "train_attn", "train_unembed", "start_from"),
    "algorithm": (
        *("loss_fn", "clip_low_threshold", "clip_high_threshold", "dro_beta"),
        *("advantage", "aggregation", "discount", "kl_penalty_coef", "kl_reference", "kl_samples"),
        *("kl_loss_coef", "kl_loss", "kl_loss_ratio", "entropy_coef", "measure_entropy"),
        *("substeps", "mini_batches", "stream_mini_batches", "max_staleness", "staleness_rule"),
        *("truncated_importance", "importance_level", "importance_rule", "importance_low"),
        *("mask_truncated", "overlong_buffer", "overlong_limit"),
    ),
    "task": (),
    "sampling": (
        *("group_size", "max_tokens", "temperature", "match_sampling", "stop"),
        *("top_k", "top_p", "min_p"),
        *("temperature_schedule", "temperature_end", "max_refills"),
        *("max_turns", "rollout_timeout", "context_length"),
    ),
    "training": (
        *("steps", "batch_size", "seed", "learning_rate", "lr_schedule", "lr_end", "warmup_steps"),
        *("betas", "eps", "weight_decay", "grad_clip_norm", "data_order", "curriculum"),
        *("log_rewards", "save_reward_analysis"),
        *("reward_weights", "reward_weights_end", "reward_workers", "max_reward_failures"),
        *("checkpoint_every", "keep_every", "service_timeout", "stop_on", "truncation_limit"),
        *("entropy_floor", "kl_limit", "repetition_limit", "length_growth", "mismatch_limit"),
    ),
    "evaluation": (
        *("eval_every", "eval_samples", "eval_temperature"),
        *("holdout_fraction", "holdout_size", "success_threshold"),
    ),
    "logging": ("run_dir", "sinks"),
}
"""Which group each field of RLConfig belongs to."""


@dataclass
class TaskSettings:
    """Settings that the loop does not know: where a task comes from."""

    adapter: str | None = option(None, "the task's class: file.py:Class or package.module:Class")
    arguments: dict[str, Any] = field(
        default_factory=dict,
        metadata={"help": "the arguments of the class, as in task.arguments.task=gym:chain_sum"},
    )


@dataclass
class TrainingSettings:
    """Settings that the command adds to the loop's settings of training."""

    reward_function: str | None = option(
        None,
        "replaces the task's own reward: a name from `mint rewards list`, a function in "
        "src/agent_tunix/rewards.py, file.py:function or package.module:function",
    )


@dataclass
class LoggingSettings:
    """Settings of what a run prints."""

    samples: int = option(0, "number of answers to print per step, with prompt and reward", low=0)


OWN: dict[str, type] = {
    "task": TaskSettings,
    "training": TrainingSettings,
    "logging": LoggingSettings,
}
WEIGHTS = ("training.reward_weights", "training.reward_weights_end")
OPEN = ("task.arguments", *WEIGHTS)
"""Settings that are mappings: any key may stand under them."""

Setting = tuple[Field[Any], Any]


def settings() -> dict[str, dict[str, Setting]]:
    """Every setting by its group and name: its field and its type.

    >>> settings()["sampling"]["temperature"][0].default
    0.8
    """
    known = rl_options()
    found = {}
    for group, names in FIELDS.items():
        own = OWN.get(group)
        hints = get_type_hints(own) if own else {}
        found[group] = {each.name: (each, hints[each.name]) for each in fields(own)} if own else {}
        found[group] |= {name: known[name] for name in names}
    return found


def defaults() -> dict[str, dict[str, Any]]:
    """Return the value of every setting that no file and no command line sets.

    The loop's are those of RLConfig, and of the environment where it sets them (MINT_BASE_MODEL,
    MINT_RL_STEPS).
    """
    loop = RLConfig.from_env().as_dict()
    return {
        group: {name: loop.get(name, _default(each)) for name, (each, _) in own.items()}
        for group, own in settings().items()
    }


def _default(each: Field[Any]) -> Any:
    return each.default_factory() if callable(each.default_factory) else each.default
