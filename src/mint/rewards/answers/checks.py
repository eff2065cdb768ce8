"""Check whether an answer is right: ``check_answer`` and ``check_numbers``."""

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import TypedDict

from mint.rewards.answers.extraction import (
    FoundAnswer,
    as_plain,
    boxed_contents,
    final_answer,
    last_tag,
)
from mint.rewards.answers.gold import Gold, ReadGold, normalised, normalised_formula, read_gold
from mint.rewards.answers.number import Number, find_numbers, parse_number
from mint.rewards.answers.plaintext import plain, strip_latex

PARTIAL_RANGE = Fraction(1, 10)
_SCANNED = 50_000
_CLAUSE = re.compile(r"[.;:!?](?:\s|$)|,\s|\s(?:because|since|as|so|which|where)\s|\s[-(]")
_MARKED_CHOICE = re.compile(
    r"\W*(?i:option|choice)?\s?\W{0,3}(?!a\s+(?!because|since)[a-z])([A-Ja-j])(?=\W|$)"
)
_LAST_CHOICE = re.compile(r"(?<!or )(?<!and )(?<!not )(?<!n't )\b([A-J])\W*$")
_CHOICE_OF_A_LINE = re.compile(
    r"^\W{0,5}(?:(?:option|choice)\s)?\W{0,3}([A-J])(?:[).:,*]|\s*$|\s(?:because|since|is)\b)",
    re.IGNORECASE | re.MULTILINE,
)
_MARKED = frozenset(["tag", "boxed", "marker"])
_BOOLEANS = frozenset(["yes", "no", "true", "false"])


class NumbersChecked(TypedDict):
    """The result of :func:`check_numbers`."""

    extracted: list[int | float]
    matches: list[bool]
    score: float


def check_answer(response: str | None, ground_truth: Gold) -> float:
    """1.0 when the final answer is right, 0.5 within 10% of a number, else 0.0.

    Never raises on any response.

    >>> check_answer("2 + 2 = 4. The answer is 4.", "4")
    1.0
    >>> check_answer("I get 95.", 100), check_answer("I get 89.", 100)
    (0.5, 0.0)
    >>> check_answer("It is Paris.", "Paris")
    1.0
    """
    gold = read_gold(ground_truth)
    response = response if isinstance(response, str) or response is None else str(response)
    if not response or gold.kind == "never right":
        return 0.0
    answer = final_answer(response)
    if gold.number is None:
        return 1.0 if _says(response, answer, gold) else 0.0
    if answer.number is None:
        return 0.0
    if answer.number.same_as(gold.number):
        return 1.0
    return 0.5 if answer.number.near(gold.number, PARTIAL_RANGE) else 0.0


def is_correct(response: str | None, ground_truth: Gold) -> bool:
    """Return whether the final answer is exactly right.

    >>> is_correct("so x = 0.5", "1/2"), is_correct("so x = 0.49", "1/2")
    (True, False)
    """
    return check_answer(response, ground_truth) == 1.0


def check_numbers(response: str | None, expected_numbers: Sequence[Gold]) -> NumbersChecked:
    """The final numbers of a response, whether each is the expected one, and the share that is.

    >>> check_numbers("2 + 2 = 4. The answer is 4.", [4])
    {'extracted': [4], 'matches': [True], 'score': 1.0}
    >>> check_numbers("The roots are 2 and -3.", [2, -3])["extracted"]
    [2, -3]
    """
    golds = [read_gold(expected) for expected in expected_numbers]
    found = _final_numbers(response or "", len(golds))
    matches = _matches(found, golds)
    return NumbersChecked(
        extracted=[as_plain(number.value) for number in found if number.value is not None],
        matches=matches,
        score=sum(matches) / len(matches) if matches else 0.0,
    )


def _final_numbers(response: str, count: int) -> list[Number]:
    if count == 0:
        return []
    if count == 1:
        number = final_answer(response).number
        return [number] if number is not None and number.value is not None else []
    text = last_tag(response)
    if text is None:
        boxes = boxed_contents(response, count)
        if len(boxes) == count:
            found = [parse_number(box) for box in boxes]
            return [number for number in found if number is not None]
        text = boxes[-1] if boxes else response
    window = strip_latex(plain(text[-_SCANNED:]))
    numbers = [number for number in find_numbers(window) if number.value is not None]
    return numbers[-count:]


def _matches(found: list[Number], golds: list[ReadGold]) -> list[bool]:
    """Compare position by position; when numbers are missing, in order."""
    if len(found) == len(golds):
        return [_matches_gold(a, b) for a, b in zip(found, golds, strict=True)]
    matches, position = [], 0
    for gold in golds:
        match = position < len(found) and _matches_gold(found[position], gold)
        position += match
        matches.append(match)
    return matches


def _matches_gold(number: Number, gold: ReadGold) -> bool:
    return gold.number is not None and number.same_as(gold.number)


def _says(response: str, answer: FoundAnswer, gold: ReadGold) -> bool:
    """Return whether an answer states a gold that is not a number."""
    compared = normalised_formula if gold.kind == "formula" else normalised
    wanted = compared(gold.text)
    candidates = _candidates(response, answer, gold)
    if wanted and any(compared(candidate) == wanted for candidate in candidates):
        return True
    if len(gold.text) == 1 and gold.text.upper() in "ABCDEFGHIJ":
        return _choice(response, answer) == gold.text.upper()
    if gold.kind == "formula":
        from mint.rewards.answers.symbolic import same_formula

        return any(same_formula(gold.text, candidate) for candidate in candidates[:2])
    if wanted in _BOOLEANS:
        said = answer.text if answer.source in _MARKED else response
        return normalised(said[:40]).split(" ")[0].strip(",.:;!") == wanted
    return answer.source in ("text", "last number") and _ends_with(response, wanted)


def _choice(response: str, answer: FoundAnswer) -> str | None:
    """Return the letter of the option that a response chooses, or None."""
    if answer.source in _MARKED:
        marked = _MARKED_CHOICE.match(answer.text[:40])
        return marked[1].upper() if marked else None
    if last := _LAST_CHOICE.search(response[-200:]):
        return last[1]
    lines = {letter.upper() for letter in _CHOICE_OF_A_LINE.findall(response[-2000:])}
    return lines.pop() if len(lines) == 1 else None  # with several, the options were repeated


def _candidates(response: str, answer: FoundAnswer, gold: ReadGold) -> list[str]:
    """Return the spans that may be the answer, the most likely first."""
    if answer.source in ("tag", "boxed"):
        inner = answer.text.rpartition("=")[2] if gold.kind == "formula" else ""
        return [answer.text, inner] if inner and inner != answer.text else [answer.text]
    if answer.source in ("marker", "equals"):
        clause = _CLAUSE.split(answer.text, maxsplit=1)[0]
        formula = _math_span(answer.text) if gold.kind == "formula" else None
        whole = [formula] if formula else [answer.text.rstrip(" .$")]
        if "=" in gold.text:
            whole.append(response.rstrip().rpartition("\n")[2].rpartition(":")[2])
        return [*whole, clause]
    last_line = response.rstrip()[-2000:].rpartition("\n")[2]
    return [span for span in (_math_span(last_line), last_line, response[:2000]) if span]


_MATH = re.compile(r"\$\$?([^$]{1,1000})\$\$?|\\\((.{1,1000}?)\\\)|\\\[(.{1,1000}?)\\\]", re.DOTALL)


def _math_span(text: str) -> str | None:
    """Return the last formula between dollar signs or brackets, or all before a lone dollar."""
    spans = _MATH.findall(text[-4000:])
    if spans:
        return str(next(part for part in spans[-1] if part))
    return text.partition("$")[0] if "$" in text else None


def _ends_with(response: str, wanted: str) -> bool:
    words = normalised(response[-2000:]).split(" ")
    wanted_words = wanted.split(" ")
    tail = words[-len(wanted_words) :]
    before = words[: -len(wanted_words)][-1:]
    return tail == wanted_words and before not in (["not"], ["isn't"], ["never"], ["or"])
