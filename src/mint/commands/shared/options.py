"""Options that several commands share, and functions that read their values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mint.catalog import Catalog
from mint.commands.shared.output import Mistake

if TYPE_CHECKING:
    from mint.service.admin.settings import Settings

HomeOption = Annotated[
    Path | None,
    typer.Option(help="The service's home folder. Default: MINT_HOME, or ~/.mint", file_okay=False),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")]
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def load_settings(home: Path | None) -> Settings:
    """Return the settings of the service that has this home folder."""
    from mint.service.admin.configuration import load

    return load({"home": home}).settings


def load_catalog(home: Path | None) -> Catalog:
    """Return the catalog of base models with the settings of a home folder."""
    settings = load_settings(home)
    return Catalog(aliases=settings.aliases, cache=settings.cache)


def parse_duration(text: str) -> int:
    """Read ``7d``, ``12h``, ``90m`` or a number of seconds.

    >>> parse_duration("7d"), parse_duration("1d12h"), parse_duration("3600")
    (604800, 129600, 3600)
    """
    if text.isdigit():
        return int(text)
    if not re.fullmatch(r"(\d+[smhdw])+", text.lower()):
        raise Mistake(
            f"{text!r} is not a duration. Write 7d, 12h, 90m, a number of seconds, or never."
        )
    parts = re.findall(r"(\d+)([smhdw])", text.lower())
    return sum(int(count) * _SECONDS[unit] for count, unit in parts)
