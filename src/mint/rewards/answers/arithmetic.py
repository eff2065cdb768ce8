"""MinT's shaped arithmetic reward: a format part, a distance part and an exact bonus."""

from dataclasses import dataclass

from mint.rewards.answers.number import find_numbers
from mint.rewards.answers.plaintext import plain, strip_latex

_READ = 20_000


@dataclass(frozen=True)
class RewardBreakdown:
    """A reward from 0 to 1 and its three parts."""

    total: float
    format_reward: float
    distance_reward: float
    exact_bonus: float


def extract_prediction(response: str) -> int | None:
    r"""Return the first integer of a response, or None.

    The first, because a small model that has answered often continues with a question of its own.

    >>> extract_prediction(" 8\nQ: What is 2 + 2?"), extract_prediction("−1,024"), \
    ...     extract_prediction("eight")
    (8, -1024, None)
    """
    for number in find_numbers(strip_latex(plain((response or "")[:_READ]))):
        if isinstance(number.value, int) and not number.percent:
            return number.value
    return None


def compute_reward_breakdown(response: str, correct_answer: int) -> RewardBreakdown:
    """The shaped reward: 0.2 for an integer, up to 0.5 for a close one, 0.3 for the right one.

    >>> compute_reward_breakdown("8", 8)
    RewardBreakdown(total=1.0, format_reward=0.2, distance_reward=0.5, exact_bonus=0.3)
    >>> compute_reward_breakdown("18", 8).total
    0.45
    """
    prediction = extract_prediction(response)
    if prediction is None:
        return RewardBreakdown(total=0.0, format_reward=0.0, distance_reward=0.0, exact_bonus=0.0)
    format_reward, correct_answer = 0.2, int(correct_answer)  # datasets may have it as text
    error = abs(prediction - correct_answer)
    distance_scale = max(abs(correct_answer), 20)
    closeness = 1.0 - error / distance_scale if error < distance_scale else 0.0
    distance_reward = 0.5 * closeness
    exact_bonus = 0.3 if prediction == correct_answer else 0.0
    total = min(1.0, format_reward + distance_reward + exact_bonus)
    return RewardBreakdown(total, format_reward, distance_reward, exact_bonus)
