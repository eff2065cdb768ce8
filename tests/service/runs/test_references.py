"""Files of checkpoints that a run depends on."""

from __future__ import annotations

import io
import itertools
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from mint.service.access.auth import LOCAL_USER
from mint.service.checkpoints.storage import (
    TRAINING,
    CheckpointPath,
    CheckpointStore,
    NewCheckpoint,
)
from mint.service.runs.journal import Journal
from mint.service.runs.references import References
from mint.service.store.database import RunRow, Store
from mint.service.wire.requests import LoadWeights
from tests.reliability.local import Local, with_service

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


def test_a_checkpoint_that_is_overwritten_while_another_run_loads_it_is_loaded_in_one_version(
    checkpoints: CheckpointStore, tmp_path: Path
) -> None:
    """It is overwritten when its first file was taken, or as soon as the others are."""
    save(checkpoints, 1)
    overwrite = threading.Thread(target=save, args=(checkpoints, 2))
    links = itertools.count(1)

    def notice(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.link" and str(tmp_path) in str(arguments[0]) and next(links) == 2:
            overwrite.start()
            if not checkpoints._publishing.locked():
                overwrite.join()

    sys.addaudithook(notice)
    journal = Journal(tmp_path / "runs" / "other")
    references = References(run("4f0c-2:train:0"), journal, checkpoints)
    folder = references.to_load(LoadWeights(path=PATH.uri, optimizer=True), 1)
    overwrite.join()
    assert [(folder / name).read_text() for name in FILES] == ["version 1", "version 1"]
    journal.close()


def test_an_archive_of_a_checkpoint_that_is_overwritten_meanwhile_has_one_version(
    tmp_path: Path,
) -> None:
    async def work(local: Local) -> None:
        checkpoints = local.service.checkpoints
        local.service.store.add_once(run(PATH.run_id, LOCAL_USER), PATH.run_id)
        save(checkpoints, 1, LOCAL_USER)
        overwrite = threading.Thread(target=save, args=(checkpoints, 2, LOCAL_USER))
        opens, folder = itertools.count(1), str(checkpoints.folder(PATH))

        def notice(event: str, arguments: tuple[object, ...]) -> None:
            is_read = event == "open" and arguments[1] == "r"
            if is_read and str(arguments[0]).startswith(folder) and next(opens) == 2:
                overwrite.start()
                if not checkpoints._publishing.locked():
                    overwrite.join()

        url = f"/api/v1/training_runs/{PATH.run_id}/checkpoints/weights/latest/archive"
        link = (await local.http.get(url)).headers["location"]
        sys.addaudithook(notice)
        answer = await local.http.get(link)
        assert answer.status_code == 200, answer.text
        packed = answer.content
        overwrite.join()
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            found = [archive.extractfile(name) for name in FILES]
            assert [file and file.read() for file in found] == [b"version 1", b"version 1"]

    with_service(tmp_path, work)
