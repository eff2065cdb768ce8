"""Every setting of the loop, by the config groups of ``conf/``: default, limits, and when to change
it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from mint.settings import Strings, listed, setting
from mint.watch.sinks import SinkName

LossName = Literal["importance_sampling", "ppo", "cispo", "dro", "gspo"]
Advantage = Literal["centre", "standardise", "leave_one_out", "dr_grpo", "batch", "global"]
Estimator = Literal["k1", "k2", "k3"]
Aggregation = Literal["sum", "token", "sequence", "constant"]
Shape = Literal["constant", "linear", "cosine"]
_RewardGuard = Literal["no_signal", "reward_hacking", "component_runaway", "reward_errors"]
_AnswerGuard = Literal["length_runaway", "truncation", "entropy_collapse", "repetition"]
_PolicyGuard = Literal["kl_runaway", "masked_loss", "not_finite", "mismatch"]
Guard = Literal[_RewardGuard, _AnswerGuard, _PolicyGuard]


def _as_dict(value: Any) -> Any:
    return {str(key): each for key, each in value.items()} if isinstance(value, Mapping) else value


Weights = Annotated[dict[str, float], BeforeValidator(_as_dict)]
DecayRate = Annotated[float, Field(ge=0, le=0.999999)]
Share = Annotated[float, Field(ge=0, le=1)]


class StrictSettings(BaseModel):
    """Settings that take values of their own types only: 1 is not true, and "0.5" not a number."""

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, validate_assignment=True
    )


class ModelSettings(StrictSettings):
    """The base model and its LoRA adapter."""

    base_model: str = setting("Qwen/Qwen3-0.6B", "the model to train", env="MINT_BASE_MODEL")
    rank: int = setting(16, "LoRA rank", ge=1, env="MINT_LORA_RANK")
    train_mlp: bool = setting(True, "train the MLP layers")
    train_attn: bool = setting(True, "train the attention layers")
    train_unembed: bool = setting(True, "train the output layer")
    start_from: str | None = setting(None, "a checkpoint to begin from, as after SFT")


class AlgorithmSettings(StrictSettings):
    """The loss, the advantages, the KL, and how a batch is used."""

    loss_fn: LossName = setting(
        "importance_sampling",
        "ppo, cispo or gspo when batches are used twice or training is unstable",
    )
    clip_low_threshold: Share | None = setting(
        None, "lower clip of the ratio; none is the loss's default"
    )
    clip_high_threshold: float | None = setting(
        None, "upper clip of the ratio; above 1.2 explores more", ge=1
    )
    dro_beta: float | None = setting(None, "for dro: the weight of its penalty", ge=0)
    advantage: Advantage = setting(
        "centre",
        "leave_one_out for small groups, standardise or batch for rewards of mixed scale, "
        "dr_grpo against growing length, global to compare all answers of a step",
    )
    aggregation: Aggregation = setting(
        "sum",
        "sequence weights answers equally, token weights tokens equally, constant counters "
        "growing length; sum is the service's default",
    )
    discount: Share = setting(
        1.0, "discount of later rewards, for environments with rewards per turn"
    )
    kl_penalty_coef: float = setting(0.0, "0.01 to 0.1 to stay near a reference", ge=0)
    kl_reference: str = setting(
        "base",
        "the reference model: base, start (what the run started from), or a checkpoint's path",
    )
    kl_samples: int = setting(
        0, "answers per step on which the KL is measured without a penalty, for kl_runaway", ge=0
    )
    kl_loss_coef: float = setting(0.0, "0.001 to 0.04 for a KL term in the loss instead", ge=0)
    kl_loss: Estimator = setting(
        "k3", "k2 for the gradient of the KL itself; k1 with kl_loss_ratio only"
    )
    kl_loss_ratio: bool = setting(False, "weight that term by the importance ratio: unbiased")
    entropy_coef: float = setting(
        0.0, "0.001 to 0.01 for an entropy bonus, when answers become too similar too early", ge=0
    )
    measure_entropy: bool = setting(False, "report the exact entropy, also per token")
    substeps: int = setting(1, "passes over a batch; above 1 with a clipped loss only", ge=1)
    mini_batches: int = setting(
        1, "number of parts of a batch, each with its own optimizer step", ge=1
    )
    stream_mini_batches: bool = setting(
        False, "train on each mini-batch as soon as it is sampled, while the others are sampled"
    )
    max_staleness: int = setting(
        0,
        "1 samples the next batch while this one is trained on; N samples up to N batches ahead, "
        "for answers of uneven length: up to N steps off-policy",
        ge=0,
    )
    staleness_rule: Literal["drop", "correct"] = setting(
        "drop", "correct also trains on older answers, weighted by truncated_importance"
    )
    truncated_importance: float | None = setting(
        None, "2.0 to correct for a sampler that differs from the trainer", gt=0
    )
    importance_level: Literal["token", "sequence", "geometric"] = setting(
        "token",
        "sequence or geometric weights whole answers by the product or the geometric mean of "
        "their ratios",
    )
    importance_rule: Literal["truncate", "mask"] = setting(
        "truncate",
        "mask excludes tokens or answers beyond the limit instead of reducing their weight",
    )
    importance_low: float = setting(0.0, "the smallest ratio that importance_rule=mask keeps", ge=0)
    mask_truncated: bool = setting(
        False, "exclude truncated answers, when their rewards are misleading"
    )
    overlong_buffer: int = setting(
        0, "tokens before max_tokens over which length is penalised", ge=0
    )
    overlong_limit: float = setting(1.0, "the penalty at max_tokens", ge=0)


class SamplingSettings(StrictSettings):
    """How answers are sampled."""

    group_size: int = setting(4, "answers per prompt: 4 to 16", ge=2, env="MINT_RL_GROUP")
    max_tokens: int = setting(16, "maximum length of an answer: math 16, chat 128, code 256", ge=1)
    temperature: float = setting(
        0.8, "sampling temperature: 0.7 to 1.0; 1.0 for clipped losses", ge=0
    )
    match_sampling: bool = setting(
        False, "train on logprobs at the sampling temperature: ratios start at 1 at any temperature"
    )
    stop: Strings = setting((), "strings that end an answer, besides the model's end-of-turn token")
    top_k: int = setting(
        0,
        "sample from the k likeliest tokens, and train on logprobs among these; 0 is off",
        ge=0,
        le=1024,
    )
    top_p: float = setting(
        1.0, "with top_k: the likeliest tokens that have this probability together", gt=0, le=1
    )
    min_p: Share = setting(0.0, "with top_k: tokens at least this share as likely as the likeliest")
    temperature_schedule: Shape = setting("constant", "explore early, settle later")
    temperature_end: float | None = setting(None, "the temperature at the last step", ge=0)
    max_refills: int = setting(0, "rounds of new prompts that replace groups without signal", ge=0)
    max_turns: int = setting(8, "maximum number of model replies per rollout", ge=1)
    rollout_timeout: float = setting(300.0, "seconds until a rollout is aborted", gt=0)
    context_length: int | None = setting(None, "maximum number of tokens in a conversation", ge=2)


class TrainingSettings(StrictSettings):
    """Steps, the optimizer, the data, rewards, checkpoints and guard rails."""

    steps: int = setting(5, "training steps", ge=1)
    batch_size: int = setting(8, "prompts per step", ge=1, env="MINT_RL_BATCH")
    seed: int | None = setting(
        0, "seed of the data order and of sampling; none makes both random", ge=0
    )
    learning_rate: float = setting(2e-5, "1e-5 to 4e-5 for large models", ge=0, env="MINT_RL_LR")
    lr_schedule: Shape = setting("constant", "linear or cosine for long runs")
    lr_end: float = setting(0.0, "the learning rate at the last step of a schedule", ge=0)
    warmup_steps: int = setting(0, "steps over which the learning rate rises from 0", ge=0)
    betas: Annotated[tuple[DecayRate, DecayRate], listed("numbers", 2)] = setting(
        (0.9, 0.999), "Adam's decay rates"
    )
    eps: float = setting(1e-8, "Adam's epsilon", ge=0)
    weight_decay: float = setting(0.0, "L2 regularisation", ge=0)
    grad_clip_norm: float = setting(
        0.0, "1.0 when single batches destabilise the run; 0 is off", ge=0
    )
    data_order: Literal["auto", "first", "shuffled"] = setting(
        "auto",
        "first uses the first batch_size samples of each call of build_dataset, shuffled iterates "
        "over all of them; auto is shuffled if every call returns the same samples",
    )
    curriculum: bool = setting(False, "prefer prompts that are just hard enough")
    log_rewards: bool = setting(False, "print reward statistics of every batch and of the run")
    save_reward_analysis: bool = setting(False, "write a reward analysis at the end of the run")
    reward_weights: Weights | None = setting(
        None, "weights of the reward's components; replaces its own total"
    )
    reward_weights_end: Weights | None = setting(
        None, "the weights at the last step, to move from easy components to the real goal"
    )
    reward_workers: int = setting(0, "threads for slow rewards; 0 uses the main thread", ge=0)
    max_reward_failures: Share = setting(0.2, "share of rewards that may fail before the run ends")
    checkpoint_every: int = setting(5, "steps between checkpoints", ge=1)
    keep_every: int = setting(0, "also keep the checkpoint of every N-th step, to bisect", ge=0)
    service_timeout: float = setting(60.0, "seconds to wait for a lost service to return", gt=0)
    stop_on: Annotated[tuple[Guard, ...], listed("strings")] = setting(
        ("not_finite", "masked_loss"), "findings that end the run"
    )
    truncation_limit: Share = setting(0.5, "share of truncated answers that triggers a warning")
    entropy_floor: Share = setting(
        0.1, "warn when entropy falls below this share of its initial value"
    )
    kl_limit: float = setting(0.5, "k3 per token that triggers a warning", gt=0)
    repetition_limit: Share = setting(0.5, "share of repeated 4-grams that triggers a warning")
    length_growth: float = setting(
        2.0, "growth of answers, without more success, that triggers a warning", gt=1
    )
    mismatch_limit: float = setting(
        0.05, "mean difference of logprobs that triggers a warning", gt=0
    )


class EvaluationSettings(StrictSettings):
    """Evaluation on held-out prompts."""

    eval_every: int = setting(0, "steps between evaluations on the holdout; 0 is off", ge=0)
    eval_samples: int = setting(1, "answers per holdout prompt: the k of pass@k", ge=1)
    eval_temperature: float = setting(0.0, "temperature of evaluation; above 0 for pass@k", ge=0)
    holdout_fraction: float = setting(0.0, "share of prompts held out for evaluation", ge=0, le=0.9)
    holdout_size: int = setting(64, "maximum number of prompts to evaluate on", ge=1)
    success_threshold: float = setting(1.0, "the smallest reward of a right answer")


class LoggingSettings(StrictSettings):
    """Where a run and its metrics are written."""

    run_dir: str | None = setting(None, "the run directory; none creates one under runs/")
    sinks: Annotated[tuple[SinkName, ...], listed("strings")] = setting(
        (), "other destinations for metrics, such as tensorboard"
    )
