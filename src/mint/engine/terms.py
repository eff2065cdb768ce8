"""Settings that every loss takes beside its own: terms that are added to it.

Tinker's own service does not have them; mint's takes them as more keys of ``loss_fn_config``. With
d = lp - reference_logprobs, a token of weight w adds

    w (kl_k1 k1 + kl_k2 k2 + kl_k3 k3),   k1 = d,   k2 = d^2 / 2,   k3 = exp(-d) - 1 + d

to the loss. With ``kl_ratio=1`` the three are multiplied by r = exp(lp - q), whose gradient counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from .messages import UserError

Inputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Terms:
    """What is added to a loss. The defaults add nothing."""

    kl_k1: float = 0.0
    kl_k2: float = 0.0
    kl_k3: float = 0.0
    kl_ratio: float = 0.0

    def __post_init__(self) -> None:
        if self.kl_ratio not in (0.0, 1.0):
            raise UserError(f"loss_fn_config['kl_ratio'] is {self.kl_ratio:g}; it must be 0 or 1.")

    @property
    def has_kl(self) -> bool:
        return any((self.kl_k1, self.kl_k2, self.kl_k3))

    @property
    def needs(self) -> tuple[str, ...]:
        """The loss inputs that the terms read."""
        if not self.has_kl:
            return ()
        return ("weights", "reference_logprobs", *(["logprobs"] if self.kl_ratio else []))

    def kl(self, lp: Tensor, x: Inputs) -> Tensor:
        """Return the KL term of each token, times its weight."""
        counts = x["weights"] != 0
        d = torch.where(counts, lp - x["reference_logprobs"], 0.0)
        value = self.kl_k1 * d + self.kl_k2 * 0.5 * d * d + self.kl_k3 * (torch.expm1(-d) + d)
        if self.kl_ratio:
            value = value * torch.where(counts, lp - x["logprobs"], 0.0).exp()
        return torch.where(counts, x["weights"] * value, 0.0)


NAMES = tuple(each.name for each in fields(Terms))


def read_terms(config: Mapping[str, float | str]) -> Terms:
    """Return the terms of a ``loss_fn_config`` whose values have been checked."""
    return Terms(**{name: float(config[name]) for name in NAMES if name in config})
