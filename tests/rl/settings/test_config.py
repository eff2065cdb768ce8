"""Settings: the documented defaults, MinT's short names, and mistakes that fail where typed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mint.rl import ConfigError, RLConfig
from mint.rl.settings.config import PREFIX, SHORT_NAMES
from mint.settings import variables
from tests.settings_table import table

PAGE = Path(__file__).resolve().parents[3] / "docs" / "rl.md"
DOCUMENTED: dict[str, Any] = {
    "loss_fn": "importance_sampling",
    "group_size": 4,
    "batch_size": 8,
    "groups_per_batch": 8,
    "max_tokens": 16,
    "learning_rate": 2e-5,
    "temperature": 0.8,
    "kl_penalty_coef": 0.0,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "base_model": "Qwen/Qwen3-0.6B",
    "rank": 16,
    "train_mlp": True,
    "train_attn": True,
    "train_unembed": True,
}


@pytest.mark.parametrize(("name", "value"), DOCUMENTED.items())
def test_defaults_are_the_documented_ones(name: str, value: Any) -> None:
    assert getattr(RLConfig(), name) == value
    assert getattr(RLConfig.from_env({}), name) == value


@pytest.mark.parametrize("short", sorted(SHORT_NAMES))
def test_short_names_read_assign_and_pass_the_long_setting(short: str) -> None:
    long = SHORT_NAMES[short]
    value = "some/model" if short == "model" else 7
    cfg = RLConfig(**{short: value})
    assert getattr(cfg, long) == getattr(cfg, short) == value

    other = RLConfig()
    setattr(other, short, value)
    assert getattr(other, long) == value


def test_the_environment_sets_everything() -> None:
    cfg = RLConfig.from_env(
        {
            "MINT_BASE_MODEL": "some/model",
            "MINT_LORA_RANK": "8",
            "MINT_RL_STEPS": "20",
            "MINT_RL_BATCH": "10",
            "MINT_RL_GROUP": "6",
            "MINT_RL_LR": "1e-4",
            "MINT_RL_MAX_TOKENS": "32",
            "MINT_RL_TEMPERATURE": "1.0",
            "MINT_RL_BETAS": "0.8,0.9",
            "MINT_RL_CURRICULUM": "true",
            "MINT_RL_REWARD_WEIGHTS": "format=0.3,correct=0.7",
            "MINT_RL_STOP_ON": "no_signal,truncation",
            "MINT_RL_TRUNCATED_IMPORTANCE": "2",
            "PATH": "/bin",
        }
    )
    assert (cfg.model, cfg.rank, cfg.steps, cfg.batch, cfg.group) == ("some/model", 8, 20, 10, 6)
    assert (cfg.lr, cfg.max_tokens, cfg.temperature) == (1e-4, 32, 1.0)
    assert (cfg.betas, cfg.curriculum, cfg.truncated_importance) == ((0.8, 0.9), True, 2.0)
    assert cfg.reward_weights == {"format": 0.3, "correct": 0.7}
    assert cfg.stop_on == ("no_signal", "truncation")


def test_the_environment_can_say_none_and_a_new_line() -> None:
    cfg = RLConfig.from_env({"MINT_RL_SEED": "none", "MINT_RL_STOP": "\n,Q: "})
    assert (cfg.seed, cfg.stop) == (None, ("\n", "Q:"))
    assert RLConfig.from_env({"MINT_RL_STOP_ON": "truncation, no_signal"}).stop_on == (
        *("truncation", "no_signal"),
    )
    with pytest.raises(ConfigError, match="MINT_RL_STEPS"):
        RLConfig.from_env({"MINT_RL_STEPS": "none"})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loss_fn": "pppo"}, "Did you mean 'ppo'"),
        ({"tempreature": 1.0}, "Did you mean 'temperature'"),
        ({"group_size": 1}, "must be 2 or more"),
        ({"learning_rate": float("nan")}, "finite"),
        ({"steps": 1.5}, "an integer"),
        ({"steps": True}, "an integer"),
        ({"curriculum": 1}, "true or false"),
        ({"learning_rate": "0.5"}, "learning_rate is '0.5'; it must be a number."),
        ({"stop": "Q:"}, "stop is 'Q:'; it must be a list of strings."),
        ({"stop_on": ["no_signal", "trunction"]}, "Did you mean 'truncation'"),
        ({"steps": 0, "rank": "8"}, "it must be an integer.\nsteps is 0; it must be 1 or more."),
        ({"rank": None}, "an integer"),
        ({"betas": (0.9,)}, "2 values"),
        ({"temperature": 0.0}, "answers of a group would be equal"),
        ({"mini_batches": 9}, "mini_batches"),
        ({"temperature_schedule": "linear"}, "temperature_end"),
        ({"reward_weights_end": {"a": 1.0}}, "same names"),
        ({"advantage": "dr_grpo", "aggregation": "token"}, "dr_grpo"),
        ({"eval_samples": 4}, "eval_temperature"),
        ({"overlong_buffer": 32}, "overlong_buffer"),
        ({"importance_rule": "mask", "truncated_importance": 0.9}, "truncated_importance=0.9, wi"),
        (
            {"importance_rule": "mask", "truncated_importance": 2.0, "importance_low": 1.1},
            "from importance_low=1.1",
        ),
        ({"loss_fn": "ppo", "clip_high_threshold": 0.28}, "must be 1 or more"),
        ({"loss_fn": "ppo", "clip_low_threshold": 1.2}, "must be 1 or less"),
        ({"loss_fn": "cispo", "clip_low_threshold": -0.2}, "must be 0 or more"),
        (
            {"reward_weights": {"format": "much"}},
            "reward_weights.format is 'much'; it must be",
        ),
        (
            {"reward_weights": {"format": None}},
            "reward_weights.format is None; it must be",
        ),
    ],
)
def test_an_invalid_setting_fails_where_it_is_assigned_and_says_what_is_valid(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        RLConfig(**settings)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("MINT_RL_STEPS", "three", "must be an integer"),
        ("MINT_RL_STEPS", "0", "must be 1 or more"),
        ("MINT_RL_CURRICULUM", "perhaps", "must be true or false"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(
    variable: str, value: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as error:
        RLConfig.from_env({variable: value})
    assert variable in str(error.value)


def test_an_unknown_variable_is_reported_but_not_an_error() -> None:
    with pytest.warns(UserWarning, match="Did you mean 'MINT_RL_STEPS'"):
        assert RLConfig.from_env({"MINT_RL_STPES": "3"}) == RLConfig()


def test_a_mistyped_assignment_fails_and_changes_nothing() -> None:
    cfg = RLConfig()
    with pytest.raises(ConfigError, match="Did you mean 'steps'"):
        cfg.stpes = 3
    with pytest.raises(ConfigError, match="must be 1 or more"):
        cfg.steps = -1
    assert cfg == RLConfig()


def test_a_copy_with_changes_is_checked_too() -> None:
    cfg = RLConfig(rank=8)
    assert cfg.model_copy(update={"steps": 9}) == RLConfig(rank=8, steps=9)
    with pytest.raises(ConfigError):
        cfg.model_copy(update={"steps": 0})


def test_every_setting_has_a_sentence_and_a_variable_of_its_own() -> None:
    fields = RLConfig.model_fields
    assert all(field.description for field in fields.values())
    assert len(set(variables(RLConfig, PREFIX).values())) == len(fields)


def test_the_page_has_the_table_of_settings() -> None:
    defaults = {name: repr(field.default) for name, field in RLConfig.model_fields.items()}
    rendered = table(RLConfig, PREFIX, defaults, "when to change it")
    assert rendered in PAGE.read_text(), f"write this into docs/rl.md:\n{rendered}"


def test_more_steps_are_the_same_run_and_another_rate_is_not() -> None:
    cfg = RLConfig()
    assert RLConfig(steps=50).fingerprint() == cfg.fingerprint()
    assert RLConfig(learning_rate=1e-4).fingerprint() != cfg.fingerprint()
    assert RLConfig(rank=8).differences(cfg.as_dict()) == {"rank": (8, 16)}


def test_suspicious_settings_are_reported() -> None:
    assert RLConfig().notes() == []
    assert "temperature=1.0" in RLConfig(loss_fn="ppo").notes()[0]
    assert RLConfig(loss_fn="ppo", temperature=1.0, substeps=2).notes() == []
    cooling = {"temperature": 1.0, "temperature_schedule": "linear", "temperature_end": 0.6}
    assert "at temperature 1 to 0.6" in RLConfig(loss_fn="ppo", **cooling).notes()[0]
    assert RLConfig(loss_fn="ppo", match_sampling=True, **cooling).notes() == []
    assert "loss_fn=ppo" in RLConfig(substeps=2).notes()[0]
    sampled = RLConfig(eval_samples=4, eval_temperature=0.8).notes()
    assert [note.split()[0] for note in sampled] == ["eval_samples", "eval_temperature"]
    unchecked = RLConfig(stop_on=("kl_runaway", "reward_hacking", "mismatch", "truncation")).notes()
    assert [note.split(": ")[0] for note in unchecked] == [
        f"{name} in stop_on has no effect" for name in ("kl_runaway", "reward_hacking", "mismatch")
    ]
    assert [note.rstrip(".").split()[-1] for note in unchecked] == [
        "kl_samples=16",
        "eval_every=10",
        "match_sampling=true",
    ]
    stops = {"stop_on": ("kl_runaway", "reward_hacking", "mismatch"), "temperature": 1.0}
    assert RLConfig(kl_samples=16, eval_every=5, holdout_fraction=0.1, **stops).notes() == []
    begun = RLConfig(start_from="tinker://a/weights/b", kl_penalty_coef=0.1)
    assert (
        f"The KL is measured against {begun.base_model}, not against start_from" in begun.notes()[0]
    )
    begun.kl_reference = "start"
    assert begun.notes() == []


@pytest.mark.parametrize(
    ("settings", "idle", "remedy"),
    [
        ({"clip_high_threshold": 1.3}, "clip_high_threshold", "loss_fn=ppo"),
        ({"loss_fn": "dro", "clip_low_threshold": 0.7}, "clip_low_threshold", "loss_fn=ppo"),
        ({"dro_beta": 0.1}, "dro_beta", "loss_fn=dro"),
        ({"kl_reference": "tinker://a/weights/b"}, "kl_reference", "kl_penalty_coef=0.05"),
        ({"temperature_end": 0.5}, "temperature_end", "temperature_schedule=linear"),
        ({"kl_limit": 0.1}, "kl_limit", "kl_samples=16"),
        ({"kl_samples": 8, "kl_penalty_coef": 0.1}, "kl_samples", "all answers are measured"),
        ({"start_from": "tinker://a/weights/b", "rank": 8}, "rank", "start_from"),
        ({"start_from": "tinker://a/weights/b", "train_mlp": False}, "train_mlp", "start_from"),
        ({"holdout_size": 8}, "holdout_size", "eval_every=10"),
        ({"mismatch_limit": 0.5}, "mismatch_limit", "temperature=1.0"),
        ({"match_sampling": True, "temperature": 1.0}, "match_sampling", "temperature=1.0"),
        ({"match_sampling": True, "top_k": 9}, "match_sampling", "top_k"),
        ({"measure_entropy": True, "entropy_coef": 0.1}, "measure_entropy", "entropy_coef"),
        ({"lr_end": 1e-6}, "lr_end", "lr_schedule=linear"),
        ({"overlong_limit": 0.5}, "overlong_limit", "overlong_buffer"),
        (
            {"temperature_schedule": "linear", "temperature_end": 0.5, "entropy_floor": 0.2},
            "entropy_floor",
            "measure_entropy=true",
        ),
    ],
)
def test_a_setting_without_effect_is_reported_with_what_it_needs(
    settings: dict[str, Any], idle: str, remedy: str
) -> None:
    (note,) = RLConfig(**settings).notes()
    assert note.startswith(f"{idle} has no effect")
    assert remedy in note


@pytest.mark.parametrize(
    ("settings", "converses", "idle"),
    [
        ({"discount": 0.9}, False, ["discount"]),
        ({"max_turns": 3, "context_length": 99}, False, ["max_turns", "context_length"]),
        ({"rollout_timeout": 9.0, "reward_workers": 4}, False, ["rollout_timeout"]),
        ({"rollout_timeout": 9.0, "reward_workers": 4}, True, ["reward_workers"]),
        ({"discount": 0.9, "reward_workers": 4}, None, []),
    ],
)
def test_settings_without_effect_on_this_kind_of_task_are_reported(
    settings: dict[str, Any], converses: bool | None, idle: list[str]
) -> None:
    notes = RLConfig(**settings).notes(converses)
    assert [note.partition(" has no effect: ")[0] for note in notes] == idle
