"""Loss settings that only a mint service has, and the error for a service that lacks them.

A service acknowledges each of these settings in its answers, so a run notices one that ignores it.
"""

from collections.abc import Sequence

import mint
from mint import types
from mint.config_error import ConfigError
from mint.rl.settings.config import RLConfig

Settings = dict[str, float | str]
_METRICS = {
    "kl_loss_coef": "kl_loss:sum",
    "entropy_coef": "entropy_loss:sum",
    "match_sampling": "temperature:mean",
    "top_k": "kept_tokens:sum",
}
"""The metric by which a service acknowledges each setting."""


def extensions(cfg: RLConfig, temperature: float = 1.0) -> Settings:
    """Return the keys of ``loss_fn_config`` that only a mint service knows.

    >>> extensions(RLConfig(kl_loss_coef=0.01))
    {'kl_k3': 0.01}
    >>> extensions(RLConfig(match_sampling=True), temperature=0.8)
    {'temperature': 0.8}
    """
    found: Settings = {}
    if cfg.kl_loss_coef > 0:
        found[f"kl_{cfg.kl_loss}"] = cfg.kl_loss_coef
        if cfg.kl_loss_ratio:
            found["kl_ratio"] = 1.0
    if cfg.entropy_coef > 0:
        found["entropy_coef"] = cfg.entropy_coef
    if cfg.measures_entropy:
        found["entropy"] = 1.0
    if cfg.matches_sampling and temperature != 1.0:
        found["temperature"] = temperature
    return found


def wanted(cfg: RLConfig, temperature: float = 1.0) -> list[str]:
    """Return the settings of the loop that need a mint service."""
    asked = {
        "kl_loss_coef": cfg.kl_loss_coef > 0,
        "entropy_coef": cfg.entropy_coef > 0,
        "measure_entropy": cfg.measure_entropy,
        "match_sampling": cfg.match_sampling and temperature != 1.0,
        "top_k": cfg.top_k > 0,
    }
    return [name for name, needs_mint in asked.items() if needs_mint]


def require_known(
    cfg: RLConfig, answers: Sequence[types.ForwardBackwardOutput], temperature: float = 1.0
) -> None:
    """Raise ConfigError when a service has ignored a setting that only some services have."""
    for name in wanted(cfg, temperature):
        for answer in answers:
            entropies = all("entropy" in output for output in answer.loss_fn_outputs)
            if not (entropies if name == "measure_entropy" else _METRICS[name] in answer.metrics):
                raise _unknown(name, "ignores it")


def require_accepted(
    cfg: RLConfig, error: mint.RequestFailedError, temperature: float = 1.0
) -> None:
    """Raise ConfigError when a service has rejected settings that only a mint service has."""
    names = wanted(cfg, temperature)
    if names and error.category is types.RequestErrorCategory.User:
        raise _unknown(", ".join(names), f"rejects it: {error}") from error


def _unknown(name: str, what: str) -> ConfigError:
    return ConfigError(
        f"{name} needs a mint service, and this one {what}. Train on a service started by "
        f"`mint serve`, or leave {name} out."
    )
