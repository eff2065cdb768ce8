"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mint.service.admin.settings import Settings

HomeOption = Annotated[
    Path | None,
    typer.Option(help="The service's home folder. Default: MINT_HOME, or ~/.mint", file_okay=False),
]


def load_settings(home: Path | None) -> Settings:
    """The settings of the service that has this home folder."""
    from mint.service.admin.configuration import load

    return load({"home": home}).settings
