"""Durations, as users type and read them."""

import re
from datetime import UTC, datetime

from mint.commands.shared.output import Mistake

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_duration(text: str) -> int:
    """Read ``7d``, ``12h``, ``90m`` or a number of seconds.

    >>> parse_duration("7d"), parse_duration("1d12h"), parse_duration("3600")
    (604800, 129600, 3600)
    """
    if text.isdigit():
        return int(text)
    parts = re.findall(r"(\d+)([smhdw])", text.lower())
    if not parts or "".join(map("".join, parts)) != text.lower():
        raise Mistake(
            f"{text!r} is not a duration. Write 7d, 12h, 90m, a number of seconds, or never."
        )
    return sum(int(count) * _SECONDS[unit] for count, unit in parts)


def duration(seconds: float) -> str:
    """Format a duration in its two largest units.

    >>> duration(45), duration(3700), duration(604_800), duration(93_600)
    ('45 s', '1 h 1 min', '7 d', '1 d 2 h')
    """
    left, parts = int(max(seconds, 0)), []
    for name, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append((f"{count} {name}", size))
    if not parts:
        return "0 s"
    first, second = parts[0], parts[1:2]
    near = [text for text, size in second if size * 60 >= first[1]]
    return " ".join([first[0], *near])


def age(time: str | None) -> str:
    """Return how long ago an ISO time was.

    >>> age(None)
    '-'
    """
    if not time:
        return "-"
    then = datetime.fromisoformat(time)
    return duration((datetime.now(UTC) - then).total_seconds())
