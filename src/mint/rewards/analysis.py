"""Describe the distribution of rewards as data, text and a plot, and how answers are wrong."""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from mint.rewards.answers.checks import check_answer
from mint.rewards.answers.extraction import final_answer
from mint.rewards.answers.gold import Gold, read_gold
from mint.rewards.answers.number import distance
from mint.rewards.charts import bar_chart, standalone
from mint.rewards.scoring import Scored
from mint.rewards.shaping.aspects import is_cut_off
from mint.rewards.shaping.formats import match_format_exactly

_SCALES = tuple(Fraction(10) ** power for power in range(-12, 13) if power)
_BINS = 10
_SHOWN = 200


@dataclass(frozen=True)
class Example:
    """A sample with a very high or very low reward."""

    reward: float
    prompt: str
    response: str


@dataclass(frozen=True)
class Analysis:
    """Statistics of a set of scored samples."""

    count: int
    failed: int
    mean: float
    std: float
    variance: float
    minimum: float
    maximum: float
    skewness: float
    histogram: tuple[tuple[float, float, int], ...]
    groups: int
    ties: float
    component_means: Mapping[str, float]
    component_correlations: Mapping[str, float]
    length_correlation: float
    failure_patterns: Mapping[str, int]
    highest: tuple[Example, ...]
    lowest: tuple[Example, ...]

    def as_data(self) -> dict[str, Any]:
        """Return plain types, for JSON."""
        return asdict(self)

    def as_text(self) -> str:
        """Return a summary to read, with a histogram."""
        lines = [
            f"{self.count} rewards, {self.failed} could not be scored",
            f"mean {self.mean:.3f}  std {self.std:.3f}  variance {self.variance:.3f}  "
            f"min {self.minimum:.3f}  max {self.maximum:.3f}  skewness {self.skewness:+.2f}",
            f"groups {self.groups}, of which all rewards equal: {self.ties:.0%}",
            f"correlation of reward and length {self.length_correlation:+.2f}",
            *(
                f"  {name}: mean {mean:.3f}, correlation with the total "
                f"{self.component_correlations[name]:+.2f}"
                for name, mean in self.component_means.items()
            ),
            *self.bars(),
        ]
        if self.failure_patterns:
            found = ", ".join(f"{name} {count}" for name, count in self.failure_patterns.items())
            lines.append(f"patterns: {found}")
        for title, examples in (("highest", self.highest), ("lowest", self.lowest)):
            lines += [f"{title}: {e.reward:.3f}  {e.response[:_SHOWN]!r}" for e in examples]
        return "\n".join(lines)

    def bars(self, width: int = 40) -> list[str]:
        """Return the histogram, a line per bin."""
        most = max((count for _, _, count in self.histogram), default=0)
        return [
            f"{low:7.2f} to {high:5.2f} | {'#' * round(width * count / most):<{width}} {count}"
            for low, high, count in self.histogram
        ]

    def plot(self, path: str | Path) -> Path:
        """Write the histogram as SVG."""
        found = f"mean {self.mean:.3f}, std {self.std:.3f}, skewness {self.skewness:+.2f}"
        title, path = f"{self.count} rewards, {found}", Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(standalone(bar_chart(self.histogram), title), encoding="utf-8")
        return path


def analyse(scored: Sequence[Scored], examples: int = 3) -> Analysis:
    """Describe the distribution of rewards, their correlations, and the samples at both ends.

    Samples of a group share ``metadata["group"]``, or else their prompt. Failure patterns need the
    gold in ``metadata["answer"]`` or ``metadata["ground_truth"]``.

    >>> from mint.rewards import Sample, Score, Scored
    >>> scored = [Scored(Sample("x" * n, "p"), Score(n / 4)) for n in range(5)]
    >>> found = analyse(scored)
    >>> found.mean, found.skewness, found.length_correlation, found.ties
    (0.5, 0.0, 1.0, 0.0)
    """
    kept = [(one.sample, one.score) for one in scored if one.score is not None]
    rewards = [score.total for _, score in kept]
    mean = _mean(rewards)
    variance = _mean([(reward - mean) ** 2 for reward in rewards])
    varies = variance > 1e-12
    groups: dict[Hashable, list[float]] = defaultdict(list)
    components: dict[str, list[tuple[float, float]]] = defaultdict(list)
    patterns: Counter[str] = Counter()
    for sample, score in kept:
        groups[sample.metadata.get("group", sample.prompt)].append(score.total)
        for name, value in score.components.items():
            components[name].append((value, score.total))
        if isinstance(sample.gold, Gold):
            form = sample.metadata.get("format")
            patterns[failure_pattern(sample.response, sample.gold, form)] += 1
    ranked = [
        Example(score.total, sample.prompt, sample.response)
        for sample, score in sorted(kept, key=lambda pair: -pair[1].total)
    ]
    return Analysis(
        count=len(rewards),
        failed=sum(one.error is not None for one in scored),
        mean=mean,
        std=math.sqrt(variance),
        variance=variance,
        minimum=min(rewards, default=0.0),
        maximum=max(rewards, default=0.0),
        skewness=_mean([(r - mean) ** 3 for r in rewards]) / variance**1.5 if varies else 0.0,
        histogram=_histogram(rewards),
        groups=len(groups),
        ties=_mean([float(len(set(values)) == 1) for values in groups.values()]),
        component_means={n: _mean([value for value, _ in each]) for n, each in components.items()},
        component_correlations={
            n: correlation(*zip(*e, strict=True)) for n, e in components.items()
        },
        length_correlation=correlation(rewards, [len(sample.response) for sample, _ in kept]),
        failure_patterns=dict(patterns.most_common()),
        highest=tuple(ranked[:examples]),
        lowest=tuple(ranked[::-1][:examples]),
    )


def correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Pearson's correlation, 0.0 when one of the two does not vary.

    >>> correlation([1, 2, 3], [2, 4, 6])
    1.0
    """
    mean_a, mean_b = _mean(a), _mean(b)
    together = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    spread = math.sqrt(sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b))
    return round(together / spread, 12) if spread > 1e-12 else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _histogram(rewards: Sequence[float]) -> tuple[tuple[float, float, int], ...]:
    if not rewards:
        return ()
    low, high = min(0.0, *rewards), max(1.0, *rewards)
    width = (high - low) / _BINS
    bins = ((reward - low) / width + 1e-9 for reward in rewards)  # 0.3 / 0.1 is a little below 3
    counts = Counter(min(_BINS - 1, int(each)) for each in bins)
    return tuple((low + b * width, low + (b + 1) * width, counts[b]) for b in range(_BINS))


def failure_pattern(
    response: str | None, ground_truth: Gold, expected_format: str | None = None
) -> str:
    """Return why a response is wrong: the first pattern that matches.

    >>> failure_pattern("The answer is -42.", 42), failure_pattern("420", 42)
    ('off by sign', 'off by scale')
    >>> failure_pattern("I am not sure.", 42), failure_pattern("We take the sum of", 42)
    ('no number', 'truncated')
    """
    text = (response or "").strip()
    if not text:
        return "empty"
    if check_answer(text, ground_truth) == 1.0:
        misformed = expected_format and match_format_exactly(text, expected_format) < 1.0
        return "wrong format" if misformed else "right"
    if is_cut_off(text[-100_000:]):
        return "truncated"
    gold, number = read_gold(ground_truth).number, final_answer(text).number
    if gold is None or gold.value is None:
        return "wrong"
    if number is None or number.value is None:
        return "no number"
    value, right = number.value, gold.value
    if value == -right:
        return "off by sign"
    if right and any(value == right * scale for scale in _SCALES):
        return "off by scale"
    if distance(value, right) == 1:
        return "off by one"
    return "close" if right and distance(value, right) * 10 <= distance(right, 0) else "wrong"
