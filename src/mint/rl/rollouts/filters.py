"""Sampling among the likeliest tokens only, and which those were at each position."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mint.config_error import ConfigError

Kept = tuple[int, ...]
"""The tokens that one was sampled from; none means all."""


@dataclass(frozen=True)
class Filters:
    """``top_k``, ``top_p`` and ``min_p`` of sampling. The defaults leave nothing out.

    The sampler reports logprobs among the tokens that it kept, and which those were, so that the
    trainer can compute logprobs of the same distribution. ``top_k`` bounds how many they are.
    """

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def is_on(self) -> bool:
        return self.top_k > 0

    def params(self) -> dict[str, Any]:
        """The sampling parameters that they add."""
        if not self.is_on:
            return {}
        return {
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "renormalize": True,
        }

    def requests(self) -> dict[str, Any]:
        """Return what a request asks for beside samples: the tokens that were kept."""
        return {"topk_sample_logprobs": self.top_k} if self.is_on else {}

    def kept_tokens(self, sequence: Any) -> list[Kept] | None:
        """Return the tokens that each token of a sampled sequence was chosen from.

        Raises ConfigError when the service has not said so, or its logprobs are those of another
        distribution.
        """
        if not self.is_on:
            return None
        top = sequence.topk_logprobs_np
        if top is None:
            raise _unknown("returns no top-k logprobs of sampled tokens")
        if np.abs(np.exp(top.logprobs.astype(np.float64)).sum(-1) - 1).max() > 1e-3:
            raise _unknown("reports logprobs before the filters")
        rows = zip(top.token_ids, np.isfinite(top.logprobs), strict=True)
        return [tuple(int(token) for token in ids[inside]) for ids, inside in rows]


PLAIN = Filters()


def _unknown(what: str) -> ConfigError:
    return ConfigError(
        f"top_k, top_p and min_p need a mint service, and this one {what}. Train on a service "
        "started by `mint serve`, or leave them out."
    )
