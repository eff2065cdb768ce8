"""Samples, scores and failures."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any


@dataclass(frozen=True)
class Sample:
    """One response with its prompt and the metadata that the reward may need."""

    response: str
    prompt: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gold(self) -> Any:
        """The right answer in the metadata, or None."""
        return self.metadata.get("answer", self.metadata.get("ground_truth"))


@dataclass(frozen=True)
class Score:
    """A total, and the value of every component beside it.

    ``reasons`` says in words why a component, or ``"total"``, got its value; they are recorded with
    the rollout and have no effect on training.

    >>> float(Score(0.7, {"format": 0.0, "correctness": 1.0}, {"format": "no <answer> tag"}))
    0.7
    """

    total: float
    components: Mapping[str, float] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not math.isfinite(self.total):
            raise ValueError(f"A reward must be a finite number, not {self.total}.")

    def __float__(self) -> float:
        return self.total


@dataclass(frozen=True)
class Failure:
    """A reward that raised; never a score. The rollout is left out of training."""

    reward: str
    error: Exception

    def __str__(self) -> str:
        return f"{self.reward}: {type(self.error).__name__}: {self.error}"


RewardOutcome = Score | Failure | None


def read_score(value: Any) -> Score | None:
    """Convert what a reward function returned to a score; None means "does not apply".

    Numbers, scores, dataclasses with a ``total`` and mappings with a ``score`` are understood; the
    latter two may also have ``reasons``.

    >>> read_score(True), read_score({"score": 0.5, "matches": [True, False]})
    (Score(total=1.0, components={}), Score(total=0.5, components={}))
    """
    if value is None or isinstance(value, Score):
        return value
    if is_dataclass(value) and hasattr(value, "total"):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        reasons = _texts(parts.pop("reasons", None))
        values = {name: _number(part) for name, part in parts.items()}
        return Score(values.pop("total"), values, reasons)
    if isinstance(value, Mapping) and "score" in value:
        return Score(_number(value["score"]), reasons=_texts(value.get("reasons")))
    return Score(_number(value))


def _number(value: Any) -> float:
    """Convert a number of any library to a float; a string is rejected, whatever it contains."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)  # numpy scalars and zero-dimensional tensors
    except (TypeError, ValueError):
        shown = f"the string {value!r:.80}" if isinstance(value, str) else type(value).__name__
        raise TypeError(
            f"A reward returned {shown}; it must return a number, a Score, "
            "or None for 'does not apply'."
        ) from None


def _texts(reasons: Any) -> dict[str, str]:
    given = reasons if isinstance(reasons, Mapping) else {}
    return {str(name): str(reason) for name, reason in given.items()}
