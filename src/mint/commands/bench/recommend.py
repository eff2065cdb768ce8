"""The report of ``mint bench``, and the settings that follow from it. Nothing here measures."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from .timed_run import StepTimes

GROWTH = 1.1  # a batch that is not this much faster than the one before is large enough
GROUP = 8
SMALL_GROUP = 4


@dataclass(frozen=True)
class SamplingSpeed:
    """The rate of sampling with a number of concurrent answers."""

    answers: int
    seconds: float
    tokens_per_second: float


@dataclass(frozen=True)
class TrainingSpeed:
    """A GRPO step, and the rate of forward and backward on its groups, prompts included."""

    answers: int
    step: StepTimes
    tokens_per_second: float


@dataclass(frozen=True)
class Recommendation:
    """Recommended settings, and the reasons."""

    answers: int
    batch_size: int
    group_size: int
    step_seconds: float
    steps_per_minute: float
    max_tokens: int
    precision: str
    because: list[str]


@dataclass(frozen=True)
class BenchReport:
    """The measurements. Times are seconds."""

    model: str
    service: str
    precision: str | None
    reason: str | None
    prompt_tokens: int
    answer_tokens: int
    context_length: int | None
    ceilings: Mapping[str, Any] | None
    sampling: list[SamplingSpeed]
    training: TrainingSpeed

    @property
    def matmul_share(self) -> float | None:
        """The share of the machine's matmul rate that the fastest sampling reached."""
        if self.ceilings is None or not self.ceilings["flops_per_token"]:
            return None
        fastest = max(speed.tokens_per_second for speed in self.sampling)
        rate = self.ceilings["matmul"][matmul_dtype(self.precision, self.ceilings)]
        return float(fastest * self.ceilings["flops_per_token"] / rate)

    def as_dict(self) -> dict[str, Any]:
        """Return everything, with what follows from it."""
        share, advice = self.matmul_share, asdict(recommend(self))
        return {**asdict(self), "matmul_share": share, "recommendation": advice}


def matmul_dtype(precision: str | None, ceilings: Mapping[str, Any]) -> str:
    """Return the data type of the matrix products of a precision.

    >>> machine = {"device": "cpu", "matmul": {"bfloat16": 4e11, "float32": 2e11}}
    >>> matmul_dtype("exact", machine), matmul_dtype("auto", machine)
    ('float32', 'bfloat16')
    """
    if precision == "exact":
        return "float32" if ceilings["device"] == "cpu" else "bfloat16"
    if precision == "half" and "float16" in ceilings["matmul"]:
        return "float16"
    return "bfloat16"


def enough_answers(sampling: Sequence[SamplingSpeed]) -> int:
    """Return the number of concurrent answers beyond which throughput grows by 10% or less.

    >>> speeds = [(1, 10.0), (8, 60.0), (48, 65.0)]
    >>> enough_answers([SamplingSpeed(n, 1.0, rate) for n, rate in speeds])
    8
    """
    for smaller, larger in pairwise(sampling):
        if larger.tokens_per_second <= GROWTH * smaller.tokens_per_second:
            return smaller.answers
    return sampling[-1].answers


def recommend(report: BenchReport) -> Recommendation:
    """Return settings for the measured speeds, with the reasons."""
    answers = enough_answers(report.sampling)
    group = GROUP if answers >= 2 * GROUP else SMALL_GROUP
    prompts = max(1, answers // group)
    rows = prompts * group
    sampled = next(s.tokens_per_second for s in report.sampling if s.answers == answers)
    trained = report.training.tokens_per_second
    fixed = report.training.step.handoff + rows * report.prompt_tokens / trained
    per_token = rows / sampled + rows / trained  # seconds that one more token of each answer costs
    step = fixed + per_token * report.answer_tokens
    room = (report.context_length or 10**9) - report.prompt_tokens
    precision, why = recommend_precision(report)
    enough = f"More than {answers} concurrent answers increase throughput by at most 10%."
    if answers == report.sampling[-1].answers:
        enough = f"Throughput still grew by more than 10% at {answers}, the most answers measured."
    return Recommendation(
        answers=answers,
        batch_size=prompts,
        group_size=group,
        step_seconds=step,
        steps_per_minute=60 / step,
        max_tokens=max(1, min(room, int((60 - fixed) / per_token))),
        precision=precision,
        because=[enough, *why],
    )


def recommend_precision(report: BenchReport) -> tuple[str, list[str]]:
    """Return ``auto``, unless the engine is exact and nothing else would be faster."""
    if report.ceilings is None or report.precision is None:
        return "auto", []
    if report.precision != "exact":
        return "auto", [
            f"The engine uses {report.precision} ({report.reason}). If the logprobs of sampler and "
            "trainer must agree to 1e-4, set precision=exact, which is slower."
        ]
    rates = report.ceilings["matmul"]
    gain = rates["bfloat16"] / rates["float32"]
    if gain < GROWTH:
        return "exact", ["bfloat16 products are not faster than float32 products here."]
    return "auto", [
        f"The engine uses exact ({report.reason}). bfloat16 products are {gain:.1f} times "
        "as fast as float32 products here; precision=auto uses them where that is faster."
    ]
