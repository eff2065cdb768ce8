"""Find the final answer of a response, and the number it is.

In this order: the last ``<answer>…</answer>``; the last ``\\boxed{…}``; the text after the last
"answer is", "answer:", "####" or "="; a number that the sentence calls the answer; the last number.
"""

import re
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Literal

from mint.rewards.answers.number import Number, find_numbers, last_number, parse_number
from mint.rewards.answers.plaintext import plain, strip_latex
from mint.rewards.answers.words import last_spelt_number, spelt_numbers

Source = Literal["tag", "boxed", "marker", "equals", "called", "last number", "text", "none"]

_OPEN_TAG = re.compile(r"<answer>", re.IGNORECASE)
_CLOSE_TAG = re.compile(r"</answer>", re.IGNORECASE)
_FENCE = re.compile(r"```[ \t]*+([\w+-]*+)[^\n`]*+\n(.*?)(?:```|\Z)", re.DOTALL)
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_ANSWER_IS = re.compile(
    r"answers?\b[*_`\"')]{0,4}(?:\s(?:to|for|of)\s[^.\n]{1,100}?)?\s{0,3}"
    r"(?:(?:is|are|was|(?:will|would|should|must) be|equals)\b(?!\s?(?:not|n't)\b)|:|：)"
    r"[*_\s]{0,4}[:：]?",
    re.IGNORECASE,
)
_CALLED = re.compile(r"\bis (?:the|my|our) (?:final |correct |right )?answer\b", re.IGNORECASE)
_FILLER = re.compile(
    r"(?:[\s$*_`:(\[{\"'~≈=>+.,-]|\\\(|\\\[|\\approx|\\text|\\boxed|[A-Za-z]\s{0,2}=|"
    r"(?:USD|EUR|GBP|US|Rs|approximately|about|around|roughly|nearly|exactly|simply|just|only|"
    r"therefore|thus|then|hence|still|indeed|actually|equal|to|the|number|value|integer|"
    r"fraction|decimal|a|an|total|sum|of|given|by|be|as|follows|option|minus|negative)\b){0,40}",
    re.IGNORECASE,
)
_CONTINUES = re.compile(
    r"[$)]?\s?(?:(?:[+*×·÷^]|\\times|\\cdot|\\div|[-/x](?=\s?\(?[0-9]))\s?-?\s?[0-9A-Za-z(\\]"
    r"|(?:[xyzn]\b|π|\\pi|i\b))"
)
_CONTINUES_AFTER_SPACE = re.compile(r"\s(?:[xyzni]\b)")
_BETWEEN_LIST_ITEMS = re.compile(r"[\s,;/|&$()\[\]{}<>*-]*(?:(?:and|or)[\s,;]*)?")
_OPERATOR = re.compile(r"\s?\)?\s?(?:[-+*/×·÷^x]|\\times|\\cdot|\\div)\s?\(?\s?[-+]?\s?")
_CALL = re.compile(r"[A-Za-z]\($|\\[a-z]+\s?[({]?\s?$")
_CHECK = re.compile(r"\b(?:check|to check|verification|verify|to verify)\b\s?:", re.IGNORECASE)
_REASONS = re.compile(r"[,\s](?:because|since)\s", re.IGNORECASE)
_SENTENCE = re.compile(r"[.!?]\s|\n")
_NOTHING = re.compile(r"[\s*_`$:.\\()\[\]{}\"']*")

_BOXED_TRIES = 32
_BOXED_LENGTH = 20_000
_SPAN = 4096
_MARKER_TRIES = 16
_EQUALS_TRIES = 1000
_MARKERS_READ = 100_000


@dataclass(frozen=True, slots=True)
class FoundAnswer:
    """A final answer: its text, where it was found, and the number it is, if it is one."""

    text: str
    source: Source
    number: Number | None = None


def extract_answer(response: str | None) -> str | None:
    r"""Return the text of the final answer, or None when there is none.

    >>> extract_answer("2 + 2 = 4. The answer is 4.")
    '4'
    >>> extract_answer(r"So $\boxed{\frac{1}{2}}$ it is.")
    '\\frac{1}{2}'
    >>> extract_answer("I do not know.") is None
    True
    """
    answer = final_answer(response or "")
    if answer.source in ("none", "text"):
        return None
    if answer.source in ("marker", "equals") and answer.number is not None:
        return _written(answer.number)
    return answer.text


def extract_number(response: str | None) -> float | int | None:
    """Return the number that is the final answer, or None.

    >>> extract_number("Half of 9 is 4.5"), extract_number("8 is the answer, not 9.")
    (4.5, 8)
    """
    number = final_answer(response or "").number
    return None if number is None or number.value is None else as_plain(number.value)


def as_plain(value: int | Fraction) -> int | float:
    """Return an integer if the value is one or too large for a float, else the nearest float."""
    try:
        return value.numerator if value.denominator == 1 else float(value)
    except OverflowError:
        return round(value)


def final_answer(text: str) -> FoundAnswer:
    """Return the final answer of a response of any length.

    >>> final_answer("<answer>42</answer>").source
    'tag'
    """
    if (content := last_tag(text)) is not None:
        return _contained(content, "tag")
    if (content := last_boxed(text)) is not None:
        return _contained(content, "boxed")
    return _open_answer(text)


def last_tag(text: str) -> str | None:
    """Return the content of the last ``<answer>…</answer>``."""
    closing = _last(_CLOSE_TAG.finditer(text))
    if closing is None:
        return None
    opening = _last(_OPEN_TAG.finditer(text, 0, closing.start()))
    return None if opening is None else text[opening.end() : closing.start()]


def last_block(text: str, languages: Collection[str]) -> str | None:
    """Return the last fenced block in one of the languages, or else the last that names none.

    >>> last_block("```py\\na\\n```\\nIt prints:\\n```\\nb\\n```", ["py"])
    'a\\n'
    """
    blocks = _FENCE.findall(text)
    found = [content for language, content in blocks if language.lower() in languages]
    found = found or [content for language, content in blocks if not language]
    return found[-1] if found else None


def marked_answer(text: str) -> str | None:
    """Return the content of the last answer tag, or else of the last box.

    >>> marked_answer(r"\\boxed{1} <answer>2</answer>"), marked_answer("3") is None
    ('2', True)
    """
    content = last_tag(text)
    return last_boxed(text) if content is None else content


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete ``\boxed{…}``, its braces balanced.

    >>> last_boxed(r"\boxed{1}, no: \boxed{\frac{1}{2}}, or \boxed{3")
    '\\frac{1}{2}'
    """
    return next(iter(boxed_contents(text, 1)), None)


def boxed_contents(text: str, count: int) -> list[str]:
    """Return the contents of the last ``count`` complete boxes, in order."""
    found: list[str] = []
    position = len(text)
    for _ in range(_BOXED_TRIES + count):
        position = text.rfind("\\boxed", 0, position)
        if position < 0 or len(found) == count:
            break
        content = _balanced(text, position + len("\\boxed"))
        if content is not None:
            found.insert(0, content)
    return found


def _balanced(text: str, start: int) -> str | None:
    while text[start : start + 1] == " ":
        start += 1
    if text[start : start + 1] != "{":
        return None
    depth = 0
    for brace in _BRACES.finditer(text, start, start + _BOXED_LENGTH):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[start + 1 : brace.start()]
    return None


def _contained(content: str, source: Source) -> FoundAnswer:
    """Return the answer in a tag or box; an expression or a list is not a number."""
    if source == "tag" and (inner := last_boxed(content)) is not None:
        content = inner
    span, number = content.strip(), parse_number(content)
    if number is None and not _is_list_or_expression(span):
        number = _open_answer(content).number
    return FoundAnswer(span, source, number)


def _is_list_or_expression(content: str) -> bool:
    if len(content) > _SPAN or "=" in content:
        return False
    text = strip_latex(plain(content))
    numbers = list(find_numbers(text))
    if not numbers:
        return False
    first, last = numbers[0], numbers[-1]
    gaps = [text[a.end : b.start] for a, b in pairwise(numbers)]
    is_list = len(gaps) > 0 and all(_BETWEEN_LIST_ITEMS.fullmatch(gap) for gap in gaps)
    if is_list or any(_OPERATOR.fullmatch(gap) for gap in gaps):
        return True
    factorial = text.startswith("!", last.end)
    return bool(factorial or _continues(text, last) or _CALL.search(text[: first.start]))


def _continues(text: str, number: Number) -> bool:
    """Return whether an expression continues after the number, so that it is not the answer."""
    tail = text[number.end : number.end + 16]
    return bool(_CONTINUES.match(tail) or _CONTINUES_AFTER_SPACE.fullmatch(tail.rstrip("$ .")))


def _open_answer(text: str) -> FoundAnswer:
    """Return the answer of a response without tags or boxes."""
    end = _without_check(text)
    for _ in range(_MARKER_TRIES):
        marker = _last_marker(text, end)
        if marker is None:
            break
        start, stop = marker
        if not _NOTHING.fullmatch(text, stop, min(end, stop + _SPAN)):
            return _after_marker(text, stop, "equals" if text[start] == "=" else "marker")
        end = start
    if (number := _called_the_answer(text)) is not None:
        return FoundAnswer(_written(number), "called", number)
    number = _before_reasons(text) or last_number(text) or last_spelt_number(text)
    if number is not None:
        return FoundAnswer(_written(number), "last number", number)
    return FoundAnswer(text.strip(), "text" if text.strip() else "none")


def _without_check(text: str) -> int:
    """Return where the answer ends: before a check of it ("Check: 3(5) + 4 = 19"), if there is one.

    A check that names the answer itself is kept.
    """
    check = _last(_CHECK.finditer(text, max(0, len(text) - _MARKERS_READ)))
    if check is None or _ANSWER_IS.search(text, check.end()) or "####" in text[check.end() :]:
        return len(text)
    return check.start() if _last_equals(text, 0, check.start()) >= 0 else len(text)


def _before_reasons(text: str) -> Number | None:
    """Return the number before "because" or "since" in the last sentence."""
    sentence = _SENTENCE.split(text[-_SPAN:].rstrip(" .!\n"))[-1]
    claim, reasons, _ = sentence.partition(next(iter(_REASONS.findall(sentence)), "\0"))
    return last_number(claim) if reasons else None


def _last_marker(text: str, end: int) -> tuple[int, int] | None:
    """Return the start and end of the last marker before ``end``."""
    said = _last(_ANSWER_IS.finditer(text, max(0, end - _MARKERS_READ), end))
    best = said.span() if said else None
    hashes = text.rfind("####", 0, end)
    if hashes >= 0 and (best is None or hashes > best[0]):
        best = (hashes, hashes + 4)
    equals = _last_equals(text, best[1] if best else 0, end)
    return (equals, equals + 1) if equals >= 0 else best


def _last_equals(text: str, start: int, end: int) -> int:
    """Return the last "=" that is not part of <=, >=, != or =>."""
    for _ in range(_EQUALS_TRIES):
        end = text.rfind("=", start, end)
        if end < 0:
            break
        if text[end - 1 : end] not in ("<", ">", "!") and text[end + 1 : end + 2] != ">":
            return end
    return -1


def _after_marker(text: str, start: int, source: Source) -> FoundAnswer:
    """Return the answer in the first line after a marker that is not blank."""
    after = text[start : start + 2 * _SPAN].lstrip(" \t\r\n*:`_")
    line = after.partition("\n")[0][:_SPAN].strip()
    window = strip_latex(plain(line))
    numbers = list(find_numbers(window))
    if numbers:
        first = numbers[0]
        if not _FILLER.fullmatch(window, 0, first.start):
            return FoundAnswer(line, source, numbers[-1])
        return FoundAnswer(line, source, None if _continues(window, first) else first)
    spelt = next(spelt_numbers(window), None)
    if spelt is None or any(map(str.isalpha, _FILLER.sub("", window[: spelt.start], count=1))):
        return FoundAnswer(line, source, last_number(text[start:]))
    return FoundAnswer(line, source, spelt)


def _called_the_answer(text: str) -> Number | None:
    call = _last(_CALLED.finditer(text, max(0, len(text) - _MARKERS_READ)))
    if call is None:
        return None
    return last_number(_SENTENCE.split(text[max(0, call.start() - 200) : call.start()])[-1])


def _last(matches: Iterator[re.Match[str]]) -> re.Match[str] | None:
    return next(iter(deque(matches, maxlen=1)), None)


def _written(number: Number) -> str:
    if number.value is None:
        return ""
    return f"{as_plain(number.value)}{'%' if number.percent else ''}"
