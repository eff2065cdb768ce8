"""Options of several commands, and the settings that they select."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mint.catalog import Catalog

if TYPE_CHECKING:
    from mint.service.admin.settings import Settings

HomeOption = Annotated[
    Path | None,
    typer.Option(help="The service's home folder. Default: MINT_HOME, or ~/.mint", file_okay=False),
]


def load_settings(home: Path | None) -> Settings:
    """Return the settings of the service that has this home folder."""
    from mint.service.admin.configuration import load

    return load({"home": home}).settings


def load_catalog(home: Path | None) -> Catalog:
    """Return the catalog of base models with the settings of a home folder."""
    settings = load_settings(home)
    return Catalog(aliases=settings.aliases, cache=settings.cache)
