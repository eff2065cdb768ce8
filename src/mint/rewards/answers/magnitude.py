"""Parse unsigned numbers: digits, groups, fractions, powers of ten, roots."""

import re
from decimal import Context, Decimal
from fractions import Fraction

MAX_DIGITS = 1000
MAX_EXPONENT = 1000

Value = int | Fraction

_DIGITS = r"[0-9]++(?:\.[0-9]++)?"
_GROUPED = (
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3}){1,100}+(?![0-9])"
    r"|[0-9]{1,2}(?:,[0-9]{2}(?=,)){1,100}+,[0-9]{3}(?![0-9])"
    r"|[0-9]{1,3}(?:[ '_][0-9]{3}){1,100}+(?![0-9']|\s?/\s?[0-9])"
    r"|[0-9]++)(?:\.[0-9]++)?"
    r"|\.[0-9]++)"
)
_ROOT = r"(?:\\sqrt\s?(?:\[\s?[0-9]{1,2}\s?\])?\s?(?:\{\s?[0-9.]++\s?\}|[0-9])|√\s?\(?[0-9.]++\)?)"
_SIDE = rf"(?:\{{\s?[-+]?(?:{_DIGITS})?(?:{_ROOT})?\s?\}}|[0-9])"
_LATEX_FRACTION = rf"\\[dtc]?frac\s?{_SIDE}\s?{_SIDE}"
EXPONENT = r"(?:\{\s?[-+]?[0-9]{1,6}\s?\}|\([-+]?[0-9]{1,6}\)|[-+]?[0-9]{1,6})"
_SCIENCE = (
    rf"(?:[eE][-+]?[0-9]{{1,6}}(?![0-9A-Za-z])"
    rf"|\s?(?:[x×*·]|\\times|\\cdot)\s?10\s?(?:\^|\*\*)\s?{EXPONENT})"
)
_OVER = rf"\s?/\s?{_DIGITS}(?!\s?/\s?[0-9])"

MAGNITUDE = (
    rf"(?:{_LATEX_FRACTION}|{_ROOT}(?:{_OVER})?|{_GROUPED}"
    rf"(?:{_SCIENCE}|\s?{_LATEX_FRACTION}|\s?{_ROOT}(?:{_OVER})?|\s[0-9]++\s?/\s?[0-9]++|{_OVER})?)"
)
_PARTS = re.compile(
    rf"(?P<whole>{_GROUPED})?(?:(?P<science>{_SCIENCE})|\s?(?P<latex>{_LATEX_FRACTION})"
    rf"|\s?(?P<root>{_ROOT})|\s(?P<top>[0-9]++)\s?/\s?(?P<bottom>[0-9]++))?"
    rf"(?:\s?/\s?(?P<divisor>{_DIGITS}))?"
)
_LATEX_SIDES = re.compile(_SIDE)
_SIGNED_SIDE = re.compile(rf"(?P<sign>[-+]?)(?P<digits>{_DIGITS})?(?P<root>{_ROOT})?")
_LAST_INTEGER = re.compile(r"[-+]?[0-9]+")
_ROOTS = Context(prec=60)


def magnitude(text: str) -> tuple[Value, bool]:
    r"""Return the value of a match of ``MAGNITUDE``, and whether it is exact.

    An irrational root is kept to sixty digits. Raises ValueError if there are too many digits, and
    ZeroDivisionError.

    >>> magnitude("1 1/2"), magnitude("1.5×10^3"), magnitude(r"\sqrt{16}")
    ((Fraction(3, 2), True), (Fraction(1500, 1), True), (Fraction(4, 1), True))
    """
    if text.isdigit():
        return decimal(text), True
    parts = _PARTS.fullmatch(text)
    if parts is None or len(text) > 2 * MAX_DIGITS:
        raise ValueError("too long")
    value = decimal(parts["whole"]) if parts["whole"] else 0
    exact = True
    if parts["science"]:
        value *= power_of_ten(_LAST_INTEGER.findall(parts["science"])[-1])
    elif parts["latex"]:
        sides = _LATEX_SIDES.findall(parts["latex"].partition("frac")[2])
        (top, top_exact), (bottom, bottom_exact) = map(_side, sides)
        value += Fraction(top) / bottom
        exact = top_exact and bottom_exact
    elif parts["root"]:
        root, exact = _root(parts["root"])
        value = value * root if parts["whole"] else root
    elif parts["top"]:
        value += Fraction(decimal(parts["top"])) / decimal(parts["bottom"])
    if parts["divisor"]:
        value = Fraction(value) / decimal(parts["divisor"])
    return value, exact


def decimal(text: str) -> Value:
    """Parse digits with separators and a decimal point."""
    whole, _, decimals = text.partition(".")
    whole = "".join(character for character in whole if character.isdigit())
    if len(whole) + len(decimals) > MAX_DIGITS:
        raise ValueError("too many digits")
    return Fraction(int(whole + decimals), 10 ** len(decimals)) if decimals else int(whole)


def power_of_ten(text: str) -> Value:
    """Return 10 to the power written in ``text``."""
    exponent = int(text.strip("{}() "))
    if abs(exponent) > MAX_EXPONENT:
        raise ValueError("too many digits")
    return 10**exponent if exponent >= 0 else Fraction(1, 10**-exponent)


def _side(text: str) -> tuple[Value, bool]:
    inside = text[1:-1].strip() if text.startswith("{") else text
    match = _SIGNED_SIDE.fullmatch(inside)
    if match is None or not (match["digits"] or match["root"]):
        raise ValueError("not a number")
    value = decimal(match["digits"]) if match["digits"] else 1
    root, exact = _root(match["root"]) if match["root"] else (1, True)
    return (-value if match["sign"] == "-" else value) * root, exact


def _root(text: str) -> tuple[Value, bool]:
    degree, inside = 2, text
    if "[" in text:
        inside = text[text.index("]") + 1 :]
        degree = int(text[text.index("[") + 1 : text.index("]")])
    radicand = decimal(inside.removeprefix("\\sqrt").strip("√{}() "))
    if degree < 2:
        raise ValueError("not a root")
    top, bottom = (_whole_root(side, degree) for side in radicand.as_integer_ratio())
    if top is not None and bottom is not None:
        return Fraction(top, bottom), True
    quotient = _ROOTS.divide(Decimal(radicand.numerator), Decimal(radicand.denominator))
    return Fraction(_ROOTS.power(quotient, _ROOTS.divide(Decimal(1), Decimal(degree)))), False


def _whole_root(value: int, degree: int) -> int | None:
    """Return the integer whose ``degree``-th power is ``value``, by bisection."""
    low, high = 0, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**degree <= value else (low, middle - 1)
    return low if low**degree == value else None
