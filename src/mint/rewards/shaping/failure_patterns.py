"""Classify how a numeric answer is wrong."""

from fractions import Fraction
from typing import Literal

from mint.rewards.answers.checks import check_answer
from mint.rewards.answers.extraction import final_answer
from mint.rewards.answers.gold import Gold, read_gold
from mint.rewards.answers.magnitude import Value
from mint.rewards.answers.number import distance
from mint.rewards.shaping.aspects import is_cut_off
from mint.rewards.shaping.formats import match_format_exactly

Pattern = Literal[
    "right",
    "empty",
    "truncated",
    "no number",
    "wrong format",
    "off by sign",
    "off by scale",
    "off by one",
    "close",
    "wrong",
]
_SCALES = tuple(Fraction(10) ** power for power in range(-12, 13) if power)


def failure_pattern(
    response: str | None, ground_truth: Gold, expected_format: str | None = None
) -> Pattern:
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
    if gold is None:
        return "wrong"
    if number is None or number.value is None or gold.value is None:
        return "no number"
    return _numeric_pattern(number.value, gold.value)


def _numeric_pattern(value: Value, gold: Value) -> Pattern:
    if value == -gold:
        return "off by sign"
    if gold and any(value == gold * scale for scale in _SCALES):
        return "off by scale"
    if distance(value, gold) == 1:
        return "off by one"
    return "close" if gold and distance(value, gold) * 10 <= distance(gold, 0) else "wrong"
