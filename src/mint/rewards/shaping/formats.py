"""Check whether a response has the expected format.

A template's ``[NUM]`` stands for any number and ``[TEXT]`` for any text that is not blank;
everything else is literal. Between a tag and its end, ``…`` and ``...`` mean ``[TEXT]``.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mint.rewards.answers.number import NUMBER
from mint.rewards.answers.plaintext import plain

_TAG = re.compile(r"</?[A-Za-z][\w-]*>")
_ELLIPSIS_IN_TAG = re.compile(r"(?<=>)\s*(?:…|\.\.\.)\s*(?=</)")
_PIECE = re.compile(rf"(\[NUM\]|\[TEXT\]|{_TAG.pattern})")
_NUMBER = re.compile(NUMBER)
_END = re.compile(r"\Z")
_READ = 50_000
_EMPTY_WORDS = frozenset(["", ".", ",", ":", ";"])


@dataclass(frozen=True)
class Template:
    """A format, split at ``[TEXT]``; its parts are searched for one after another.

    A part is empty before a ``[TEXT]`` that begins the format, and the end after one that ends it.
    An approximate match looks for the pieces: tags, numbers and literal words.
    """

    parts: tuple[re.Pattern[str], ...]
    pieces: tuple[str, ...]

    def find(self, text: str, at_end: bool) -> bool:
        """Return whether the template matches somewhere in ``text``, or at its end."""
        position = 0
        for index, part in enumerate(self.parts):
            matches = _matches(part, text, position, after_text=index > 0)
            if at_end and index == len(self.parts) - 1:
                return any(match.end() == len(text) for match in matches)
            match = next(matches, None)
            if match is None:
                return False
            position = match.end()
        return True


def _matches(
    part: re.Pattern[str], text: str, position: int, after_text: bool
) -> Iterator[re.Match[str]]:
    """Yield the matches of a part; with ``after_text``, only those after text that is not blank."""
    is_blank = after_text
    for match in part.finditer(text, position):
        is_blank = is_blank and not text[position : match.start()].strip()
        if not is_blank:
            yield match


@lru_cache(maxsize=256)
def read_template(expected_format: str) -> Template:
    """Parse a template, in plain ASCII like the responses except for its ellipses."""
    expected_format = "…".join(plain(part) for part in expected_format.split("…"))
    if _TAG.search(expected_format):
        expected_format = _ELLIPSIS_IN_TAG.sub("[TEXT]", expected_format)
        expected_format = re.sub(r">\s*<", "> <", expected_format)
    first, *others = re.split(r"\s*(?:\[TEXT\]\s*)+", expected_format.strip())
    pieces = [piece.strip() for piece in _PIECE.split(expected_format)]
    return Template(
        parts=(_pattern(first), *(_pattern(part) if part else _END for part in others)),
        pieces=tuple(piece for piece in pieces if piece not in ("", "[TEXT]")),
    )


def _pattern(segment: str) -> re.Pattern[str]:
    literals = map(_literal, segment.split("[NUM]"))
    return re.compile(rf"(?<![0-9.]){NUMBER}".join(literals))


def _literal(piece: str) -> str:
    """Return a pattern for literal text: any white space matches; between tags it is optional."""
    words = re.split(r"(\s+)", piece)
    source = "".join(r"\s+" if word.isspace() else re.escape(word) for word in words)
    return re.sub(r">\\s\+<", r">\\s*<", source)


def match_format_exactly(response: str | None, expected_format: str) -> float:
    """1.0 when the format matches up to the end, 0.5 in part, 0.0 not at all.

    In part: it matches elsewhere, or its literal parts appear in order. A format with tags is
    exact only when each tag occurs once.

    >>> match_format_exactly("The answer is 4.", "The answer is [NUM].")
    1.0
    >>> match_format_exactly("The answer is four.", "The answer is [NUM].")
    0.5
    >>> match_format_exactly("2 plus 2 equals 4.", "The answer is [NUM].")
    0.0
    """
    text = _read(response)
    template = read_template(expected_format)
    tags = filter(_TAG.fullmatch, template.pieces)
    if template.find(text, at_end=True) and all(text.count(tag) == 1 for tag in tags):
        return 1.0
    if template.find(text, at_end=False):
        return 0.5
    literals = [piece for piece in template.pieces if piece != "[NUM]"]
    if _EMPTY_WORDS.issuperset(literals):
        return 0.0
    return 0.5 if _count_in_order(text, literals) == len(literals) else 0.0


def _read(response: str | None) -> str:
    """Return the response in plain ASCII; if it is very long, its beginning and its end."""
    text = response or ""
    if len(text) > 2 * _READ:
        text = f"{text[:_READ]}\n{text[-_READ:]}"
    return plain(text).rstrip()


def _count_in_order(text: str, pieces: Sequence[str], single_tags: bool = False) -> int:
    """Return how many pieces of a format occur one after another.

    With ``single_tags``, a tag that occurs more than once does not count.
    """
    position = found = 0
    for piece in pieces:
        pattern = _NUMBER if piece == "[NUM]" else re.compile(re.escape(piece))
        match = pattern.search(text, position)
        repeated = single_tags and _TAG.fullmatch(piece) and text.count(piece) != 1
        if match is not None and not repeated:
            position = match.end()
            found += 1
    return found


def match_format_approximately(response: str | None, expected_format: str) -> float:
    """The share of the format's parts that the response has, in order, from 0.0 to 1.0.

    Its parts are literal texts, numbers and tags; a tag that occurs twice does not count.

    >>> match_format_approximately("<answer>4", "<answer>[NUM]</answer>")
    0.6666666666666666
    >>> match_format_approximately("4", "The answer is [NUM].")
    0.3333333333333333
    """
    text = _read(response)
    pieces = read_template(expected_format).pieces
    if not pieces:
        return 1.0
    return _count_in_order(text, pieces, single_tags=True) / len(pieces)
