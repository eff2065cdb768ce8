"""Making files durable."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until a folder and the files in it are on disk."""
    for file in folder.iterdir():
        sync(file)
    sync(folder)
