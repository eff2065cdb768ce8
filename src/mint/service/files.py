"""Making files durable."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable
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


def link_files(files: Iterable[Path], folder: Path) -> None:
    """Put files into another folder without copying their bytes, where the file system can."""
    for file in files:
        target = folder / file.name
        with contextlib.suppress(FileExistsError):
            try:
                os.link(file, target)
            except OSError as error:
                if isinstance(error, FileExistsError | FileNotFoundError):
                    raise
                shutil.copyfile(file, target)


def delete_leftovers(home: Path, age_s: float = 24 * 3600.0) -> None:
    """Remove drafts and uploads that a crash left behind so long ago that nobody can want them."""
    cutoff = time.time() - age_s
    for leftover in (*home.glob("checkpoints/*/*/.draft-*"), *home.glob("uploads/*")):
        with contextlib.suppress(FileNotFoundError):
            if leftover.stat().st_mtime < cutoff:
                shutil.rmtree(leftover, ignore_errors=True)
