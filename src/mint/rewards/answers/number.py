"""Find numbers in text as people and models write them, and compare them exactly.

A value is an ``int`` or a ``Fraction``; floats never take part in a comparison.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from mint.rewards.answers.magnitude import (
    EXPONENT,
    MAGNITUDE,
    MAX_DIGITS,
    Value,
    magnitude,
    power_of_ten,
)
from mint.rewards.answers.plaintext import plain, strip_latex

CURRENCY = r"(?:(?:US|CA|AU|NZ|HK|A|C)?\$|[€£¥₹₽₩]|(?:USD|EUR|GBP|JPY|INR|CNY|RMB|Rs\.?)\s?)"
_PERCENT = r"\s?(?:%|percent\b|per cent\b)"
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SCALE = rf"\s?(?:{'|'.join(SCALES)})\b"

# For use inside other patterns: a signed number with its currency, scale and percent sign.
NUMBER = rf"(?:[-+]\s?)?(?:{CURRENCY}\s?)?(?:[-+]\s?)?{MAGNITUDE}(?:{_SCALE})?(?:{_PERCENT})?"

_NOT_INSIDE_A_WORD = (
    r"(?:(?<![0-9A-Za-z_^])|(?<=USD)|(?<=EUR)|(?<=GBP)|(?<=INR)|(?<=Rs))(?<![0-9]/)"
)
_FOUND = re.compile(
    rf"{_NOT_INSIDE_A_WORD}(?:(?P<ten>10)(?:\^|\*\*)(?P<exponent>{EXPONENT})"
    rf"|(?P<magnitude>{MAGNITUDE})(?P<scale>{_SCALE})?)"
    rf"(?P<percent>{_PERCENT})?(?P<raised>\s?(?:\^|\*\*(?=\s?[-({{0-9])))?"
)
_SIGN_ONLY = re.compile(rf"\s*(?:[-+]|negative|minus)?\s*(?:{CURRENCY})?\s*[-+]?\s*")
_UNIT_ONLY = re.compile(
    r"(?:\s?[€£¥₹$])?(?:(?:\s|(?![a-zA-Z](?![a-zA-Z])))[A-Za-z][A-Za-z/^0-9.]{0,19}){0,3}\.?"
)
_CURRENCY_BEFORE = re.compile(rf"{CURRENCY}\s?\Z")
_DIGIT = re.compile(r"[0-9]")
_LONGEST_BEFORE_A_DIGIT = 64
_SAME_ROOT = Fraction(1, 10**45)
_WINDOW = 8192
_OVERLAP = 2048


@dataclass(frozen=True, slots=True)
class Number:
    """A number found in a text. ``value`` is None when it is too long or divides by zero."""

    value: Value | None
    percent: bool = False
    exact: bool = True
    start: int = 0
    end: int = 0

    def same_as(self, other: Number) -> bool:
        """Return whether the two are equal; ``50%`` equals ``50%``, ``50`` and ``0.5``."""
        if self.exact and other.exact:
            return any(a == b for a, b in self._pairs(other))
        if self.exact != other.exact:
            return False
        return any(distance(a, b) <= _SAME_ROOT * distance(b, 0) for a, b in self._pairs(other))

    def near(self, other: Number, share: Fraction) -> bool:
        """Return whether this is within ``share`` of ``other``, the bound itself included."""
        pairs = self._pairs(other)
        return any(b != 0 and distance(a, b) <= share * distance(b, 0) for a, b in pairs)

    def _pairs(self, other: Number) -> list[tuple[Value, Value]]:
        if self.value is None or other.value is None:
            return []
        pairs = [(self.value, other.value)]
        if self.percent and not other.percent:
            pairs.append((Fraction(self.value) / 100, other.value))
        if other.percent and not self.percent:
            pairs.append((self.value, Fraction(other.value) / 100))
        return pairs


def distance(a: Value, b: Value) -> Fraction:
    """Return the exact absolute difference of two values."""
    return abs(Fraction(a) - Fraction(b))


def parse_number(text: str) -> Number | None:
    r"""Return the number of a text that contains only it, its unit and its currency, or None.

    >>> parse_number("-$1,234.50").value
    Fraction(-2469, 2)
    >>> parse_number(r"2\frac{1}{2} cm").value
    Fraction(5, 2)
    >>> parse_number("3 apples and 4 pears") is None
    True
    """
    if len(text) > 2 * MAX_DIGITS:
        return None
    text = _unwrapped(strip_latex(plain(text)))
    numbers = list(find_numbers(text))
    if len(numbers) != 1:
        return None
    before, after = text[: numbers[0].start], text[numbers[0].end :]
    if not _SIGN_ONLY.fullmatch(before) or not _UNIT_ONLY.fullmatch(after):
        return None
    return numbers[0]


def find_numbers(text: str) -> Iterator[Number]:
    """Yield the numbers of a text that went through :func:`~mint.rewards.answers.plaintext.plain`.

    A hyphen between two numbers is not a sign.

    >>> [str(number.value) for number in find_numbers("3-5 is not 3 + -5, nor 1e3 or 50%")]
    ['3', '5', '3', '-5', '1000', '50']
    """
    digit = _DIGIT.search(text)
    if digit is None:
        return
    for match in _FOUND.finditer(text, max(0, digit.start() - _LONGEST_BEFORE_A_DIGIT)):
        if not match["raised"]:
            yield _number(match, text)


def last_number(text: str) -> Number | None:
    """Return the last number of a text of any length, reading from the end in bounded windows.

    A number that is denied ("not 9") does not count.

    >>> last_number("first 3, then " + "x" * 100_000).value
    3
    """
    end = len(text)
    while end > 0:
        start = max(0, end - _WINDOW)
        window = strip_latex(plain(text[start:end]))
        said = (number for number in find_numbers(window) if not _denied(window, number))
        found = next(iter(deque(said, maxlen=1)), None)
        if start == 0 or (found is not None and (found.start > 0 or found.value is None)):
            return found
        end = start + _OVERLAP
    return None


def _denied(text: str, number: Number) -> bool:
    return text[max(0, number.start - 12) : number.start].rstrip("-$ ").endswith(("not", "n't"))


def _number(match: re.Match[str], text: str) -> Number:
    value: Value | None
    try:
        if match["ten"]:
            value, exact = power_of_ten(match["exponent"]), True
        else:
            value, exact = magnitude(match["magnitude"])
        value *= SCALES[match["scale"].strip()] if match["scale"] else 1
        value *= _sign_before(text, match.start())
        value = value.numerator if value.denominator == 1 else value
    except (ValueError, ZeroDivisionError):
        value, exact = None, True
    return Number(value, match["percent"] is not None, exact, match.start(), match.end())


def _unwrapped(text: str) -> str:
    text = text.strip().strip("*`").strip()
    if len(text) > 1 and text[0] == text[-1] == "$":
        text = text.strip("$")
    elif text.startswith((r"\(", r"\[")) and text.endswith((r"\)", r"\]")):
        text = text[2:-2]
    while len(text) > 2 and text[0] == "(" and text[-1] == ")":
        text = text[1:-1]
    return text.strip()


def _sign_before(text: str, start: int) -> int:
    """Return -1 if a number is preceded by a minus sign rather than a hyphen."""
    if start == 0 or text[start - 1] not in "- $€£¥₹₽₩DRPYsB.":
        return 1
    before = text[max(0, start - 24) : start]
    bare = _CURRENCY_BEFORE.sub("", before).rstrip(" ")
    if bare.endswith("-"):
        return -1 if _is_sign(bare[:-1], spaced=before[-1] == " ") else 1
    if bare[-8:].lower() == "negative":
        return -1
    return -1 if bare[-5:].lower() == "minus" and not _ends_an_operand(bare[:-5]) else 1


def _is_sign(before: str, spaced: bool) -> bool:
    """Return whether a minus after ``before`` is a sign, not a bullet or between two numbers."""
    if not before:
        return True
    if before[-1] == "\n":
        return not spaced
    if before[-1] not in " \t":
        return not (before[-1].isalnum() or before[-1] in ")]}%!_-")
    if before.rstrip(" \t")[-1:].isalpha():
        return not spaced
    return not _ends_an_operand(before)


def _ends_an_operand(before: str) -> bool:
    """Return whether a text ends in something to subtract from: a number, a bracket, a letter."""
    before = before.rstrip(" \t")
    if not before:
        return False
    if before[-1].isdigit() or before[-1] in ")]}%!":
        return True
    return before[-1].isalpha() and not before[-2:-1].isalpha()
