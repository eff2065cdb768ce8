"""On-disk store of evicted samplers."""

import asyncio
import contextlib
import os
import shutil
import uuid
from pathlib import Path

from mint.service.engines.process import EngineProcess
from mint.service.files import sync, sync_folder
from mint.service.idleness import Idleness
from mint.service.store.database import SamplerRow


class EvictedSamplers:
    """One PEFT folder per sampler; in each group, the least recently used are deleted first."""

    def __init__(self, root: Path, per_group: int) -> None:
        self._root = root
        self._per_group = per_group

    def find(self, row: SamplerRow) -> Path | None:
        """Return the folder of a sampler, if there is one."""
        folder = self._folder(row)
        return folder if folder.is_dir() else None

    async def save(self, row: SamplerRow, engine: EngineProcess) -> None:
        """Save a sampler that is in an engine. Raises OSError, RuntimeError or EngineDied."""
        folder = self._folder(row)
        if self._per_group == 0 or folder.is_dir():
            return
        draft = folder.with_name(f".draft-{uuid.uuid4().hex}")
        await asyncio.to_thread(draft.mkdir, parents=True)
        try:
            await engine.call("save_sampler", sampler_id=row.id, folder=str(draft))
            await asyncio.to_thread(self._publish, draft, folder)
        finally:
            await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)

    def _publish(self, draft: Path, folder: Path) -> None:
        """Rename a draft, so that a power failure leaves all of it or nothing; prune its group.

        A journal is cut when the samplers that it could replay are on disk.
        """
        sync_folder(draft)
        os.replace(draft, folder)
        for parent in (folder.parent, self._root, self._root.parent):
            sync(parent)
        group = [other for other in folder.parent.iterdir() if not other.name.startswith(".")]
        group.sort(key=lambda other: other.stat().st_mtime)
        for oldest in group[: -self._per_group]:
            shutil.rmtree(oldest, ignore_errors=True)

    def delete_unused(self, kept_s: float, idleness: Idleness) -> None:
        """Delete the samplers that were unused for ``kept_s``."""
        used = {
            str(folder.relative_to(self._root)): str(folder.stat().st_mtime_ns)
            for folder in self._root.glob("*/*")
        }
        for name in idleness.due("sampler", used, kept_s):
            shutil.rmtree(self._root / name, ignore_errors=True)
        for group in self._root.glob("*"):
            with contextlib.suppress(OSError):  # it is not empty
                group.rmdir()

    def _folder(self, row: SamplerRow) -> Path:
        return self._root / row.group.replace(":", "_") / row.id.replace(":", "_")
