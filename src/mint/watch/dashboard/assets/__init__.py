"""The page of the dashboard: plain ES modules, styles, and three vendored libraries."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True)
class Asset:
    """A file of the page: its bytes, media type and entity tag."""

    content: bytes
    kind: str
    tag: str


def load_assets() -> dict[str, Asset]:
    """Read every file of the page, by its path under ``assets/``.

    >>> load_assets()["index.html"].kind
    'text/html; charset=utf-8'
    """
    found = {}
    for path in sorted(_FOLDER.rglob("*")):
        kind = _KINDS.get(path.suffix)
        if kind is not None:
            content = path.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            found[path.relative_to(_FOLDER).as_posix()] = Asset(content, kind, tag)
    return found
