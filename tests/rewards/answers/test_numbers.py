"""Numbers survive the round trip through every way of writing them."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mint.rewards import check_answer, extract_prediction
from mint.rewards.answers.number import parse_number

integers = st.integers(min_value=-(10**12), max_value=10**12)
decimals = st.decimals(
    min_value=-(10**9), max_value=10**9, allow_nan=False, allow_infinity=False, places=4
)
texts = st.text(max_size=300)
golds = st.one_of(st.text(min_size=1, max_size=30), integers, decimals, st.floats())

WAYS = {
    "plain": lambda n: f"{n}",
    "with a point": lambda n: f"{n}.0",
    "grouped by commas": lambda n: f"{n:,}",
    "grouped by spaces": lambda n: f"{n:,}".replace(",", " "),
    "grouped by narrow spaces": lambda n: f"{n:,}".replace(",", "\u202f"),
    "in LaTeX groups": lambda n: f"{n:,}".replace(",", "{,}"),
    "with a minus sign": lambda n: f"{n}".replace("-", "\u2212"),
    "full-width": lambda n: f"{n}".translate({ord(c): ord(c) + 0xFEE0 for c in "-0123456789"}),
    "in dollars": lambda n: f"${n:,}.00".replace("$-", "-$"),
    "as a fraction": lambda n: f"{n * 6}/6",
    "as a LaTeX fraction": lambda n: rf"\frac{{{n * 6}}}{{6}}",
    "in a box": lambda n: rf"\boxed{{{n}}}",
    "in a tag": lambda n: f"<answer>{n}</answer>",
    "in a sentence": lambda n: f"The answer is {n}.",
    "after an equals sign": lambda n: f"so x = {n} apples",
    "as GSM8K writes it": lambda n: f"We add.\n#### {n:,}",
    "with an exponent": lambda n: f"{n}e0",
    "scientific": lambda n: f"{n}0 × 10^-1",
}


@pytest.mark.parametrize("way", WAYS)
@given(integer=integers)
@settings(max_examples=60, deadline=None)
def test_an_integer_is_recognised_however_it_is_written(way: str, integer: int) -> None:
    written = WAYS[way](integer)
    assert check_answer(written, integer) == 1.0, written
    assert check_answer(written, -integer or 1) < 1.0, written


@given(value=decimals)
@settings(max_examples=300, deadline=None)
def test_a_decimal_keeps_its_exact_value(value: Decimal) -> None:
    number = parse_number(f"{value:f}")
    assert number is not None
    assert number.value == Fraction(value)


@given(top=st.integers(-999, 999), bottom=st.integers(1, 999), whole=st.integers(1, 999))
@settings(max_examples=300, deadline=None)
def test_fractions_and_mixed_fractions_are_exact(top: int, bottom: int, whole: int) -> None:
    for text in (
        f"{top}/{bottom}",
        rf"\frac{{{top}}}{{{bottom}}}",
        rf"\dfrac{{{top}}}{{{bottom}}}",
    ):
        number = parse_number(text)
        assert number is not None
        assert number.value == Fraction(top, bottom)
    if 0 < top < bottom:
        for text in (f"{whole} {top}/{bottom}", rf"{whole}\frac{{{top}}}{{{bottom}}}"):
            number = parse_number(text)
            assert number is not None
            assert number.value == whole + Fraction(top, bottom)


@given(mantissa=decimals, exponent=st.integers(-30, 30))
@settings(max_examples=300, deadline=None)
def test_scientific_notation_is_exact(mantissa: Decimal, exponent: int) -> None:
    value = Fraction(mantissa) * Fraction(10) ** exponent
    for text in (
        f"{mantissa:f}e{exponent}",
        f"{mantissa:f} × 10^{exponent}",
        rf"{mantissa:f} \times 10^{{{exponent}}}",
    ):
        number = parse_number(text)
        assert number is not None
        assert number.value == value, text


@given(gold=integers.filter(bool), thousandths=st.integers(-100, 100))
@settings(max_examples=300, deadline=None)
def test_ten_percent_off_is_inside_and_more_is_not(gold: int, thousandths: int) -> None:
    near = Decimal(gold) * (1000 + thousandths) / 1000
    beyond = Decimal(gold) * (1101 if thousandths > 0 else 899) / 1000
    assert check_answer(f"{near:f}", gold) == (1.0 if thousandths == 0 else 0.5)
    assert check_answer(f"{beyond:f}", gold) == 0.0


@given(value=decimals)
@settings(max_examples=200, deadline=None)
def test_a_percentage_is_right_as_itself_and_as_its_hundredth(value: Decimal) -> None:
    written = f"{value:f}%"
    assert check_answer(written, written) == 1.0
    assert check_answer(written, f"{value:f}") == 1.0
    assert check_answer(written, f"{value / 100:f}") == 1.0


@given(response=texts, gold=golds)
@settings(max_examples=500, deadline=None)
def test_no_response_makes_check_answer_raise(response: str, gold: object) -> None:
    assert check_answer(response, gold) in (0.0, 0.5, 1.0)  # type: ignore[arg-type]


@given(a=st.integers(0, 999), b=st.integers(0, 999))
@settings(max_examples=100, deadline=None)
def test_a_hyphen_between_two_numbers_is_not_a_sign(a: int, b: int) -> None:
    for text in (f"{a}-{b}", f"{a} - {b}", f"{a}\u2013{b}", f"{a} -{b}"):
        assert check_answer(text, b) == 1.0
        assert check_answer(text, -b) == (1.0 if b == 0 else 0.0)


@given(integer=integers)
@settings(max_examples=100, deadline=None)
def test_extract_prediction_takes_the_first_integer(integer: int) -> None:
    assert extract_prediction(f" {integer}\nQ: What is 1 + 1?") == integer
