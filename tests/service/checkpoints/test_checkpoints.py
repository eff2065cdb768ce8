"""Checkpoint paths, and folders that appear whole or not at all."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from mint.engine.messages import UserError
from mint.service.checkpoints.storage import (
    CheckpointPath,
    CheckpointStore,
    NewCheckpoint,
    check_name,
    run_folder_name,
)
from mint.service.errors import NotFound
from mint.service.files import delete_leftovers
from mint.service.store.database import CheckpointRow, RunRow, Store, now

LORA = {"rank": 4, "seed": 1, "train_attn": True, "train_mlp": True, "train_unembed": False}
RUN = "4f0c-1:train:0"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(f"sqlite:///{tmp_path / 'mint.db'}", tmp_path)
    store.migrate()
    return store


@pytest.fixture
def checkpoints(tmp_path: Path, store: Store) -> CheckpointStore:
    return CheckpointStore(tmp_path, store)


@pytest.fixture
def run() -> RunRow:
    return RunRow(id=RUN, session_id="4f0c-1", user="ada", base_model="tiny/llama", lora=LORA)


def new(kind: str = "weights", name: str = "a", seq_id: int = 1, **fields: object) -> NewCheckpoint:
    options = {"overwrite": False, "ttl_seconds": None, "user_metadata": {}, **fields}
    return NewCheckpoint(CheckpointPath(RUN, kind, name), seq_id, **options)  # type: ignore[arg-type]


def save(
    checkpoints: CheckpointStore, run: RunRow, request: NewCheckpoint, text: str
) -> CheckpointRow:
    draft = checkpoints.begin(request)
    (draft / "adapter_model.safetensors").write_text(text)
    return checkpoints.publish(request, draft, run)


def content(checkpoints: CheckpointStore, request: NewCheckpoint) -> str:
    return (checkpoints.folder(request.path) / "adapter_model.safetensors").read_text()


def test_a_checkpoint_that_the_database_refuses_leaves_the_old_one(
    checkpoints: CheckpointStore, run: RunRow, store: Store
) -> None:
    save(checkpoints, run, new(), "old")
    with store._engine.connect() as connection:
        connection.exec_driver_sql("pragma query_only=1")
    for request in (new(seq_id=2, overwrite=True), new(name="b")):
        draft = checkpoints.begin(request)
        (draft / "adapter_model.safetensors").write_text("new")
        with pytest.raises(OperationalError):
            checkpoints.publish(request, draft, run)
        checkpoints.discard(draft)
    assert content(checkpoints, new()) == "old"
    checkpoints.verified_folder(new().path)
    assert not checkpoints.folder(new(name="b").path).exists()
    assert [folder.name for folder in checkpoints.folder(new().path).parent.iterdir()] == ["a"]


@pytest.mark.parametrize("scheme", ["tinker", "mint"])
def test_both_schemes_name_the_same_checkpoint(scheme: str) -> None:
    path = CheckpointPath.parse(f"{scheme}://{RUN}/weights/step-1.x")
    assert path == CheckpointPath(RUN, "weights", "step-1.x")
    assert path.uri == f"tinker://{RUN}/weights/step-1.x"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "weights/a",
        f"http://{RUN}/weights/a",
        f"tinker://{RUN}/weights",
        f"tinker://{RUN}/weights/a/b",
        f"tinker://{RUN}/optimizer/a",
        f"tinker://{RUN}/weights/..",
        f"tinker://{RUN}/weights/",
        "tinker://../weights/a",
        "tinker://a/../b:train:0/weights/a",
        "tinker://a_b:train:0/weights/a",
    ],
)
def test_a_bad_path_is_a_user_error(text: str) -> None:
    with pytest.raises(UserError):
        CheckpointPath.parse(text)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0", "ü", "x" * 129, "a\n"])
def test_a_bad_name_is_a_user_error(name: str) -> None:
    with pytest.raises(UserError, match="valid checkpoint name"):
        check_name(name)


def test_run_ids_become_safe_folder_names() -> None:
    assert run_folder_name("a-b:train:12") == "a-b_train_12"


def test_weights_and_sampler_weights_of_one_name_are_apart(
    checkpoints: CheckpointStore, run: RunRow
) -> None:
    save(checkpoints, run, new("weights"), "with optimizer")
    save(checkpoints, run, new("sampler_weights"), "without")
    assert content(checkpoints, new("weights")) == "with optimizer"
    assert content(checkpoints, new("sampler_weights")) == "without"


def test_a_folder_describes_itself(checkpoints: CheckpointStore, run: RunRow) -> None:
    row = save(checkpoints, run, new(user_metadata={"step": "3"}), "x")
    description = json.loads((checkpoints.folder(new().path) / "checkpoint.json").read_text())
    assert description["base_model"] == "tiny/llama"
    assert description["lora"] == LORA
    assert description["user_metadata"] == {"step": "3"}
    assert row.size_bytes == 1


def test_a_taken_name_is_refused_unless_overwrite(
    checkpoints: CheckpointStore, run: RunRow
) -> None:
    save(checkpoints, run, new(), "first")
    with pytest.raises(UserError, match="overwrite=True"):
        checkpoints.begin(new(seq_id=2))
    save(checkpoints, run, new(seq_id=3, overwrite=True, user_metadata={"n": "2"}), "second")
    assert content(checkpoints, new()) == "second"
    found = checkpoints.find(new().path, "ada")
    assert found is not None
    assert found.user_metadata == {"n": "2"}
    assert [p.name for p in checkpoints.folder(new().path).parent.iterdir()] == ["a"]


def test_the_same_operation_run_again_after_a_crash_is_not_a_conflict(
    checkpoints: CheckpointStore, run: RunRow
) -> None:
    save(checkpoints, run, new(seq_id=5), "before the crash")
    save(checkpoints, run, new(seq_id=5), "after it")
    assert content(checkpoints, new()) == "after it"


def test_a_discarded_draft_leaves_the_old_one(checkpoints: CheckpointStore, run: RunRow) -> None:
    save(checkpoints, run, new(), "old")
    draft = checkpoints.begin(new(seq_id=2, overwrite=True))
    (draft / "half").write_text("half")
    checkpoints.discard(draft)
    assert content(checkpoints, new()) == "old"
    assert [p.name for p in checkpoints.folder(new().path).parent.iterdir()] == ["a"]


def test_only_the_owner_finds_it(checkpoints: CheckpointStore, run: RunRow) -> None:
    save(checkpoints, run, new(), "x")
    assert checkpoints.find(new().path, "ada") is not None
    assert checkpoints.find(new().path, "eve") is None
    with pytest.raises(UserError, match="There is no checkpoint"):
        checkpoints.require(new().path.uri, "eve")


def test_deleting_removes_row_and_folder(checkpoints: CheckpointStore, run: RunRow) -> None:
    row = save(checkpoints, run, new(), "x")
    checkpoints.delete(row)
    assert checkpoints.find(new().path, "ada") is None
    assert not checkpoints.folder(new().path).exists()


def test_deleting_spares_a_checkpoint_that_replaced_the_listed_one(
    checkpoints: CheckpointStore, run: RunRow
) -> None:
    """Housekeeping and pruning list checkpoints first; one may be overwritten before its turn."""
    listed = save(checkpoints, run, new(), "old")
    save(checkpoints, run, new(seq_id=2, overwrite=True), "new")
    checkpoints.delete(listed)
    found = checkpoints.find(new().path, "ada")
    assert found is not None
    assert content(checkpoints, new()) == "new"
    checkpoints.verified_folder(found)
    checkpoints.delete(found)
    assert not checkpoints.folder(new().path).exists()


def test_a_change_does_not_reach_the_checkpoint_that_has_the_number_of_a_deleted_one(
    checkpoints: CheckpointStore, run: RunRow, store: Store
) -> None:
    """SQLite gives the number of the last row, once deleted, to the next one: another user's."""
    mine = save(checkpoints, run, new(), "mine")
    checkpoints.delete(mine)
    its_run = RunRow(
        id="4f0c-2:train:0", session_id="4f0c-2", user="eve", base_model="m", lora=LORA
    )
    theirs = NewCheckpoint(CheckpointPath(its_run.id, "weights", "a"), 1)
    save(checkpoints, its_run, theirs, "theirs")
    with pytest.raises(NotFound, match="deleted or replaced"):
        store.change_checkpoint(mine, public=True)
    checkpoints.delete(mine)
    found = checkpoints.find(theirs.path, "eve")
    assert found is not None
    assert not found.public


def test_expired_checkpoints_are_not_found(
    checkpoints: CheckpointStore, run: RunRow, store: Store
) -> None:
    row = save(checkpoints, run, new(ttl_seconds=3600), "x")
    assert row.expires_at is not None
    assert row.expires_at - row.created_at > timedelta(minutes=59)
    assert store.expired_checkpoints() == []
    assert checkpoints.find(new().path, "ada") is not None
    expired = save(checkpoints, run, new(seq_id=1, ttl_seconds=-1), "x")
    assert expired.expires_at is not None
    assert expired.expires_at < now()
    assert checkpoints.find(new().path, "ada") is None
    assert [row.id for row in store.expired_checkpoints()] == [expired.id]
    save(checkpoints, run, new(seq_id=2), "its name is free before it is deleted")
    assert checkpoints.find(new().path, "ada") is not None
    assert store.expired_checkpoints() == []


def test_what_a_crash_left_behind_is_removed_after_a_while(
    checkpoints: CheckpointStore, run: RunRow, tmp_path: Path
) -> None:
    save(checkpoints, run, new(), "kept")
    draft = checkpoints.begin(new(seq_id=2, overwrite=True))
    delete_leftovers(tmp_path)
    assert draft.exists(), "another process may be writing it"
    delete_leftovers(tmp_path, age_s=-1)
    assert not draft.exists()
    assert content(checkpoints, new()) == "kept"
