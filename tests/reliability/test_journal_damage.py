"""Damage to a journal, a snapshot or a checkpoint is reported, and destroys nothing."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from mint.service.checkpoints.storage import CheckpointPath, CheckpointStore
from mint.service.files import FilesDamaged, checksums, verify
from mint.service.futures import Response
from mint.service.runs.journal import TORN, Journal, JournalDamaged, Outcome
from mint.service.runs.journal_records import encode
from mint.service.store.database import Store
from tests.service_fixture import LiveService, RawClient

RUN = "b4b7c1c6-0000-0000-0000-000000000000:train:0"


def written(folder: Path, steps: int = 6) -> Path:
    """A journal of some steps, closed; returns its file."""
    journal = Journal(folder)
    for number in range(1, 2 * steps, 2):
        journal.append_operation(number, "forward_backward", "application/json", b"x" * 40)
        journal.append_operation(number + 1, "optim_step", "application/json", b"{}")
        journal.append_outcome(Outcome("forward_backward", [number]))
        journal.append_outcome(Outcome("optim_step", [number + 1], result={"metrics": {}}))
    journal.close()
    return folder / "journal"


def test_no_flipped_bit_is_overlooked(tmp_path: Path) -> None:
    """Each bit in turn: the file is refused as it is, or only unacknowledged notes are gone."""
    file = written(tmp_path / "run", steps=2)
    whole = file.read_bytes()
    numbers = {1, 2, 3, 4}
    refused = 0
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        file.write_bytes(damaged)
        try:
            journal = Journal(tmp_path / "run")
        except JournalDamaged:
            refused += 1
            assert file.read_bytes() == damaged, "the file is kept as it was found"
            continue
        entries = set(journal.entries)
        journal.close()
        assert entries == numbers, f"byte {at}: an acknowledged operation was dropped"
        assert (tmp_path / "run" / TORN).read_bytes() == damaged[file.stat().st_size :]
    assert refused > len(whole) / 2


def test_a_damaged_operation_whose_outcome_follows_is_an_error(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run")
    journal.append_operation(1, "optim_step", "application/json", b"first")
    start = journal.size
    journal.append_operation(2, "optim_step", "application/json", b"second")
    journal.append_outcome(Outcome("optim_step", [2]))
    journal.close()
    file = tmp_path / "run" / "journal"
    data = bytearray(file.read_bytes())
    data[start + 30] ^= 4
    file.write_bytes(data)
    with pytest.raises(JournalDamaged, match=f"byte {start}"):
        Journal(tmp_path / "run")
    with pytest.raises(JournalDamaged):
        Journal(tmp_path / "run")  # the lock was given back, and the file is still there
    assert file.read_bytes() == data


def test_a_hole_in_unsynced_outcomes_only_repeats_them(tmp_path: Path) -> None:
    """A power cut may lose an outcome and keep the next one; their operations run again."""
    journal = Journal(tmp_path / "run")
    for number in (1, 2):
        journal.append_operation(number, "optim_step", "application/json", b"{}")
    start = journal.size
    journal.append_outcome(Outcome("optim_step", [1]))
    end = journal.size
    journal.append_outcome(Outcome("optim_step", [2]))
    journal.close()
    file = tmp_path / "run" / "journal"
    data = bytearray(file.read_bytes())
    data[start:end] = bytes(end - start)
    file.write_bytes(data)
    journal = Journal(tmp_path / "run")
    assert sorted(journal.entries) == [1, 2]
    assert journal.next == 1
    journal.close()


def test_a_body_that_changes_while_the_journal_is_open_is_not_used(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run")
    journal.append_operation(1, "forward_backward", "application/json", b"true gradients")
    file = tmp_path / "run" / "journal"
    file.write_bytes(file.read_bytes().replace(b"true", b"fals"))
    with pytest.raises(JournalDamaged, match="operation 1"):
        journal.body(1)
    journal.close()


def old_record(header: dict[str, object], body: bytes = b"") -> bytes:
    encoded = json.dumps(header).encode()
    frame = struct.Struct(">IQI")
    lengths = len(encoded) + len(body), len(encoded)
    return frame.pack(zlib.crc32(encoded + body), *lengths) + encoded + body


def test_journals_of_the_first_format_are_read_and_continued(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "snapshot-000000003").mkdir(parents=True)
    old = [
        old_record({"snapshot": "snapshot-000000003", "first": 3}),
        old_record({"op": "forward_backward", "seq": 3, "type": "application/json"}, b"gradients"),
        old_record({"done": [3], "of": "forward_backward"}),
    ]
    (folder / "journal").write_bytes(b"".join(old))
    journal = Journal(folder)
    journal.check_snapshot()
    journal.append_operation(4, "optim_step", "application/json", b"step")
    journal.close()
    journal = Journal(folder)
    assert (journal.body(3), journal.body(4)) == (b"gradients", b"step")
    assert (journal.first, journal.next) == (3, 4)
    journal.close()
    damaged = bytearray((folder / "journal").read_bytes())
    damaged[len(old[0]) + 40] ^= 1
    (folder / "journal").write_bytes(damaged)
    with pytest.raises(JournalDamaged):
        Journal(folder)


@pytest.mark.parametrize("header", [{"moved": 3}, {"op": "optim_step"}, {"done": [1]}])
def test_a_record_of_a_newer_version_is_an_error(tmp_path: Path, header: dict[str, object]) -> None:
    file = written(tmp_path / "run")
    size = file.stat().st_size
    with file.open("ab") as opened:
        opened.write(encode(header))
    content = file.read_bytes()
    for _ in range(2):
        with pytest.raises(JournalDamaged, match=rf"byte {size} \(an unknown record"):
            Journal(tmp_path / "run")
    assert file.read_bytes() == content


def test_a_snapshot_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run")
    folder = journal.new_snapshot_folder(1)
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    journal.cut(folder, 1)
    journal.check_snapshot()
    (folder / "adapter_model.safetensors").write_bytes(b"weighus")
    with pytest.raises(FilesDamaged, match=r"adapter_model\.safetensors has changed"):
        journal.check_snapshot()
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(FilesDamaged, match="missing"):
        journal.check_snapshot()
    journal.close()


def test_a_failed_snapshot_leaves_the_one_in_use_alone(tmp_path: Path) -> None:
    """Both are taken before the same number, as after operations that came without one."""
    journal = Journal(tmp_path / "run")
    used = journal.new_snapshot_folder(5)
    (used / "weights").write_bytes(b"good")
    journal.cut(used, 5)
    again = journal.new_snapshot_folder(5)
    assert again != used
    journal.discard_snapshot(again)
    journal.discard_snapshot(used)
    journal.check_snapshot()
    assert not again.exists()
    journal.close()


def test_an_operation_without_a_number_and_its_answer_survive_a_snapshot(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run")
    journal.append_operation(-7, "optim_step", "application/json", b"{}")
    journal.append_outcome(Outcome("optim_step", [-7]))
    answer = Response(b'{"metrics": {}}', "application/json", is_failure=False)
    journal.cut(journal.new_snapshot_folder(1), 1, {-7: answer})
    journal.close()
    for _ in range(2):
        journal = Journal(tmp_path / "run")
        assert journal.taken == [-7]
        assert journal.answers() == {-7: answer}
        assert not journal.entries
        journal.close()
    journal = Journal(tmp_path / "run")
    journal.cut(journal.new_snapshot_folder(1), 1)
    assert journal.taken == [-7]
    journal.close()


def test_checksums_know_every_file_but_one(tmp_path: Path) -> None:
    for name in ("a", "b", "description"):
        (tmp_path / name).write_text(name)
    known = checksums(tmp_path, but="description")
    assert sorted(known) == ["a", "b"]
    verify(tmp_path, known, "It")
    (tmp_path / "description").write_text("may change")
    verify(tmp_path, known, "It")


def flip(file: Path, place: int) -> None:
    """Flip a bit of a file; the old content stays where it is linked."""
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.unlink()
    file.write_bytes(content)


TENSORS, DESCRIPTION = "adapter_model.safetensors", "checkpoint.json"


def cut_short(folder: Path) -> None:
    content = (folder / TENSORS).read_bytes()
    (folder / TENSORS).unlink()
    (folder / TENSORS).write_bytes(content[: len(content) // 2])


def without_tensors(folder: Path) -> None:
    (folder / TENSORS).unlink()


def without_a_description(folder: Path) -> None:
    """What would find the flipped bit is lost."""
    flip(folder / TENSORS, -1)
    (folder / DESCRIPTION).unlink()


def with_a_damaged_description(folder: Path) -> None:
    """A flipped bit in the name of a field is still JSON, but without checksums."""
    flip(folder / TENSORS, -1)
    flip(folder / DESCRIPTION, (folder / DESCRIPTION).read_bytes().index(b"sha256") + 5)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (cut_short, f"{TENSORS} has changed"),
        (without_tensors, f"{TENSORS} is missing"),
        (without_a_description, f"{DESCRIPTION} is missing"),
        (with_a_damaged_description, f"{DESCRIPTION} has lost its checksums"),
    ],
)
def test_a_damaged_checkpoint_is_refused_wherever_it_is_used(
    live_service: LiveService, damage: Callable[[Path], None], named: str
) -> None:
    raw = RawClient(live_service.base_url)
    session = raw.session()
    run = raw.run(session)
    path = raw.result(raw.operate("save_weights", run, 1, path="damaged"))["path"]
    home = live_service.home / "checkpoints" / run.replace(":", "_")
    folder = home / "weights" / "damaged"
    damage(folder)
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    sampler = {"session_id": session, "sampling_session_seq_id": 7, "model_path": path}
    sampler_id = raw.post("/create_sampling_session", sampler).json()["sampling_session_id"]
    sample = {"sampling_session_id": sampler_id, "prompt": {"chunks": [{"tokens": [1]}]}}
    mix = {"source_paths": [path], "coefficients": [1.0]}
    copy = {"source_path": path, "destination_project_id": "p"}
    create = {"session_id": session, "model_seq_id": 9, "path": path, "optimizer": True}
    errors = [
        raw.result(raw.operate("load_weights", run, 2, path=path))["error"],
        raw.result(raw.post("/asample", sample).json()["request_id"])["error"],
        raw.result(raw.post("/mint/checkpoints/interpolate", mix).json()["request_id"])["error"],
        raw.post("/copy_weights", copy).json()["detail"],
        raw.post("/load_weights", create).json()["detail"],
    ]
    for error in errors:
        assert f"{path} is damaged: {named}" in error, error
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == files
    assert "metrics" in raw.result(raw.operate("optim_step", run, 3)), "the run continues"


def test_a_checkpoint_of_a_version_without_checksums_is_read(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'mint.db'}", tmp_path)
    path = CheckpointPath(RUN, "weights", "old")
    folder = CheckpointStore(tmp_path, store).folder(path)
    folder.mkdir(parents=True)
    first = {"path": path.uri, "base_model": "m", "lora": {"rank": 4}, "user_metadata": {}}
    times = {"created_at": "2026-11-15T09:00:00+00:00", "expires_at": None}
    (folder / DESCRIPTION).write_text(json.dumps(first | times))
    assert CheckpointStore(tmp_path, store).verified_folder(path) == folder
    store.close()
