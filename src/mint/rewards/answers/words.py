"""Parse numbers that are spelt out in English."""

import re
from collections.abc import Iterator

from mint.rewards.answers.number import SCALES, Number

_UNITS = [
    *["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"],
    *["eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"],
    *["eighteen", "nineteen"],
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SMALL = {word: value for value, word in enumerate(_UNITS)}
_SMALL.update({word: 10 * value for value, word in enumerate(_TENS, start=2)})
_READ = 4000
_RUN = re.compile(
    rf"\b(?P<minus>(?:minus|negative)\s)?(?P<words>(?:{'|'.join(_SMALL)})"
    rf"(?:(?:-|\s(?:and\s)?)(?:{'|'.join([*_SMALL, *SCALES, 'hundred'])}))*)\b",
    re.IGNORECASE,
)


def spelt_numbers(text: str) -> Iterator[Number]:
    """Yield the integers that are spelt out in a text.

    >>> [number.value for number in spelt_numbers("Forty-two. None. Minus one hundred and five")]
    [42, -105]
    """
    for run in _RUN.finditer(text):
        total = group = 0
        for word in re.findall("[a-z]+", run["words"].lower()):
            if word in _SMALL:
                group += _SMALL[word]
            elif word == "hundred":
                group *= 100
            elif word in SCALES:
                total, group = total + group * SCALES[word], 0
        value = -(total + group) if run["minus"] else total + group
        yield Number(value, start=run.start(), end=run.end())


def last_spelt_number(text: str) -> Number | None:
    """Return the last integer that is spelt out in a text; "one" alone is too often a pronoun.

    >>> last_spelt_number("Ann has seven apples left.").value, last_spelt_number("No one knows.")
    (7, None)
    """
    numbers = [number for number in spelt_numbers(text[-_READ:]) if number.value != 1]
    if numbers:
        return numbers[-1]
    return Number(1) if text.strip(" .!\n").lower() == "one" else None
