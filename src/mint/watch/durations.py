"""Format durations."""

from itertools import pairwise

_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def duration(seconds: float) -> str:
    """Format a duration in its largest unit and the next smaller one.

    >>> duration(45), duration(125), duration(3700), duration(604_800), duration(93_600)
    ('45 s', '2 min 5 s', '1 h 1 min', '7 d', '1 d 2 h')
    """
    total = round(max(seconds, 0))
    for (name, size), (smaller, part) in pairwise(_UNITS):
        if total >= size:
            rest = total % size // part
            return f"{total // size} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{total} s"
