"""Settings that every loss accepts beside its own: added terms, and the kind of logprobs.

Tinker's own service does not have them; mint's takes them as more keys of ``loss_fn_config``. With
d = lp - reference_logprobs, a token of weight w adds

    w (kl_k1 k1 + kl_k2 k2 + kl_k3 k3),   k1 = d,   k2 = d^2 / 2,   k3 = exp(-d) - 1 + d

to the loss. With ``kl_ratio=1`` the three are multiplied by r = exp(lp - q), whose gradient counts.
It also adds ``- w entropy_coef H``, where H is the entropy of the distribution that lp was read
off; with ``entropy=1``, H comes back for each token. At ``temperature`` T, lp and H are those of
the logits over T.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from mint.engine.messages import UserError

Inputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Terms:
    """Terms that are added to a loss. The defaults add nothing."""

    kl_k1: float = 0.0
    kl_k2: float = 0.0
    kl_k3: float = 0.0
    kl_ratio: float = 0.0
    entropy_coef: float = 0.0
    entropy: float = 0.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        for name in ("kl_ratio", "entropy"):
            if (value := getattr(self, name)) not in (0.0, 1.0):
                raise UserError(f"loss_fn_config[{name!r}] is {value:g}; it must be 0 or 1.")
        if self.temperature < 1e-5:  # logits over less may be infinite
            raise UserError(
                f"loss_fn_config['temperature'] is {self.temperature:g}; it must be 1e-5 or "
                "more: the one that the answers were sampled at."
            )

    @property
    def has_kl(self) -> bool:
        return any((self.kl_k1, self.kl_k2, self.kl_k3))

    @property
    def needs_entropy(self) -> bool:
        return bool(self.entropy or self.entropy_coef)

    @property
    def needs(self) -> tuple[str, ...]:
        """The loss inputs that the terms read."""
        if self.has_kl:
            return ("weights", "reference_logprobs", *(["logprobs"] if self.kl_ratio else []))
        return ("weights",) if self.entropy_coef else ()

    def kl(self, lp: Tensor, x: Inputs) -> Tensor:
        """Return the KL term of each token, times its weight."""
        counts = x["weights"] != 0
        d = torch.where(counts, lp - x["reference_logprobs"], 0.0)
        value = self.kl_k1 * d + self.kl_k2 * 0.5 * d * d + self.kl_k3 * (torch.expm1(-d) + d)
        if self.kl_ratio:
            value = value * torch.where(counts, lp - x["logprobs"], 0.0).exp()
        return torch.where(counts, x["weights"] * value, 0.0)

    def entropy_loss(self, entropy: Tensor, x: Inputs) -> Tensor:
        """Return the entropy term of each token, times its weight."""
        return -self.entropy_coef * x["weights"] * entropy


NAMES = tuple(each.name for each in fields(Terms))


def read_terms(config: Mapping[str, float | str]) -> Terms:
    """Return the terms of a ``loss_fn_config`` whose values have been checked."""
    return Terms(**{name: float(config[name]) for name in NAMES if name in config})
