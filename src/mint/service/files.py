"""Durable files and their checksums."""

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from .errors import UserError


class FilesDamaged(UserError):
    """The files of a snapshot or checkpoint are not the ones that were written."""


def free_bytes(folder: Path) -> int:
    """Return the free space on the disk of a folder."""
    return shutil.disk_usage(folder).free


def require_writable(folder: Path) -> None:
    """Create a folder and try to write in it. Raises UserError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"The home folder {folder} cannot be written: {error.strerror}. Everything in it is "
            "intact. Make it writable, or choose another folder with --home or MINT_HOME."
        ) from error


def sync(path: Path) -> None:
    """Flush a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush a folder and the files in it to disk."""
    for file in folder.iterdir():
        sync(file)
    sync(folder)


def checksums(folder: Path, but: str | None = None) -> dict[str, str]:
    """Return the SHA-256 of every file in a folder by name, except the one named ``but``."""
    files = (file for file in sorted(folder.iterdir()) if file.is_file() and file.name != but)
    return {file.name: _sha256(file) for file in files}


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(folder: Path, wanted: Mapping[str, str], what: str) -> None:
    """Raise FilesDamaged unless the folder has these checksums; older versions wrote none."""
    for name, checksum in wanted.items():
        if not (folder / name).is_file():
            raise damaged(what, f"{name} is missing")
        if _sha256(folder / name) != checksum:
            raise damaged(what, f"{name} has changed since it was saved")


def damaged(what: str, how: str) -> FilesDamaged:
    """Return the error for files that are not as they were saved."""
    return FilesDamaged(
        f"{what} is damaged: {how}. Nothing was loaded, and the files were not touched. "
        "Use another checkpoint, or restore this one from a backup, and check the disk."
    )


def link_files(files: Iterable[Path], folder: Path) -> None:
    """Hard-link files into another folder, or copy them where the file system has no links."""
    for file in files:
        try:
            os.link(file, folder / file.name)
        except FileExistsError:
            pass
        except OSError:
            shutil.copyfile(file, folder / file.name)


def shorten_logs(folder: Path, limit: int = 64 * 1024**2, kept: int = 1024**2) -> None:
    """Cut logs of more than ``limit`` bytes to their last ``kept``; their writers append."""
    for log in folder.glob("*.log"):
        with contextlib.suppress(OSError), open(log, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size > limit:
                file.seek(size - kept)
                tail = file.read()
                os.truncate(log, 0)
                file.seek(0)
                file.write(tail)


def delete_leftovers(home: Path, age_s: float = 24 * 3600.0) -> None:
    """Delete old drafts, uploads and results that a crash left behind."""
    cutoff = time.time() - age_s
    drafts = home.glob("checkpoints/*/*/.draft-*")
    for leftover in (*drafts, *home.glob("uploads/*"), *home.glob("results/*")):
        with contextlib.suppress(OSError):
            if leftover.stat().st_mtime < cutoff:
                shutil.rmtree(leftover, ignore_errors=True)
