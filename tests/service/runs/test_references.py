"""Files of checkpoints that a run depends on."""

from __future__ import annotations

import itertools
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from mint.service.checkpoints.archives import pack, unpack
from mint.service.checkpoints.storage import (
    TRAINING,
    CheckpointPath,
    CheckpointStore,
    NewCheckpoint,
)
from mint.service.errors import NotFound
from mint.service.runs.journal import Journal
from mint.service.runs.references import References
from mint.service.store.database import RunRow, Store
from mint.service.wire.requests import LoadWeights

FILES = ("adapter_model.safetensors", "optimizer.safetensors")
LORA = {"rank": 4, "seed": 1, "train_attn": True, "train_mlp": True, "train_unembed": False}
PATH = CheckpointPath("4f0c-1:train:0", TRAINING, "latest")


def run(run_id: str, user: str = "ada") -> RunRow:
    return RunRow(id=run_id, session_id="s", user=user, base_model="m", lora=LORA)


@pytest.fixture
def checkpoints(tmp_path: Path) -> CheckpointStore:
    store = Store(f"sqlite:///{tmp_path / 'mint.db'}", tmp_path)
    store.migrate()
    return CheckpointStore(tmp_path, store)


def save(checkpoints: CheckpointStore, number: int, user: str = "ada") -> None:
    new = NewCheckpoint(PATH, number, overwrite=True)
    draft = checkpoints.begin(new)
    for name in FILES:
        (draft / name).write_text(f"version {number}")
    checkpoints.publish(new, draft, run(PATH.run_id, user))


def overwrite_at(checkpoints: CheckpointStore, event: str, name: str) -> threading.Thread:
    """Overwrite the checkpoint when this file is about to be taken, or as soon as all are."""
    overwrite = threading.Thread(target=save, args=(checkpoints, 2))
    file, once = checkpoints.folder(PATH) / name, itertools.count()

    def notice(found: str, arguments: tuple[object, ...]) -> None:
        if found == event and str(arguments[0]) == str(file) and not next(once):
            overwrite.start()
            if not checkpoints._publishing.locked():
                overwrite.join()

    sys.addaudithook(notice)
    return overwrite


def test_a_checkpoint_that_is_overwritten_while_it_is_packed_is_packed_in_one_version(
    checkpoints: CheckpointStore, tmp_path: Path
) -> None:
    save(checkpoints, 1)
    row = checkpoints.require(PATH.uri, "ada")
    overwrite = overwrite_at(checkpoints, "open", FILES[1])
    (tmp_path / "archive").write_bytes(b"".join(pack(checkpoints.open_files(row))))
    overwrite.join()
    (tmp_path / "unpacked").mkdir()
    unpack(tmp_path / "archive", tmp_path / "unpacked", 10**6)
    assert [(tmp_path / "unpacked" / name).read_text() for name in FILES] == ["version 1"] * 2
    with pytest.raises(NotFound):
        checkpoints.open_files(row)


def test_a_checkpoint_that_is_overwritten_while_another_run_loads_it_is_loaded_in_one_version(
    checkpoints: CheckpointStore, tmp_path: Path
) -> None:
    save(checkpoints, 1)
    overwrite = overwrite_at(checkpoints, "os.link", FILES[1])
    journal = Journal(tmp_path / "runs" / "other")
    references = References(run("4f0c-2:train:0"), journal, checkpoints)
    folder = references.to_load(LoadWeights(path=PATH.uri, optimizer=True), 1)
    overwrite.join()
    assert [(folder / name).read_text() for name in FILES] == ["version 1", "version 1"]
    journal.close()


def test_a_run_that_is_created_from_a_checkpoint_begins_with_one_version_of_it(
    checkpoints: CheckpointStore, tmp_path: Path
) -> None:
    save(checkpoints, 1)
    row = checkpoints.require(PATH.uri, "ada")
    overwrite = overwrite_at(checkpoints, "os.link", FILES[1])
    journal = Journal(tmp_path / "runs" / "other")
    journal.begin_from(partial(checkpoints.link, row, start=("adapter_", "optimizer")))
    overwrite.join()
    assert journal.snapshot_folder is not None
    found = [(journal.snapshot_folder / name).read_text() for name in FILES]
    assert found == ["version 1", "version 1"]
    journal.close()
