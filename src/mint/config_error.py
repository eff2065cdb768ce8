"""The error for an invalid setting, and the hint for a mistyped name."""

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """An invalid setting. The message names it and says what would be valid."""

    __module__ = "mint.rl"  # the name that users import


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a hint for a mistyped name, or nothing.

    >>> closest("tempreature", ["steps", "temperature"])
    " Did you mean 'temperature'?"
    """
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f" Did you mean {found[0]!r}?" if found else ""
