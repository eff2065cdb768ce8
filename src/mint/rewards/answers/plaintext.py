"""Convert text to plain ASCII: digits of other scripts, unusual spaces and minus signs."""

import re
import unicodedata

_REPLACED = {
    **dict.fromkeys("\u2212\u2010\u2011\u2012\u2013", "-"),  # the minus sign, hyphens and dashes
    **dict.fromkeys("\u2044\u2215", "/"),  # slashes of fractions and divisions
    **dict.fromkeys("\u2032\u2019", "'"),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad", ""),  # characters without a width
    "\u22c5": "·",
    "\u2217": "*",
    "\u00b0": " degrees",
}
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻"
_RAISED_RUN = re.compile(f"(?<![{_RAISED}])(?=[{_RAISED}])")
_RAISED_TO_PLAIN = str.maketrans(_RAISED, "0123456789+-")
_VULGAR_AFTER_DIGIT = re.compile(r"(?<=\d)(?=[¼½¾⅐-⅞↉])")
_LONGEST_EXPANSION = 6


class _Table(dict[int, str]):
    """Filled character by character: NFKC of a whole string is quadratic on runs of marks."""

    def __missing__(self, codepoint: int) -> str:
        character = chr(codepoint)
        if character in _REPLACED:
            plain = _REPLACED[character]
        elif (digit := unicodedata.decimal(character, None)) is not None:
            plain = str(digit)
        else:
            plain = unicodedata.normalize("NFKC", character).replace("\u2044", "/")
            plain = plain if len(plain) <= _LONGEST_EXPANSION else character
        self[codepoint] = plain
        return plain


_TABLE = _Table()


def plain(text: str) -> str:
    """Write digits, signs, fractions and spaces of any script in ASCII.

    >>> plain("\u2212１½ × 10³")
    '-1 1/2 × 10^3'
    """
    if text.isascii():
        return text
    text = _RAISED_RUN.sub("^", text).translate(_RAISED_TO_PLAIN)
    return _VULGAR_AFTER_DIGIT.sub(" ", text).translate(_TABLE)


_LATEX_WRAPPER = re.compile(
    r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mathsf|operatorname|mbox|hbox|emph)\s?"
    r"\{([^{}]*)\}"
)
_LATEX_NOTHING = re.compile(r"\\(?:!|left\b|right\b|displaystyle\b)")
_LATEX_SPACE = re.compile(r"\\(?:,|;|:| |quad\b|qquad\b)|~")
_LATEX_DEGREES = re.compile(r"\^\s?\{?\s?\\circ\s?\}?|\\degree\b")
_LATEX_ESCAPED = re.compile(r"\\([$%#&_])")


def strip_latex(text: str) -> str:
    r"""Remove LaTeX text wrappers, spaces and escapes, but not fractions and roots.

    >>> strip_latex(r"1{,}000\,\text{cm} = \$\frac{1}{2}")
    '1,000  cm  = $\\frac{1}{2}'
    """
    if "\\" not in text and "{,}" not in text and "~" not in text:
        return text
    text = text.replace("{,}", ",").replace(r",\!", ",")
    text = _LATEX_WRAPPER.sub(r" \1 ", text)
    text = _LATEX_DEGREES.sub(" degrees", text)
    text = _LATEX_NOTHING.sub("", text)
    text = _LATEX_SPACE.sub(" ", text)
    return _LATEX_ESCAPED.sub(r"\1", text)
