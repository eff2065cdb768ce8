"""Everything in ``tinker.types``, with two types widened to how MinT's documentation uses them.

>>> SamplingParams(max_tokens=16, stop_token_ids=[2]).stop
[2]
>>> AdamParams(learning_rate=2e-5, betas=(0.9, 0.999)).beta2
0.999
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tinker.types
from pydantic import Field, SerializeAsAny, model_validator

DEFAULT_BETAS = (0.9, 0.999)


class SamplingParams(tinker.types.SamplingParams):
    """Sampling parameters. The token ids of ``stop_token_ids`` are sent as those of ``stop``.

    Only mint's service supports ``min_p``, ``renormalize`` and ``seeds``.
    """

    stop_token_ids: Sequence[int] | None = Field(default=None, exclude=True)
    """Token ids that end an answer. An empty list adds none."""

    min_p: float = 0.0
    """Leave out tokens that are less likely than this share of the likeliest."""

    renormalize: bool = False
    """Report logprobs after ``top_k``, ``top_p`` and ``min_p``; tokens left out have -inf."""

    seeds: Sequence[int] | None = None
    """A seed for each of several samples, in place of ``seed``. Each sample is then the one that a
    request for a single sample with its seed returns."""

    @property
    def is_extended(self) -> bool:
        """Whether it has parameters that the SDK does not send."""
        return bool(self.min_p or self.renormalize or self.seeds)

    @model_validator(mode="before")
    @classmethod
    def _join_stops(cls, fields: dict[str, Any]) -> dict[str, Any]:
        ids = list(fields.get("stop_token_ids") or [])
        if not ids:
            return fields
        if any(not isinstance(token, int) for token in ids):
            raise ValueError(
                f"stop_token_ids={ids} must be token ids (integers). If the tokenizer has no "
                "eos_token_id, leave stop_token_ids out and set max_tokens."
            )
        stop = fields.get("stop")
        texts = [stop] if isinstance(stop, str) else list(stop or [])
        if any(isinstance(text, str) for text in texts):
            raise ValueError(
                f"stop={stop!r} has strings and stop_token_ids={ids} has token ids, but a request "
                "can use only one kind. Pass all stops as token ids, or all as strings in "
                "stop=[...]."
            )
        return {**fields, "stop": list(dict.fromkeys([*texts, *ids]))}


class ExtendedSampleRequest(tinker.types.SampleRequest):
    """A request that also sends sampling parameters that the SDK does not have."""

    sampling_params: SerializeAsAny[tinker.types.SamplingParams]


class AdamParams(tinker.types.AdamParams):
    """The settings of one AdamW step. ``betas=(b1, b2)`` is short for ``beta1`` and ``beta2``."""

    learning_rate: float = 2e-5
    beta1: float = DEFAULT_BETAS[0]
    beta2: float = DEFAULT_BETAS[1]
    eps: float = 1e-8
    betas: tuple[float, float] = Field(default=DEFAULT_BETAS, exclude=True)
    """Decay rates of the running averages of the gradient and of its square."""

    @model_validator(mode="before")
    @classmethod
    def _one_pair_of_betas(cls, fields: dict[str, Any]) -> dict[str, Any]:
        if "betas" not in fields:
            beta1 = fields.get("beta1", DEFAULT_BETAS[0])
            beta2 = fields.get("beta2", DEFAULT_BETAS[1])
            return {**fields, "betas": (beta1, beta2)}
        if "beta1" in fields or "beta2" in fields:
            raise ValueError("Pass betas=(b1, b2), or beta1=b1 and beta2=b2, but not both.")
        betas = tuple(fields["betas"])
        if len(betas) != 2:
            raise ValueError(f"betas={fields['betas']!r} must be two numbers, as in (0.9, 0.999).")
        return {**fields, "beta1": betas[0], "beta2": betas[1]}


# Last, and for type checkers only: the two names defined above win over tinker's.
if TYPE_CHECKING:
    from tinker.types import *  # type: ignore[assignment]
else:
    __all__ = [name for name in dir(tinker.types) if not name.startswith("_")]

    def __getattr__(name: str) -> Any:
        return getattr(tinker.types, name)
