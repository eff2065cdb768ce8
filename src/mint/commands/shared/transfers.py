"""Download checkpoints from a service."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from mint.commands.shared.output import Mistake, transfer
from mint.commands.shared.remote import TIMEOUT, Remote

if TYPE_CHECKING:
    from mint.service.checkpoints.storage import CheckpointPath

_LARGEST_ARCHIVE = 1 << 40


def fetch(remote: Remote, where: CheckpointPath, folder: Path) -> None:
    """Download the files of a checkpoint into an existing folder."""
    from mint.service.checkpoints.archives import unpack

    with tempfile.TemporaryDirectory(prefix="mint-fetch-") as scratch:
        archive = Path(scratch) / "checkpoint.tar.gz"
        fetch_archive(remote, where, archive)
        unpack(archive, folder, _LARGEST_ARCHIVE)


def fetch_archive(remote: Remote, where: CheckpointPath, target: Path) -> None:
    """Write a checkpoint to one file, which appears only when it is complete."""
    total = listed(remote, where).get("size_bytes")
    with remote.failures():
        redirect = remote.http.get(f"{resource(where)}/archive")
        remote.check(redirect)
        link = httpx.URL(remote.url).join(redirect.headers["location"])  # works without the key
    with (
        remote.failures(),
        httpx.stream("GET", link, timeout=TIMEOUT, follow_redirects=True) as answer,
    ):
        remote.check(answer)
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with draft.open("wb") as file, transfer() as progress:
                task = progress.add_task(target.name, total=total)
                for part in answer.iter_bytes(1024 * 1024):
                    file.write(part)
                    progress.advance(task, len(part))
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)


def listed(remote: Remote, where: CheckpointPath) -> dict[str, Any]:
    """Return a checkpoint's entry in its run's list; empty if the run is another user's."""
    try:
        answer = remote.get(f"/api/v1/training_runs/{where.run_id}/checkpoints")
    except Mistake:
        return {}
    same = (c for c in answer["checkpoints"] if c["tinker_path"] == where.uri)
    return dict(next(same, {}))


def resource(where: CheckpointPath) -> str:
    """Return the URL path of a checkpoint."""
    return f"/api/v1/training_runs/{where.run_id}/checkpoints/{where.checkpoint_id}"
