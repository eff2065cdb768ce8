"""Loss settings that mint's service has beside Tinker's, and what a run says where they are not.

A service that knows such a setting answers with a metric of it, so one that ignores it is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence

from mint import types
from mint.rl.config import RLConfig
from mint.rl.options import ConfigError

Settings = dict[str, float | str]
_METRICS = {"kl_loss_coef": "kl_loss:sum"}
"""What a service answers that has done what a setting of the loop asks for."""


def extensions(cfg: RLConfig) -> Settings:
    """Return the keys of ``loss_fn_config`` that only a mint service knows.

    >>> extensions(RLConfig(kl_loss_coef=0.01))
    {'kl_k3': 0.01}
    """
    found: Settings = {}
    if cfg.kl_loss_coef > 0:
        found[f"kl_{cfg.kl_loss}"] = cfg.kl_loss_coef
        if cfg.kl_loss_ratio:
            found["kl_ratio"] = 1.0
    return found


def wanted(cfg: RLConfig) -> list[str]:
    """Return the settings of the loop that need a mint service."""
    return ["kl_loss_coef"] if cfg.kl_loss_coef > 0 else []


def require_known(cfg: RLConfig, answers: Sequence[types.ForwardBackwardOutput]) -> None:
    """Raise ConfigError when a service has ignored a setting that only some services have."""
    for name in wanted(cfg):
        if any(_METRICS[name] not in answer.metrics for answer in answers):
            raise _unknown(name, "ignores it")


def require_accepted(cfg: RLConfig, error: Exception) -> None:
    """Raise ConfigError when a service has rejected a setting that only some services have."""
    if any(key in str(error) for key in extensions(cfg)):
        raise _unknown(", ".join(wanted(cfg)), f"rejects it: {error}") from error


def _unknown(name: str, what: str) -> ConfigError:
    return ConfigError(
        f"{name} needs a mint service, and this one {what}. Train on a service started by "
        f"`mint serve`, or leave {name} out."
    )
