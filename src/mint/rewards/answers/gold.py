"""Gold answers: a number, a formula, or text."""

import re
import string
import unicodedata
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from mint.rewards.answers.extraction import marked_answer
from mint.rewards.answers.number import Number, parse_number
from mint.rewards.answers.plaintext import strip_latex

Gold = str | int | float | Decimal | Fraction
Kind = Literal["number", "formula", "text", "never right"]

_NEVER = re.compile(r"[-+]?(?:nan|inf)", re.IGNORECASE)
_FORMULA = re.compile(
    r"[\\^_=<>√π∞±]|[0-9)]\s?[-+*/×·]|[0-9][a-z]\b|[-+*/]\s?[a-z0-9(]|[(\[{].*[,;]"
)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_DECORATION = re.compile(r"[\s$*`\"]+")
_TEXT_LIMIT = 2000


@dataclass(frozen=True, slots=True)
class ReadGold:
    """A parsed gold answer: its kind, its text, and its number if it is one."""

    kind: Kind
    text: str
    number: Number | None = None


def read_gold(ground_truth: Gold) -> ReadGold:
    r"""Parse a gold answer. ``#### n`` and ``\boxed{…}`` solutions are golds too.

    >>> read_gold("She has 3 + 4 = 7 left. #### 7").number.value
    7
    >>> read_gold(r"Therefore $x = \boxed{x^2 + 1}$.").kind
    'formula'
    """
    if isinstance(ground_truth, Decimal) and not ground_truth.is_finite():
        return ReadGold("never right", str(ground_truth))
    if isinstance(ground_truth, str | float | Decimal):
        return _read_text(str(ground_truth))
    if isinstance(ground_truth, bool):
        return ReadGold("text", str(ground_truth))
    if isinstance(ground_truth, int | Fraction):
        return ReadGold("number", str(ground_truth), Number(ground_truth))
    raise TypeError(
        f"A gold answer must be a string or a number, not {type(ground_truth).__name__}. "
        "Pass the answer itself, for example check_answer(response, '42')."
    )


@lru_cache(maxsize=8192)
def _read_text(text: str) -> ReadGold:
    if "####" in text:
        text = text.rpartition("####")[2]
    elif (content := marked_answer(text)) is not None:
        text = content
    text = text.strip()
    bare = text.strip("$ ")
    if _NEVER.fullmatch(bare) or not bare:
        return ReadGold("never right", text)
    number = parse_number(text)
    if number is not None and number.value is not None:
        return ReadGold("number", text, number)
    return ReadGold("formula" if _FORMULA.search(bare[:_TEXT_LIMIT]) else "text", text)


def normalised(text: str) -> str:
    r"""Normalise text for comparison: no case, articles, outer punctuation or LaTeX markup.

    >>> normalised(r" The **\text{Eiffel Tower}**. ")
    'eiffel tower'
    """
    text = unicodedata.normalize("NFKC", text[:_TEXT_LIMIT])
    text = strip_latex(text).casefold()
    text = _DECORATION.sub(" ", text).strip().strip(string.punctuation + " ")
    return " ".join(_ARTICLES.sub(" ", text).split())


def normalised_formula(text: str) -> str:
    r"""Normalise a formula for comparison: no spaces, dollars or LaTeX markup.

    >>> normalised_formula(r"$ \left( x + 1 \right) $.")
    '(x+1)'
    """
    text = strip_latex(text[:_TEXT_LIMIT])
    return "".join(text.replace("$", "").split()).rstrip(".,")
