"""The settings of a run."""

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from typing import Any, Self

from mint.config_error import ConfigError as ConfigError
from mint.config_error import closest
from mint.rl.settings import fields
from mint.rl.settings.checks import conflicts, suspicious
from mint.settings import read_variables, reporting, variables

PREFIX = "MINT_RL_"
CLIPPED = ("ppo", "cispo", "gspo")
SHORT_NAMES = {
    "model": "base_model",
    "batch": "batch_size",
    "groups_per_batch": "batch_size",
    "group": "group_size",
    "lr": "learning_rate",
}
"""MinT's names for some settings: read, assigned and passed like the long ones."""

_OF_THE_RUN = {"steps", "run_dir", "checkpoint_every", "keep_every", "service_timeout"}
_OF_THE_RUN |= {"log_rewards", "save_reward_analysis", "sinks"}
"""Settings that may change when a run is continued."""


class RLConfig(  # pydantic lists the fields of the last class first
    fields.LoggingSettings,
    fields.EvaluationSettings,
    fields.TrainingSettings,
    fields.SamplingSettings,
    fields.AlgorithmSettings,
    fields.ModelSettings,
):
    """The settings of a run. Wrong names and values fail where they are typed.

    >>> cfg = RLConfig(group_size=8)
    >>> cfg.batch, cfg.group, cfg.lr
    (8, 8, 2e-05)
    >>> cfg.stpes = 3
    Traceback (most recent call last):
    mint.rl.ConfigError: There is no setting 'stpes'. Did you mean 'steps'?
    """

    def __init__(self, **settings: Any) -> None:
        with reporting(_names()):
            super().__init__(**{SHORT_NAMES.get(name, name): settings[name] for name in settings})
        self.check()

    def __setattr__(self, name: str, value: Any) -> None:
        with reporting(_names()):
            super().__setattr__(SHORT_NAMES.get(name, name), value)

    def __getattr__(self, name: str) -> Any:
        if name in SHORT_NAMES:
            return getattr(self, SHORT_NAMES[name])
        raise AttributeError(f"RLConfig has no setting {name!r}.{closest(name, _names())}")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with changes, checked like a new config."""
        return type(self)(**{**self.model_dump(), **(update or {})})

    @classmethod
    def from_env(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Return the defaults, with what the environment sets: ``MINT_RL_`` and a setting's name.

        >>> RLConfig.from_env({"MINT_RL_STEPS": "20", "MINT_LORA_RANK": "8"}).steps
        20
        """
        given = os.environ if environment is None else environment
        known = variables(cls, PREFIX)
        for name in given:
            if name.startswith(PREFIX) and name not in known.values():
                hint = closest(name, known.values())
                warnings.warn(f"{name} is not a setting.{hint}", stacklevel=2)
        cfg = cls()
        with reporting(known, lambda name: f"{known[name]}: "):
            for name, value in read_variables(cls, PREFIX, given).items():
                cls.__pydantic_validator__.validate_assignment(cfg, name, value, strict=False)
        cfg.check()
        return cfg

    def check(self) -> None:
        """Check combinations of settings. Raises ConfigError."""
        for conflict in conflicts(self):
            raise ConfigError(conflict)

    def notes(self, converses: bool | None = None) -> list[str]:
        """Warn about suspicious settings, for prompts or for an environment, which converses."""
        return suspicious(self, converses)

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
    def entropy_to_compare(self) -> str | None:
        """The metric of entropy that a temperature schedule does not change, if there is one."""
        if self.temperature_schedule == "constant":
            return "policy/entropy"
        at_one = self.measures_entropy and not self.matches_sampling
        return "train/entropy" if at_one else None

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
        return "constant" if self.advantage == "dr_grpo" else self.aggregation

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for config.yaml."""
        return self.model_dump(mode="json")

    def differences(self, other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Return the settings that differ from another run's and that prevent resuming it."""
        return {
            key: (value, other[key])
            for key, value in self._identity().items()
            if key in other and other[key] != value
        }

    def fingerprint(self) -> str:
        """Eight letters that identify the run, independent of its number of steps."""
        return short_hash(json.dumps(self._identity(), sort_keys=True))

    def _identity(self) -> dict[str, Any]:
        return {key: value for key, value in self.as_dict().items() if key not in _OF_THE_RUN}


def short_hash(text: str) -> str:
    """Return a hash of eight characters, for the names of runs."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _names() -> list[str]:
    return [*RLConfig.model_fields, *SHORT_NAMES]
