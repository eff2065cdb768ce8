"""The home folder: everything that mint stores on this machine."""

import os
from pathlib import Path

CONFIG_FILE = "config.yaml"
"""The settings of the service in the home folder; ``mint serve`` and ``mint models`` read it."""


def default_home() -> Path:
    """Return the folder of a service's state: ``$MINT_HOME``, or ``~/.mint``."""
    return Path(os.environ.get("MINT_HOME") or "~/.mint").expanduser()
