"""Rate single aspects of a response from 0 to 1, with simple rules and without a model."""

import re

from mint.rewards.answers.checks import check_answer
from mint.rewards.answers.gold import Gold
from mint.rewards.answers.number import find_numbers
from mint.rewards.answers.plaintext import plain
from mint.rewards.shaping.formats import match_format_exactly

_READ = 100_000
_CONTENT_READ = 20_000
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_SENTENCE_END = re.compile(r"(?<![.!?。！？])[.!?。！？]++(?=\s|$)|\n+")
_STEP = re.compile(
    r"^\s{0,8}(?:\d{1,3}[.)]|[-*]|step\s\d)"
    r"|\b(?:first|second|then|next|because|since|therefore|thus|hence|so)\b"
    r"|[0-9)]\s?[-+*/×÷]\s?[(0-9][^=\n]{0,40}=",
    re.IGNORECASE | re.MULTILINE,
)
_SOURCE = re.compile(
    r"https?://\S{1,200}|\bdoi:\s?\S{1,100}|\[\d{1,3}\]|\(\w{2,30},? (?:19|20)\d\d\)"
    r"|\baccording to (?:a|the|recent) (?:study|report|survey|article)",
    re.IGNORECASE,
)
_STOP_WORDS = frozenset(
    [
        *["a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "how", "in", "is", "it"],
        *["of", "on", "or", "that", "the", "this", "to", "was", "what", "which", "with", "you"],
    ]
)


def evaluate_format(response: str | None, expected_format: str | None) -> float:
    """The score of :func:`match_format_exactly`, 1.0 when no format is asked for.

    >>> evaluate_format("The answer is 4.", "The answer is [NUM]."), evaluate_format("4", None)
    (1.0, 1.0)
    """
    return match_format_exactly(response, expected_format) if expected_format else 1.0


def evaluate_correctness(response: str | None, ground_truth: Gold) -> float:
    """The score of :func:`check_answer`.

    >>> evaluate_correctness("The answer is 4.", "4")
    1.0
    """
    return check_answer(response, ground_truth)


def evaluate_completeness(response: str | None) -> float:
    """1.0 for a complete response, 0.5 for one that is cut off, 0.0 for an empty one.

    Cut off: more than a few words without an end of sentence, or an open bracket, tag or fence.

    >>> evaluate_completeness("It is 4."), evaluate_completeness("We first take the sum of")
    (1.0, 0.5)
    """
    text = (response or "")[-_READ:].strip()
    if not text:
        return 0.0
    return 0.5 if is_cut_off(text) else 1.0


def is_cut_off(text: str) -> bool:
    """Return whether a text seems to end in the middle of something.

    >>> is_cut_off("so we add 3 and"), is_cut_off("42"), is_cut_off("```python\\nx = 1")
    (True, False, True)
    """
    text = text.strip()
    if text.count("```") % 2 or text.count("<answer>") > text.count("</answer>"):
        return True
    if text.count(r"\boxed{") and text.count("{") > text.count("}"):
        return True
    few_words = len(text[-200:].split()) <= 4 and len(text) < 200
    return not few_words and text[-1] not in ".!?。！？)]}>\"'`*$%|:0123456789"


def evaluate_relevance(response: str | None, prompt: str | None) -> float:
    """The share of the prompt's content words and numbers that the response mentions.

    >>> evaluate_relevance("The red balls: 3 of them.", "How many red balls are there: 3 or 4?")
    0.5
    """
    asked = _content(prompt)
    return len(asked & _content(response)) / len(asked) if asked else 1.0


def evaluate_clarity(response: str | None) -> float:
    """1.0 for sentences of readable length that do not repeat, falling to 0.0.

    >>> evaluate_clarity("We add 2 and 2. That makes 4.") > evaluate_clarity("no " * 200)
    True
    """
    text = (response or "")[:_READ]
    words = _WORD.findall(text.lower())
    if not words:
        return 0.0
    sentences = [part for part in _SENTENCE_END.split(text) if part.strip()]
    mean_length = len(words) / max(1, len(sentences))
    readable = 1.0 if mean_length <= 25 else max(0.0, 1.0 - (mean_length - 25) / 50)
    return readable * (1.0 - repeated_share(words, 4))


def repeated_share(items: list[str] | list[int], size: int) -> float:
    """Return the share of the runs of ``size`` items that have occurred before.

    >>> repeated_share(["a", "b", "a", "b", "a", "b"], 2)
    0.6
    """
    runs = [tuple(items[index : index + size]) for index in range(len(items) - size + 1)]
    if not runs:
        return 0.0
    return 1.0 - len(set(runs)) / len(runs)


def evaluate_conciseness(response: str | None, target_words: int = 100) -> float:
    """1.0 up to ``target_words`` words, then falling to 0.0 at twice as many.

    >>> evaluate_conciseness("short"), evaluate_conciseness("word " * 150)
    (1.0, 0.5)
    """
    words = len((response or "").split())
    return max(0.0, min(1.0, 2.0 - words / target_words))


def has_reasoning_steps(response: str | None) -> bool:
    """Return whether at least two steps of reasoning are written out.

    >>> has_reasoning_steps("First, 2 + 2 = 4. So the answer is 4."), has_reasoning_steps("4")
    (True, False)
    """
    return len(_STEP.findall((response or "")[:_READ])) >= 2


def has_hallucination(response: str | None, prompt: str | None = "") -> bool:
    """Return whether sources are cited that the prompt does not mention.

    A rule that needs no model: links, numbered references, author-year citations, studies.

    >>> has_hallucination("See https://example.org/x."), has_hallucination("The answer is 4.")
    (True, False)
    """
    given = prompt or ""
    return any(found not in given for found in _SOURCE.findall((response or "")[:_READ]))


def _content(text: str | None) -> set[str]:
    text = plain((text or "")[:_CONTENT_READ])
    words = {w for w in _WORD.findall(text.lower()) if w not in _STOP_WORDS and not w.isdigit()}
    return words | {str(number.value) for number in find_numbers(text) if number.value is not None}
