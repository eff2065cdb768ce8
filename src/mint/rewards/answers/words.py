"""Parse numbers that are spelt out in English."""

import re
from itertools import takewhile

_UNITS = [
    *["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"],
    *["eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"],
    *["eighteen", "nineteen"],
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SMALL = {word: value for value, word in enumerate(_UNITS)}
_SMALL.update({word: 10 * value for value, word in enumerate(_TENS, start=2)})
_LARGE = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_WORD = re.compile(r"[a-z]+")
_READ = 4000
_SPELT = frozenset([*_SMALL, *_LARGE, "hundred", "and", "minus", "negative"])

_RUN = re.compile(
    rf"\b(?:(?:minus|negative)\s)?(?:{'|'.join(_SMALL)})"
    rf"(?:(?:-|\s(?:and\s)?)(?:{'|'.join([*_SMALL, *_LARGE, 'hundred'])}))*\b"
)


def spelt_number(text: str) -> int | None:
    """Return the integer that ``text`` spells out at its start, or None.

    >>> spelt_number("Forty-two apples")
    42
    >>> spelt_number("minus one hundred and five"), spelt_number("none of them")
    (-105, None)
    """
    words = list(takewhile(_SPELT.__contains__, _WORD.findall(text[:200].lower())))
    is_negative = words[:1] in (["minus"], ["negative"])
    words = words[is_negative:]
    if not words or words[0] not in _SMALL:
        return None
    total = group = 0
    for word in words:
        if word in _SMALL:
            group += _SMALL[word]
        elif word == "hundred":
            group *= 100
        elif word in _LARGE:
            total, group = total + group * _LARGE[word], 0
    return -(total + group) if is_negative else total + group


def last_spelt_number(text: str) -> int | None:
    """Return the last integer that is spelt out in a text; "one" alone is too often a pronoun.

    >>> last_spelt_number("Ann has seven apples left."), last_spelt_number("No one knows.")
    (7, None)
    """
    runs = [run for run in _RUN.findall(text[-_READ:].lower()) if run.split() != ["one"]]
    if runs:
        return spelt_number(runs[-1])
    return 1 if text.strip(" .!\n").lower() == "one" else None
