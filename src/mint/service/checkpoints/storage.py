"""Checkpoints on disk: named, durable copies that appear complete or not at all."""

import contextlib
import ctypes
import fcntl
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Self

from pydantic import BaseModel, ValidationError
from sqlalchemy import not_, or_

from mint.engine.messages import LoraSpec
from mint.service.access.ownership import may_read
from mint.service.access.quotas import Quota
from mint.service.errors import NotFound, UserError, is_disk_full
from mint.service.files import checksums, damaged, link_files, sync, sync_folder, verify
from mint.service.store.database import CheckpointRow, Condition, RunRow, Store, is_at, now
from mint.service.wire.requests import Texts

TRAINING, SAMPLER, EXTERNAL = "weights", "sampler_weights", "external_weights"
KINDS = (TRAINING, SAMPLER, EXTERNAL)
DESCRIPTION = "checkpoint.json"
_CHANGING = ".changing-"
_RUN_ID = re.compile(r"[A-Za-z0-9-]{1,64}:train:[0-9]{1,9}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


def run_folder_name(run_id: str) -> str:
    """Return the folder name of a run; different ids have different names."""
    if not _RUN_ID.fullmatch(run_id):
        raise UserError(f"{run_id!r} is not the id of a training run.")
    return run_id.replace(":", "_")


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise UserError(
            f"{name[:200]!r} is not a valid checkpoint name. Use 1 to 128 letters, digits, "
            "dots, underscores or hyphens, and no dot at the start, for example 'step-100'."
        )
    return name


@dataclass(frozen=True)
class CheckpointPath:
    """``tinker://<run>/<kind>/<name>``; ``mint://`` is read as the same thing.

    >>> CheckpointPath.parse("mint://a1:train:0/weights/step-1").uri
    'tinker://a1:train:0/weights/step-1'
    """

    run_id: str
    kind: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        scheme, _, rest = text.partition("://")
        parts = rest.split("/")
        if scheme not in ("tinker", "mint") or len(parts) != 3 or parts[1] not in KINDS:
            raise UserError(
                f"{text[:200]!r} is not a checkpoint path. A path looks like tinker://<run "
                "id>/weights/<name> or tinker://<run id>/sampler_weights/<name>; "
                "`mint checkpoints list` shows yours."
            )
        run_folder_name(parts[0])
        return cls(parts[0], parts[1], check_name(parts[2]))

    @property
    def uri(self) -> str:
        return f"tinker://{self.run_id}/{self.kind}/{self.name}"

    @property
    def checkpoint_id(self) -> str:
        return f"{self.kind}/{self.name}"


@dataclass(frozen=True)
class NewCheckpoint:
    """A request to save a checkpoint."""

    path: CheckpointPath
    seq_id: int
    overwrite: bool = False
    ttl_seconds: int | None = None
    user_metadata: dict[str, str] = field(default_factory=dict)


class Description(BaseModel):
    """The content of ``checkpoint.json``: where a checkpoint comes from, and its checksums.

    Older versions wrote neither checksums nor a digest, and the digest of an upload is None.
    """

    path: str
    base_model: str = ""
    lora: dict[str, Any] = {}
    user_metadata: Texts = {}
    created_at: datetime | None = None
    expires_at: datetime | None = None
    sha256: dict[str, str] = {}
    adapter_digest: str | None = None


class CheckpointStore:
    """The checkpoint folders under the home folder, and their rows in the store."""

    def __init__(
        self, home: Path, store: Store, find_quota: Callable[[str], Quota] = lambda _: Quota()
    ) -> None:
        self._root = home / "checkpoints"
        self._store = store
        self._find_quota = find_quota
        self._publishing = threading.Lock()

    def folder(self, at: CheckpointPath | CheckpointRow) -> Path:
        return self._root / run_folder_name(at.run_id) / at.kind / at.name

    def find(self, path: CheckpointPath, user: str) -> CheckpointRow | None:
        """Return the checkpoint, if ``user`` may read it and it has not expired."""
        row = self._store.checkpoint(path.run_id, path.kind, path.name)
        if row is None or not may_read(row, user):
            return None
        return None if has_expired(row) else row

    def require(self, text: str, user: str) -> CheckpointRow:
        """Parse a path and find its checkpoint. Raises NotFound if there is none for this user."""
        path = CheckpointPath.parse(text)
        row = self.find(path, user)
        if row is None:
            raise NotFound(
                f"There is no checkpoint {path.uri} for this API key. `mint checkpoints list` "
                "shows yours, as list_user_checkpoints() does in Python; expired ones are deleted."
            )
        return row

    def verified_folder(self, at: CheckpointPath | CheckpointRow) -> Path:
        """Return a checkpoint's folder. Raises FilesDamaged if its files have changed."""
        folder = self.folder(at)
        verify(folder, self._description(at).sha256, f"The checkpoint {at.uri}")
        return folder

    def link(self, at: CheckpointRow, folder: Path, start: str | tuple[str, ...] = "") -> None:
        """Link files of a checkpoint, those whose names start so, into another folder.

        All are of one version, also if it is overwritten meanwhile. Raises FilesDamaged, or
        NotFound if it was deleted.
        """
        with self._publishing:
            if self._store.checkpoint(at.run_id, at.kind, at.name) is None:
                raise NotFound(f"{at.uri} was deleted meanwhile.")
            wanted = self._description(at).sha256
            found = [f for f in self.folder(at).iterdir() if f.name != DESCRIPTION]
            link_files((file for file in found if file.name.startswith(start)), folder)
        wanted = {name: wanted[name] for name in wanted if name.startswith(start)}
        verify(folder, wanted, f"The checkpoint {at.uri}")

    def open_files(self, at: CheckpointRow) -> list[BinaryIO]:
        """Open the files of a checkpoint. Raises NotFound if it was deleted or overwritten."""
        with self._publishing:
            self._require_current(at)
            return [open(file, "rb") for file in sorted(self.folder(at).iterdir())]

    def verified(self, at: CheckpointRow) -> tuple[Path, str | None]:
        """Return a checkpoint's folder, and the digest of the adapter that was saved in it.

        An uploaded one has no digest. Raises FilesDamaged, also if it is overwritten meanwhile, or
        NotFound if it was deleted or overwritten before.
        """
        with self._publishing:
            self._require_current(at)
            description = self._description(at)
        folder = self.folder(at)
        verify(folder, description.sha256, f"The checkpoint {at.uri}")
        return folder, description.adapter_digest

    def _require_current(self, at: CheckpointRow) -> None:
        """Raise NotFound if a checkpoint was deleted or overwritten since its row was read."""
        found = self._store.checkpoint(at.run_id, at.kind, at.name)
        if found is None or found.version != at.version:
            raise NotFound(f"{at.uri} was deleted or replaced meanwhile. Try again.")

    def _description(self, at: CheckpointPath | CheckpointRow) -> Description:
        """Read ``checkpoint.json``, without which the other files cannot be checked.

        Every version has written it, so one that is gone was lost. Raises FilesDamaged.
        """
        what = f"The checkpoint {at.uri}"
        try:
            found = Description.model_validate_json((self.folder(at) / DESCRIPTION).read_bytes())
        except FileNotFoundError as error:
            raise damaged(what, f"{DESCRIPTION} is missing") from error
        except ValidationError as error:
            raise damaged(what, f"{DESCRIPTION} has changed since it was saved") from error
        if not found.sha256 and "adapter_digest" in found.model_fields_set:
            raise damaged(what, f"{DESCRIPTION} has lost its checksums")
        return found

    # ---- saving: begin, let the engine write into the draft, then publish or discard -------------

    def begin(self, new: NewCheckpoint) -> Path:
        """Create an empty draft folder for a checkpoint. Raises UserError if the name is taken."""
        row = self._store.checkpoint(new.path.run_id, new.path.kind, new.path.name)
        is_taken = row is not None and row.seq_id != new.seq_id and not has_expired(row)
        if is_taken and not new.overwrite:
            raise UserError(
                f"The checkpoint {new.path.uri} already exists. Choose another name, or pass "
                "overwrite=True to replace it."
            )
        draft = self.folder(new.path).with_name(f".draft-{uuid.uuid4().hex}")
        draft.mkdir(parents=True)
        return draft

    def publish(
        self, new: NewCheckpoint, draft: Path, run: RunRow, digest: str | None = None
    ) -> CheckpointRow:
        """Turn the draft into the checkpoint, atomically. ``digest`` is that of its adapter."""
        row = CheckpointRow(
            run_id=run.id,
            kind=new.path.kind,
            name=new.path.name,
            user=run.user,
            seq_id=new.seq_id,
            base_model=run.base_model,
            lora=run.lora,
            size_bytes=sum(file.stat().st_size for file in draft.rglob("*") if file.is_file()),
            user_metadata=new.user_metadata,
            created_at=now(),
            expires_at=_expiry(new.ttl_seconds),
        )
        description = Description(
            path=new.path.uri,
            base_model=row.base_model,
            lora=asdict(read_lora(row.lora)),
            user_metadata=row.user_metadata,
            created_at=row.created_at,
            expires_at=row.expires_at,
            sha256=checksums(draft, but=DESCRIPTION),
            adapter_digest=digest,
        )
        (draft / DESCRIPTION).write_text(description.model_dump_json(indent=2) + "\n")
        sync_folder(draft)
        with self._publishing:
            self.check_quota(run, new.path, row.size_bytes)
            self._put(row, draft)
        self.discard(draft)
        return row

    def _put(self, row: CheckpointRow, draft: Path) -> None:
        """Publish the files and the row; if either fails, both stay as they were."""
        final = self.folder(row)
        with _marked(final) as mark:
            _rename(draft, final)
            try:
                for folder in list(final.parents)[:4]:  # up to the home folder, as some may be new
                    sync(folder)
                self._store.put_checkpoint(row)
            except Exception:
                _rename(final, draft)
                mark.unlink(missing_ok=True)
                raise

    def check_quota(self, run: RunRow, path: CheckpointPath, size: int = 0) -> None:
        """Raise UserError if a run's key may not have another checkpoint of this size."""
        quota = self._find_quota(run.key)
        if quota.checkpoints is not None or quota.bytes is not None:
            others = self._store.storage_of_key(
                run.key, not_(is_at(path.run_id, path.kind, path.name))
            )
            quota.refuse_checkpoint(run.key, *others, size)

    def discard(self, draft: Path) -> None:
        shutil.rmtree(draft, ignore_errors=True)

    def set_ttl(self, row: CheckpointRow, ttl_seconds: int | None) -> None:
        """Let a checkpoint expire after some seconds; None keeps it."""
        self._store.change_checkpoint(row, expires_at=_expiry(ttl_seconds))

    def delete(self, row: CheckpointRow) -> None:
        """Delete a checkpoint, so that a crash never leaves a part of it visible.

        One that replaced it under the same name since ``row`` was read stays.
        """
        folder = self.folder(row)
        with self._publishing, _marked(folder):
            if not self._store.delete_checkpoint(row) or not folder.exists():
                return
            gone = _set_aside(folder)
        self.discard(gone)

    def finish_changes(self) -> None:
        """Delete the folders that a crash left without a row, while they were published or deleted.

        Only folders that were marked for such a change are examined, so that a wrong database
        deletes no others. A change in progress, also in another service, has its mark locked.
        """
        for mark in self._root.glob(f"*/*/{_CHANGING}*"):
            with contextlib.suppress(OSError), open(mark, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                folder = mark.with_name(mark.name.removeprefix(_CHANGING))
                run_id = folder.parent.parent.name.replace("_", ":")
                has_row = self._store.checkpoint(run_id, folder.parent.name, folder.name)
                if not has_row and folder.exists():
                    self.discard(_set_aside(folder))
                mark.unlink()


def require_optimizer(row: CheckpointRow) -> None:
    """Raise UserError unless a checkpoint contains the optimizer's state."""
    if row.kind != TRAINING:
        raise UserError(
            f"{row.uri} contains weights for sampling, without optimizer state. Load a "
            f"tinker://…/{TRAINING}/… checkpoint, which save_state() makes, or only the "
            "weights of this one (optimizer=False)."
        )


def has_expired(row: CheckpointRow) -> bool:
    return row.expires_at is not None and row.expires_at <= now()


def unexpired() -> Condition:
    """Return the condition that a checkpoint has not expired."""
    return or_(CheckpointRow.expires_at.is_(None), CheckpointRow.expires_at > now())


def _expiry(ttl_seconds: int | None) -> datetime | None:
    return now() + timedelta(seconds=ttl_seconds) if ttl_seconds else None


def read_lora(lora: dict[str, object]) -> LoraSpec:
    """Return the adapter's shape from its column in the database."""
    return LoraSpec(**lora)  # type: ignore[arg-type]


@contextlib.contextmanager
def _marked(folder: Path) -> Iterator[Path]:
    """Mark a checkpoint while its files and row change; the mark stays after an interruption."""
    mark = folder.with_name(f"{_CHANGING}{folder.name}")
    try:
        file = open(mark, "ab")  # noqa: SIM115
    except OSError as error:
        # without files, or on a full disk, a checkpoint must still be deleted
        if not (isinstance(error, FileNotFoundError) or is_disk_full(error)):
            raise
        yield mark
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield mark
        mark.unlink(missing_ok=True)


def _set_aside(folder: Path) -> Path:
    """Rename a folder to one that is not a checkpoint."""
    gone = folder.with_name(f".draft-{uuid.uuid4().hex}")
    folder.rename(gone)
    return gone


def _rename(one: Path, other: Path) -> None:
    """Rename a folder, or exchange it with the one of that name, atomically where possible."""
    if not other.exists():
        one.rename(other)
        return
    at_cwd, exchange = -100, 2
    swap = getattr(ctypes.CDLL(None), "renameat2", None)
    if swap and swap(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange) == 0:
        return
    aside = _set_aside(other)
    one.rename(other)
    aside.rename(one)
