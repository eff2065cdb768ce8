"""Reward design patterns, as functions to use or to copy."""

from fractions import Fraction

from mint.rewards.answers.checks import PARTIAL_RANGE, check_answer, is_correct
from mint.rewards.answers.extraction import final_answer
from mint.rewards.answers.gold import Gold, read_gold
from mint.rewards.answers.number import distance
from mint.rewards.shaping import aspects
from mint.rewards.shaping.formats import match_format_exactly


def combined_reward(
    response: str | None,
    ground_truth: Gold,
    expected_format: str,
    alpha: float = 0.3,
    beta: float = 0.7,
) -> float:
    """``alpha`` times the format score plus ``beta`` times the correctness score.

    >>> combined_reward("The answer is 4.", "4", "The answer is [NUM].")
    1.0
    >>> combined_reward("2 plus 2 equals 4.", "4", "The answer is [NUM].")
    0.7
    """
    format_score = match_format_exactly(response, expected_format)
    return alpha * format_score + beta * check_answer(response, ground_truth)


def binary_reward(response: str | None, ground_truth: Gold) -> float:
    """1.0 when right, else 0.0. For clear right or wrong answers.

    >>> binary_reward("4", "4"), binary_reward("4.1", "4")
    (1.0, 0.0)
    """
    return 1.0 if is_correct(response, ground_truth) else 0.0


def is_partially_correct(
    response: str | None, ground_truth: Gold, tolerance: float | Fraction = PARTIAL_RANGE
) -> bool:
    """Return whether the final number is within ``tolerance`` of the gold, the bound included.

    >>> is_partially_correct("110", "100"), is_partially_correct("111", "100")
    (True, False)
    """
    number, gold = final_answer(response or "").number, read_gold(ground_truth).number
    if number is None or gold is None:
        return False
    return number.same_as(gold) or number.near(gold, Fraction(str(tolerance)))


def graduated_reward(
    response: str | None, ground_truth: Gold, tolerance: float | Fraction = PARTIAL_RANGE
) -> float:
    """1.0 when right, 0.5 within ``tolerance``, else 0.0. Against sparse rewards.

    >>> graduated_reward("4", "4"), graduated_reward("95", "100"), graduated_reward("5", "4")
    (1.0, 0.5, 0.0)
    """
    if is_correct(response, ground_truth):
        return 1.0
    return 0.5 if is_partially_correct(response, ground_truth, tolerance) else 0.0


def continuous_reward(response: str | None, ground_truth: Gold, max_error: float = 100) -> float:
    """1.0 when right, falling to 0.0 at ``max_error``; 0.0 without a number.

    >>> continuous_reward("I say 75.", 100), continuous_reward("no idea", 100)
    (0.75, 0.0)
    """
    if max_error <= 0:
        raise ValueError(f"max_error must be positive, not {max_error}.")
    number, gold = final_answer(response or "").number, read_gold(ground_truth).number
    if number is None or gold is None or number.value is None or gold.value is None:
        return 0.0
    if number.same_as(gold):
        return 1.0
    error = distance(number.value, gold.value) / Fraction(str(max_error))
    return float(max(Fraction(0), 1 - error))


def composite_reward(response: str | None, prompt: str, ground_truth: Gold) -> float:
    """0.4 correctness, 0.3 relevance, 0.2 clarity and 0.1 conciseness, from 0 to 1.

    >>> round(composite_reward("What is 2 + 2? It is 4.", "What is 2 + 2?", "4"), 3)
    1.0
    """
    return (
        0.4 * check_answer(response, ground_truth)
        + 0.3 * aspects.evaluate_relevance(response, prompt)
        + 0.2 * aspects.evaluate_clarity(response)
        + 0.1 * aspects.evaluate_conciseness(response)
    )


def shaped_reward(response: str | None, ground_truth: Gold, prompt: str = "") -> float:
    """Correctness with penalties for length and invented sources, and a bonus for reasoning steps.

    The sum of the shaping is limited to 0.3 either way, so that it never outweighs the answer.

    >>> shaped_reward("First, 2 + 2 = 4. So the answer is 4.", "4")
    1.089
    """
    length_penalty = -0.1 * len((response or "").split()) / 100
    reasoning_bonus = 0.1 if aspects.has_reasoning_steps(response) else 0.0
    hallucination_penalty = -0.2 if aspects.has_hallucination(response, prompt) else 0.0
    shaping = length_penalty + reasoning_bonus + hallucination_penalty
    return check_answer(response, ground_truth) + max(-0.3, min(0.3, shaping))


def robust_reward(
    response: str | None, ground_truth: Gold, expected_format: str, threshold: float = 0.8
) -> float:
    """Correctness if the format is good enough, else 0.0. Against reward hacking.

    >>> robust_reward("4", "4", "The answer is [NUM].")
    0.0
    >>> robust_reward("The answer is 4.", "4", "The answer is [NUM].")
    1.0
    """
    if match_format_exactly(response, expected_format) < threshold:
        return 0.0
    return check_answer(response, ground_truth)


def stable_reward(response: str | None, ground_truth: Gold, minimum: float = 0.1) -> float:
    """Correctness, but at least ``minimum``. Against noise around zero.

    >>> stable_reward("5", "4"), stable_reward("4", "4")
    (0.1, 1.0)
    """
    return max(check_answer(response, ground_truth), minimum)
