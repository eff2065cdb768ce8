"""Every setting of the loop: one place for each default, and a sentence on when to change it."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, fields
from typing import Any, get_type_hints

from mint.rl.settings.conflicts import conflicts
from mint.rl.settings.notes import suspicious
from mint.rl.settings.options import ConfigError, checked, closest, option, parsed
from mint.watch.sinks import SINKS

LOSSES = ("importance_sampling", "ppo", "cispo", "dro", "gspo")
CLIPPED = ("ppo", "cispo", "gspo")
ADVANTAGES = ("centre", "standardise", "leave_one_out", "dr_grpo", "batch", "global")
ESTIMATORS = ("k1", "k2", "k3")
AGGREGATIONS = ("sum", "token", "sequence", "constant")
SHAPES = ("constant", "linear", "cosine")
GUARDS = (
    *("no_signal", "reward_hacking", "length_runaway", "component_runaway", "masked_loss"),
    *("truncation", "entropy_collapse", "kl_runaway", "repetition", "reward_errors"),
    *("not_finite", "mismatch"),
)
SHORT_NAMES = {
    "model": "base_model",
    "batch": "batch_size",
    "groups_per_batch": "batch_size",
    "group": "group_size",
    "lr": "learning_rate",
}
"""MinT's names for some settings: read, assigned and passed like the long ones."""

_OF_THE_RUN = (
    *("steps", "run_dir", "checkpoint_every", "keep_every", "service_timeout"),
    *("log_rewards", "save_reward_analysis", "sinks"),
)
"""Settings that may change when a run is continued."""


@dataclass(init=False)
class RLConfig:
    """The settings of a run. Wrong names and values fail where they are typed.

    >>> cfg = RLConfig(group_size=8)
    >>> cfg.batch, cfg.group, cfg.lr
    (8, 8, 2e-05)
    >>> cfg.stpes = 3
    Traceback (most recent call last):
    mint.rl.ConfigError: RLConfig has no setting 'stpes'. Did you mean 'steps'?
    """

    # What is trained
    base_model: str = option("Qwen/Qwen3-0.6B", "the model to train", env="MINT_BASE_MODEL")
    rank: int = option(16, "LoRA rank", low=1, env="MINT_LORA_RANK")
    train_mlp: bool = option(True, "train the MLP layers")
    train_attn: bool = option(True, "train the attention layers")
    train_unembed: bool = option(True, "train the output layer")
    start_from: str | None = option(None, "a checkpoint to begin from, as after SFT")
    seed: int | None = option(
        0, "seed of the data order and of sampling; none makes both random", low=0
    )

    # How much
    steps: int = option(5, "training steps", low=1)
    batch_size: int = option(8, "prompts per step", low=1, env="MINT_RL_BATCH")
    group_size: int = option(4, "answers per prompt: 4 to 16", low=2, env="MINT_RL_GROUP")
    max_tokens: int = option(16, "maximum length of an answer: math 16, chat 128, code 256", low=1)
    temperature: float = option(
        0.8, "sampling temperature: 0.7 to 1.0; 1.0 for clipped losses", low=0
    )
    match_sampling: bool = option(
        False, "train on logprobs at the sampling temperature: ratios start at 1 at any temperature"
    )
    stop: tuple[str, ...] = option(
        (), "strings that end an answer, besides the model's end-of-turn token"
    )
    top_k: int = option(
        0,
        "sample from the k likeliest tokens, and train on logprobs among these; 0 is off",
        low=0,
        high=1024,
    )
    top_p: float = option(
        1.0, "with top_k: the likeliest tokens that have this probability together", above=0, high=1
    )
    min_p: float = option(
        0.0, "with top_k: tokens at least this share as likely as the likeliest", low=0, high=1
    )

    # The loss and its optimizer
    loss_fn: str = option(
        "importance_sampling",
        "ppo, cispo or gspo when batches are used twice or training is unstable",
        choices=LOSSES,
    )
    clip_low_threshold: float | None = option(
        None, "lower clip of the ratio; none is the loss's default", low=0, high=1
    )
    clip_high_threshold: float | None = option(
        None, "upper clip of the ratio; above 1.2 explores more", low=1
    )
    dro_beta: float | None = option(None, "for dro: the weight of its penalty", low=0)
    learning_rate: float = option(2e-5, "1e-5 to 4e-5 for large models", low=0, env="MINT_RL_LR")
    betas: tuple[float, float] = option((0.9, 0.999), "Adam's decay rates", low=0, high=0.999999)
    eps: float = option(1e-8, "Adam's epsilon", low=0)
    weight_decay: float = option(0.0, "L2 regularisation", low=0)
    grad_clip_norm: float = option(
        0.0, "1.0 when single batches destabilise the run; 0 is off", low=0
    )

    # From rewards to the loss
    advantage: str = option(
        "centre",
        "leave_one_out for small groups, standardise or batch for rewards of mixed scale, "
        "dr_grpo against growing length, global to compare all answers of a step",
        choices=ADVANTAGES,
    )
    aggregation: str = option(
        "sum",
        "sequence weights answers equally, token weights tokens equally, constant counters "
        "growing length; sum is the service's default",
        choices=AGGREGATIONS,
    )
    discount: float = option(
        1.0, "discount of later rewards, for environments with rewards per turn", low=0, high=1
    )
    kl_penalty_coef: float = option(0.0, "0.01 to 0.1 to stay near a reference", low=0)
    kl_loss_coef: float = option(0.0, "0.001 to 0.04 for a KL term in the loss instead", low=0)
    kl_loss: str = option(
        "k3", "k2 for the gradient of the KL itself; k1 with kl_loss_ratio only", choices=ESTIMATORS
    )
    kl_loss_ratio: bool = option(False, "weight that term by the importance ratio: unbiased")
    entropy_coef: float = option(
        0.0, "0.001 to 0.01 for an entropy bonus, when answers become too similar too early", low=0
    )
    measure_entropy: bool = option(False, "report the exact entropy, also per token")
    kl_reference: str = option(
        "base",
        "the reference model: base, start (what the run started from), or a checkpoint's path",
    )
    kl_samples: int = option(
        0, "answers per step on which the KL is measured without a penalty, for kl_runaway", low=0
    )
    reward_weights: dict[str, float] | None = option(  # noqa: RUF009
        None, "weights of the reward's components; replaces its own total"
    )
    reward_weights_end: dict[str, float] | None = option(  # noqa: RUF009
        None, "the weights at the last step, to move from easy components to the real goal"
    )

    # How a batch is used
    substeps: int = option(1, "passes over a batch; above 1 with a clipped loss only", low=1)
    mini_batches: int = option(
        1, "number of parts of a batch, each with its own optimizer step", low=1
    )
    stream_mini_batches: bool = option(
        False, "train on each mini-batch as soon as it is sampled, while the others are sampled"
    )
    max_staleness: int = option(
        0,
        "1 samples the next batch while this one is trained on; N samples up to N batches ahead, "
        "for answers of uneven length: up to N steps off-policy",
        low=0,
    )
    staleness_rule: str = option(
        "drop",
        "correct also trains on older answers, weighted by truncated_importance",
        choices=("drop", "correct"),
    )
    truncated_importance: float | None = option(
        None, "2.0 to correct for a sampler that differs from the trainer", above=0
    )
    importance_level: str = option(
        "token",
        "sequence or geometric weights whole answers by the product or the geometric mean of "
        "their ratios",
        choices=("token", "sequence", "geometric"),
    )
    importance_rule: str = option(
        "truncate",
        "mask excludes tokens or answers beyond the limit instead of reducing their weight",
        choices=("truncate", "mask"),
    )
    importance_low: float = option(0.0, "the smallest ratio that importance_rule=mask keeps", low=0)
    max_refills: int = option(0, "rounds of new prompts that replace groups without signal", low=0)

    # Length
    mask_truncated: bool = option(
        False, "exclude truncated answers, when their rewards are misleading"
    )
    overlong_buffer: int = option(
        0, "tokens before max_tokens over which length is penalised", low=0
    )
    overlong_limit: float = option(1.0, "the penalty at max_tokens", low=0)

    # Schedules
    temperature_schedule: str = option("constant", "explore early, settle later", choices=SHAPES)
    temperature_end: float | None = option(None, "the temperature at the last step", low=0)
    lr_schedule: str = option("constant", "linear or cosine for long runs", choices=SHAPES)
    lr_end: float = option(0.0, "the learning rate at the last step of a schedule", low=0)
    warmup_steps: int = option(0, "steps over which the learning rate rises from 0", low=0)

    # Data
    data_order: str = option(
        "auto",
        "first uses the first batch_size samples of each call of build_dataset, shuffled iterates "
        "over all of them; auto is shuffled if every call returns the same samples",
        choices=("auto", "first", "shuffled"),
    )
    curriculum: bool = option(False, "prefer prompts that are just hard enough")
    holdout_fraction: float = option(
        0.0, "share of prompts held out for evaluation", low=0, high=0.9
    )
    holdout_size: int = option(64, "maximum number of prompts to evaluate on", low=1)
    eval_every: int = option(0, "steps between evaluations on the holdout; 0 is off", low=0)
    eval_samples: int = option(1, "answers per holdout prompt: the k of pass@k", low=1)
    eval_temperature: float = option(0.0, "temperature of evaluation; above 0 for pass@k", low=0)
    success_threshold: float = option(1.0, "the smallest reward of a right answer")

    # Agents
    max_turns: int = option(8, "maximum number of model replies per rollout", low=1)
    rollout_timeout: float = option(300.0, "seconds until a rollout is aborted", above=0)
    context_length: int | None = option(None, "maximum number of tokens in a conversation", low=2)

    # The run
    run_dir: str | None = option(None, "the run directory; none creates one under runs/")
    checkpoint_every: int = option(5, "steps between checkpoints", low=1)
    keep_every: int = option(0, "also keep the checkpoint of every N-th step, to bisect", low=0)
    service_timeout: float = option(60.0, "seconds to wait for a lost service to return", above=0)
    log_rewards: bool = option(False, "print reward statistics of every batch and of the run")
    save_reward_analysis: bool = option(False, "write a reward analysis at the end of the run")
    sinks: tuple[str, ...] = option(
        (), "other destinations for metrics, such as tensorboard", choices=SINKS
    )
    reward_workers: int = option(0, "threads for slow rewards; 0 uses the main thread", low=0)

    # Guard rails
    stop_on: tuple[str, ...] = option(
        ("not_finite", "masked_loss"), "findings that end the run", choices=GUARDS
    )
    max_reward_failures: float = option(
        0.2, "share of rewards that may fail before the run ends", low=0, high=1
    )
    truncation_limit: float = option(
        0.5, "share of truncated answers that triggers a warning", low=0, high=1
    )
    entropy_floor: float = option(
        0.1, "warn when entropy falls below this share of its initial value", low=0, high=1
    )
    kl_limit: float = option(0.5, "k3 per token that triggers a warning", above=0)
    repetition_limit: float = option(
        0.5, "share of repeated 4-grams that triggers a warning", low=0, high=1
    )
    length_growth: float = option(
        2.0, "growth of answers, without more success, that triggers a warning", above=1
    )
    mismatch_limit: float = option(
        0.05, "mean difference of logprobs that triggers a warning", above=0
    )

    def __init__(self, **settings: Any) -> None:
        for each in fields(self):
            object.__setattr__(self, each.name, each.default)
        for name, value in settings.items():
            setattr(self, name, value)
        self.check()

    def __setattr__(self, name: str, value: Any) -> None:
        known = options()
        long = SHORT_NAMES.get(name, name)
        if long not in known:
            hint = closest(name, [*known, *SHORT_NAMES])
            raise ConfigError(f"RLConfig has no setting {name!r}.{hint}")
        object.__setattr__(self, long, checked(*known[long], value))

    def __getattr__(self, name: str) -> Any:
        if name in SHORT_NAMES:
            return getattr(self, SHORT_NAMES[name])
        hint = closest(name, [*options(), *SHORT_NAMES])
        raise AttributeError(f"RLConfig has no setting {name!r}.{hint}")

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None) -> RLConfig:
        """The defaults, with what the environment sets.

        Every setting has a variable: ``MINT_RL_`` and its name; see :func:`variables`.

        >>> RLConfig.from_env({"MINT_RL_STEPS": "20", "MINT_LORA_RANK": "8"}).steps
        20
        """
        given = dict(os.environ if environment is None else environment)
        known = variables()
        for name in given:
            if name.startswith("MINT_RL_") and name not in known:
                warnings.warn(f"{name} is not a setting.{closest(name, known)}", stacklevel=2)
        settings = {}
        for variable, name in known.items():
            if given.get(variable):
                each, kind = options()[name]
                settings[name] = parsed(each, kind, given[variable], variable)
        return cls(**settings)

    def check(self) -> None:
        """Check what single settings cannot know of each other."""
        for conflict in conflicts(self):
            raise ConfigError(conflict)

    def notes(self) -> list[str]:
        """Warn about suspicious settings."""
        changed = [n for n, (each, _) in options().items() if getattr(self, n) != each.default]
        return suspicious(self, changed)

    @property
    def clips(self) -> bool:
        """Whether the loss has a bound on the ratio of trainer to sampler."""
        return self.loss_fn in CLIPPED

    @property
    def measures_kl(self) -> bool:
        """Whether answers are compared with a reference."""
        return self.kl_penalty_coef > 0 or self.kl_samples > 0 or self.kl_loss_coef > 0

    @property
    def measures_entropy(self) -> bool:
        """Whether the trainer returns the entropy of every position."""
        return self.measure_entropy or self.entropy_coef > 0

    @property
    def samples_plainly(self) -> bool:
        """Whether sampling is from the model's own distribution, at temperature 1 throughout."""
        heated = self.temperature != 1.0 or self.temperature_schedule != "constant"
        return not heated and self.top_k == 0

    @property
    def matches_sampling(self) -> bool:
        """Whether the trainer's logprobs are those of the distribution that was sampled from."""
        return self.match_sampling or self.top_k > 0

    @property
    def compares_batch(self) -> bool:
        """Whether an answer is compared with all others of a step, and not with its group."""
        return self.advantage == "global"

    @property
    def trains_every_answer(self) -> bool:
        """Whether the loss has a term for answers whose advantage is 0."""
        return self.loss_fn == "dro" or self.kl_loss_coef > 0 or self.entropy_coef > 0

    @property
    def token_weights(self) -> str:
        """The aggregation in effect."""
        return "constant" if self.advantage == "dr_grpo" else self.aggregation

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for config.yaml."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }

    def differences(self, other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Settings in which another run's config differs in a way that makes it another run."""
        mine = {key: value for key, value in self.as_dict().items() if key not in _OF_THE_RUN}
        return {
            key: (value, other[key])
            for key, value in mine.items()
            if key in other and other[key] != value
        }

    def fingerprint(self) -> str:
        """Eight letters that identify the run, independent of its number of steps."""
        mine = {key: value for key, value in self.as_dict().items() if key not in _OF_THE_RUN}
        return hashlib.sha256(json.dumps(mine, sort_keys=True).encode()).hexdigest()[:8]


_OPTIONS: dict[str, tuple[Field[Any], Any]] = {}


def options() -> dict[str, tuple[Field[Any], Any]]:
    """Every setting by its name: its field and its type."""
    if not _OPTIONS:
        kinds = get_type_hints(RLConfig)
        _OPTIONS.update({each.name: (each, kinds[each.name]) for each in fields(RLConfig)})
    return _OPTIONS


def variables() -> dict[str, str]:
    """The environment's variables and the settings they stand for.

    >>> variables()["MINT_RL_GROUP"]
    'group_size'
    """
    found = {}
    for name, (each, _) in options().items():
        found[each.metadata["env"] or f"MINT_RL_{name.upper()}"] = name
    return found


def table() -> str:
    """The settings as a table in Markdown."""
    named = {setting: variable for variable, setting in variables().items()}
    rows = [
        f"| `{name}` | `{each.default!r}` | `{named[name]}` | {each.metadata['help']} |"
        for name, (each, _) in options().items()
    ]
    return "\n".join(
        ["| setting | default | variable | when to change it |", "|---|---|---|---|", *rows]
    )
