"""``check_answer`` and ``check_numbers`` against the acceptance table and the labelled answers."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from mint.rewards import check_answer, check_numbers, extract_answer, extract_number, is_correct
from tests.rewards.answers.answer_cases import CASES

LABELLED = Path(__file__).parent / "labelled_answers.jsonl"
PAGE_SCRIPT = Path(__file__).parent / "page_script.py"


@pytest.mark.parametrize(
    ("response", "gold", "expected"),
    [pytest.param(*case[2:], id=f"{case[0]}-{case[1]}") for case in CASES],
)
def test_the_acceptance_table(response: str | None, gold: Any, expected: float) -> None:
    assert check_answer(response, gold) == expected


def test_the_acceptance_table_has_at_least_300_cases() -> None:
    assert len(CASES) >= 300


def test_labelled_answers_are_judged_right_at_least_99_times_in_100(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [json.loads(line) for line in LABELLED.read_text(encoding="utf-8").splitlines()]
    wrong = [row for row in rows if is_correct(row["response"], row["answer"]) != row["right"]]
    accuracy = 1 - len(wrong) / len(rows)
    with capsys.disabled():
        print(f"\nlabelled answers: {accuracy:.1%} of {len(rows)} judged as labelled")
    assert len(rows) >= 200
    assert accuracy >= 0.99, [row["response"] for row in wrong]


def test_the_pages_script_runs_as_written() -> None:
    ran = subprocess.run(
        [sys.executable, str(PAGE_SCRIPT)], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "Expected: 1.0, Got: 1.0\nExpected: 0.5, Got: 0.7\n"


@pytest.mark.parametrize(
    ("response", "expected", "extracted", "matches"),
    [
        ("2 + 2 = 4. The answer is 4.", [4], [4], [True]),
        ("The roots are 2 and -3.", [2, -3], [2, -3], [True, True]),
        ("The roots are 2 and -3.", [-3, 2], [2, -3], [False, False]),
        ("We try 7. The roots are 2 and 3.", [2, 3], [2, 3], [True, True]),
        ("Only 3.", [2, 3], [3], [False, True]),
        ("Only 2.", [2, 3], [2], [True, False]),
        (r"\boxed{2} and \boxed{3}", [2, 3], [2, 3], [True, True]),
        (r"\boxed{2, 3}, found in 5 steps", [2, 3], [2, 3], [True, True]),
        ("<answer>2; 3</answer> 9 9", [2, 3], [2, 3], [True, True]),
        ("0.5 and 1/3", ["1/2", Fraction(1, 3)], [0.5, 1 / 3], [True, True]),
        ("none", [1], [], [False]),
        (None, [1], [], [False]),
        ("1 2 3", [], [], []),
    ],
)
def test_check_numbers_finds_the_final_numbers_in_order(
    response: str | None, expected: list[Any], extracted: list[float], matches: list[bool]
) -> None:
    found = check_numbers(response, expected)
    assert found["extracted"] == extracted
    assert found["matches"] == matches
    assert found["score"] == (sum(matches) / len(matches) if matches else 0.0)


def test_an_integer_is_extracted_as_an_integer() -> None:
    assert type(check_numbers("4.0", [4])["extracted"][0]) is int


@pytest.mark.parametrize("response", [4, 4.0, b"4", ["4"], "\ud800 4", object()])
def test_check_answer_never_raises_on_odd_responses(response: Any) -> None:
    assert check_answer(response, "x^2") == 0.0
    assert check_answer(response, "4") in (0.0, 1.0)


@pytest.mark.parametrize("gold", ["inf", "-inf", "nan", "snan"])
def test_a_decimal_gold_that_is_not_finite_is_never_right(gold: str) -> None:
    assert check_answer(str(Decimal(gold)), Decimal(gold)) == 0.0


def test_a_number_too_large_for_a_float_has_a_score() -> None:
    response = f"The answer is {'9' * 400}.5"
    assert check_answer(response, "5") == 0.0
    assert check_answer(response, f"{'9' * 400}.5") == 1.0
    assert extract_number(response) == 10**400
    assert check_numbers(response, [5])["extracted"] == [10**400]


@pytest.mark.parametrize("gold", [None, [4], {"answer": 4}])
def test_a_gold_that_is_neither_text_nor_number_is_refused(gold: Any) -> None:
    with pytest.raises(TypeError, match="A gold answer must be a string or a number"):
        check_answer("4", gold)


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ("2 + 2 = 4. The answer is 4.", "4"),
        ("<answer> x + 1 </answer>", "x + 1"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("It is 8, not 9.", "8"),
        ("Ann has seven apples left.", "7"),
        ("The answer is seven apples.", "7"),
        ("no idea", None),
        ("", None),
        (None, None),
    ],
)
def test_extract_answer(response: str | None, text: str | None) -> None:
    assert extract_answer(response) == text


@pytest.mark.parametrize(
    ("response", "number"), [("x = 1e3", 1000), ("half: 1/2", 0.5), ("none", None), (None, None)]
)
def test_extract_number(response: str | None, number: float | None) -> None:
    assert extract_number(response) == number
