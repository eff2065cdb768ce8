"""Durations, as users type and read them."""

import re
from datetime import UTC, datetime

from mint.commands.shared.output import Mistake
from mint.watch.durations import duration

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


def age(time: str | None) -> str:
    """Return how long ago an ISO time was.

    >>> age(None)
    '-'
    """
    if not time:
        return "-"
    then = datetime.fromisoformat(time)
    return duration((datetime.now(UTC) - then).total_seconds())
