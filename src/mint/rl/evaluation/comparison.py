"""Two models on the same prompts: how large the difference is, and whether it may be chance."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np

from mint.rl.evaluation.results import SetResult
from mint.rl.evaluation.scores import Estimate, independent_trials, wilson

_DRAWS = 10_000
_EXACT = 12  # prompts that differ, up to which all ways to exchange the models are looked at


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the exact two-sided p-value of McNemar's test for paired yes-or-no results.

    >>> mcnemar(1, 9)
    0.021484375
    """
    count = only_first + only_second
    fewer = min(only_first, only_second)
    tail = sum(math.comb(count, i) for i in range(fewer + 1))
    return min(1.0, float(Fraction(2 * tail, 2**count)))


def sign_test(differences: Sequence[float], seed: int = 0) -> float:
    """Return the two-sided p-value of a paired permutation test, exact for few prompts.

    >>> sign_test([0.5, 0.5, 0.5])
    0.25
    """
    apart = np.asarray([d for d in differences if d], dtype=np.float64)
    if not len(apart):
        return 1.0
    seen = abs(apart.sum()) - 1e-9
    if len(apart) <= _EXACT:
        signs = np.asarray(list(product((-1.0, 1.0), repeat=len(apart))))
        return float((abs(signs @ apart) >= seen).mean())
    draw = np.random.default_rng(seed)
    hits = sum(
        int((abs(draw.choice((-1.0, 1.0), (100, len(apart))) @ apart) >= seen).sum())
        for _ in range(_DRAWS // 100)
    )
    return (hits + 1) / (_DRAWS + 1)


def paired_difference(
    first_P: Sequence[float], second_P: Sequence[float], samples: int = 1
) -> Estimate:
    """Return how much higher the second of two success rates on the same prompts is, with its 95%
    interval.

    This is the paired score interval of Newcombe (Statistics in Medicine 17, 1998, p. 2635, method
    10): it combines the Wilson intervals of both rates by their correlation, and so has a width
    even where all prompts differ alike. Rates of several answers per prompt enter with the number
    of independent trials that would be as uncertain.

    >>> found = paired_difference([0.0] * 8, [1.0] * 8)
    >>> found.value, round(found.low, 3), found.high
    (1.0, 0.541, 1.0)
    """
    rates_2_P = np.asarray([first_P, second_P], dtype=np.float64)
    count = rates_2_P.shape[1]
    trials_2 = [independent_trials(rates_P, [samples] * count) for rates_P in rates_2_P]
    first, second = (
        Estimate(share, *wilson(share, trials))
        for share, trials in zip(rates_2_P.mean(axis=1).tolist(), trials_2, strict=True)
    )
    (own, shared), (_, other) = np.cov(rates_2_P, bias=True)
    if shared > 0:
        shared = max(0.0, shared - 1 / (2 * count))  # the correction for few prompts
    spread = math.sqrt(own * other)
    return second.above(first, float(shared / spread) if spread > 1e-12 else 0.0)


@dataclass(frozen=True)
class Comparison:
    """The difference between two models on the prompts of one set."""

    prompts: int
    first: float
    second: float
    low: float
    high: float
    p: float
    test: str

    @property
    def difference(self) -> float:
        return self.second - self.first

    def __str__(self) -> str:
        verdict = "better" if self.difference > 0 else "worse"
        reported = verdict if self.p < 0.05 else "no significant difference"
        return (
            f"pass@1 {self.second:.1%} against {self.first:.1%} on the same {self.prompts} prompts:"
            f" {self.difference:+.1%} ({self.low:+.1%} to {self.high:+.1%}), "
            f"p={self.p:.3g} ({self.test}): {reported}"
        )


def compare(first: SetResult, second: SetResult, seed: int = 0) -> Comparison:
    """Compare two results on the same prompts: the exact McNemar test for one answer per prompt, or
    a permutation test of the success rates. The interval is that of :func:`paired_difference`.

    A prompt that is left out of one result, because its reward was None, counts as wrong there if
    the reward applied to the other model's answers."""
    mine, theirs = _rates(first), _rates(second)
    for rates, others, left_out in (
        (mine, theirs, first.left_out),
        (theirs, mine, second.left_out),
    ):
        rates |= {key: 0.0 for key in others if key not in rates and key[0] in left_out}
    if mine.keys() != theirs.keys() or not mine:
        apart = len(mine.keys() ^ theirs.keys())
        raise ValueError(
            f"The two results cover different prompts: {apart} are in only one of them. "
            "Evaluate both with the same task, seed and holdout_size."
        )
    pairs = [(mine[key], theirs[key]) for key in mine]
    differences = [other - one for one, other in pairs]
    if first.samples == second.samples == 1:
        p = mcnemar(sum(d < 0 for d in differences), sum(d > 0 for d in differences))
        test = "exact McNemar test"
    else:
        p, test = sign_test(differences, seed), "paired permutation test"
    one, other = zip(*pairs, strict=True)
    gain = paired_difference(one, other, min(first.samples, second.samples))
    return Comparison(
        len(pairs), float(np.mean(one)), float(np.mean(other)), gain.low, gain.high, p, test
    )


def _rates(result: SetResult) -> dict[tuple[str, int], float]:
    """Return the success rates by prompt; the occurrences of a repeated prompt are numbered."""
    seen: Counter[str] = Counter()
    found = {}
    for prompt in result.prompts:
        right = prompt.right(result.threshold)
        found[prompt.identity, seen[prompt.identity]] = sum(right) / max(1, len(right))
        seen[prompt.identity] += 1
    return found
