"""Prefixes of token sequences."""

from collections.abc import Sequence
from itertools import takewhile


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens two sequences begin with together.

    >>> common_prefix([5, 6, 7], [5, 6, 8, 9])
    2
    """
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
