"""The service of a run, recorded in its run directory for commands that use the run."""

import json
from dataclasses import dataclass
from pathlib import Path

from mint.embedded import embedded_home

SERVICE = "service.json"


@dataclass(frozen=True)
class RunService:
    """The URL of a run's service, or the home folder of one that the run started for itself."""

    url: str | None
    home: Path | None


def write_service(folder: Path, url: str) -> None:
    """Keep which service a run uses. An embedded service has another URL whenever it starts."""
    home = embedded_home(url)
    found = {"url": url} if home is None else {"home": str(home)}
    (folder / SERVICE).write_text(json.dumps(found) + "\n")


def read_service(folder: Path) -> RunService:
    """Return what is known of a run's service; nothing where the file is missing.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_service(folder, "http://gpu:8000")
    >>> read_service(folder)
    RunService(url='http://gpu:8000', home=None)
    """
    file = folder / SERVICE
    found = json.loads(file.read_text()) if file.exists() else {}
    home = found.get("home")
    return RunService(found.get("url"), Path(home) if home else None)
