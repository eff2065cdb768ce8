"""Every single write, sync and rename fails once, in turn, until none is left to fail.

What was acknowledged before and after is there when the files are opened again: after an error,
after a kill, and after a power failure that loses what was not synced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mint.engine.messages import EngineOptions, LoraSpec
from mint.service.checkpoints.storage import (
    TRAINING,
    CheckpointPath,
    CheckpointStore,
    NewCheckpoint,
)
from mint.service.engines.process import EngineProcess
from mint.service.files import checksums
from mint.service.futures import Response
from mint.service.runs.journal import Journal, Outcome
from mint.service.sampling.evicted import EvictedSamplers
from mint.service.store.database import RunRow, SamplerRow, Store
from tests.reliability.disk import Disk, Killed

RUN = "b4b7c1c6-0000-0000-0000-000000000000:train:0"
POWER, POWER_AND_DELETIONS = "power", "power, and deletions are kept"
FAILURES = ("ENOSPC", "EIO", "kill", POWER, POWER_AND_DELETIONS)


@dataclass
class Acknowledged:
    """The operations that a client knows to be done."""

    operations: dict[int, bytes] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)


def disks(root: Path, failure: str) -> Iterator[Disk]:
    """A disk on a fresh folder for each change in turn, until no change is left to fail."""
    at = 1
    while True:
        folder = root / f"{failure}-{at}"
        folder.mkdir()
        disk = Disk(folder, at, "kill" if failure.startswith(POWER) else failure)
        yield disk
        if not disk.has_failed:
            return
        at += 1


def after(disk: Disk, failure: str) -> Path:
    """The folder as the next process finds it."""
    if not failure.startswith(POWER):
        return disk.root
    target = disk.root.with_name(f"{disk.root.name}-after")
    disk.cut_power(target, deletes=failure == POWER_AND_DELETIONS)
    return target


def work(journal: Journal, done: Acknowledged) -> None:
    """Some operations, their outcomes and two snapshots, as a run writes them."""
    for number in range(1, 9):
        body = b"body of %d" % number
        try:
            journal.append_operation(number, "optim_step", "application/json", body)
        except OSError:
            done.refused.add(number)
            journal.append_outcome(Outcome("optim_step", [number], "disk", "user"))
            continue
        done.operations[number] = body
        journal.append_outcome(Outcome("optim_step", [number], result={"n": number}))
        if number in (3, 6):
            folder: Path | None = None
            answers = {number: Response(b"answer", "application/json", is_failure=False)}
            try:
                folder = journal.new_snapshot_folder(number + 1)
                (folder / "weights").write_bytes(b"weights after %d" % number)
                journal.cut(folder, number + 1, answers)
            except OSError:
                if folder is not None:
                    journal.discard_snapshot(folder)


@pytest.mark.parametrize("failure", FAILURES)
def test_no_failed_write_sync_or_rename_loses_an_acknowledged_operation(
    tmp_path: Path, failure: str
) -> None:
    failures = 0
    for disk in disks(tmp_path, failure):
        done = Acknowledged()
        folder = disk.root / "runs" / "run"
        journal: Journal | None = None
        with disk.failing():
            try:
                folder.mkdir(parents=True)
                journal = Journal(folder)
                work(journal, done)
            except Killed:
                assert failure not in ("ENOSPC", "EIO")
            except OSError:
                assert journal is None, "only a journal that was not opened yet may fail"
        if journal is not None:
            journal.close()
        check_journal(after(disk, failure) / "runs" / "run", done, disk)
        failures += disk.has_failed
    assert failures > 40


def check_journal(folder: Path, done: Acknowledged, disk: Disk) -> None:
    """Each acknowledged operation is in the journal or in its snapshot, and no refused one is."""
    if not done.operations:
        return
    journal = Journal(folder)
    journal.check_snapshot()
    where = f"change {disk.at}"
    for number, body in done.operations.items():
        if number >= journal.first:
            assert journal.body(number) == body, where
    if journal.snapshot_folder is not None:
        weights = (journal.snapshot_folder / "weights").read_bytes()
        assert weights == b"weights after %d" % (journal.first - 1), where
        assert list(journal.answers()) == [journal.first - 1], where
    if disk.failure != "kill":
        assert not done.refused & journal.entries.keys(), where
        assert journal.next == 9, where
    journal.append_operation(9, "optim_step", "application/json", b"next")
    journal.close()


def test_a_power_failure_changes_no_answer_that_a_replay_would_not_repeat(tmp_path: Path) -> None:
    """A client resends what failed, and counts the gradients that were acknowledged.

    Operation 4 is in the journal before the outcomes of the others, as clients do not wait.
    """
    disk = Disk(tmp_path / "home")
    disk.root.mkdir()
    outcomes = [
        Outcome("optim_step", [1], "The engine died. This happened 3 times.", "server"),
        Outcome("forward_backward", [2, 3]),
    ]
    with disk.failing():
        journal = Journal(disk.root / "runs" / "run")
        kinds = ("optim_step", "forward_backward", "forward_backward", "forward_backward")
        for number, kind in enumerate(kinds, 1):
            journal.append_operation(number, kind, "application/json", b"{}")
        for outcome in outcomes:
            journal.append_outcome(outcome)
    journal.close()
    disk.cut_power(tmp_path / "after")
    journal = Journal(tmp_path / "after" / "runs" / "run")
    assert journal.outcomes == outcomes
    assert journal.next == 4
    journal.close()


@pytest.mark.parametrize("failure", FAILURES)
def test_a_checkpoint_appears_complete_or_not_at_all(tmp_path: Path, failure: str) -> None:
    """The second save replaces the first; whichever was acknowledged last is there."""
    lora = {"rank": 4, "seed": 1, "train_unembed": True, "train_mlp": True, "train_attn": True}
    run = RunRow(id=RUN, session_id="s", user="u", base_model="m", lora=lora)
    path = CheckpointPath(RUN, TRAINING, "a")
    store = Store(f"sqlite:///{tmp_path / 'mint.db'}", tmp_path)
    store.migrate()
    failures = 0
    for disk in disks(tmp_path, failure):
        checkpoints = CheckpointStore(disk.root, store)
        acknowledged: list[bytes] = []
        with disk.failing():
            try:
                for number, content in ((1, b"first"), (2, b"second")):
                    new = NewCheckpoint(path, number, True, None, {})
                    draft: Path | None = None
                    try:
                        draft = checkpoints.begin(new)
                        (draft / "adapter_model.safetensors").write_bytes(content)
                        checkpoints.publish(new, draft, run)
                        acknowledged.append(content)
                    except OSError:
                        if draft is not None:
                            checkpoints.discard(draft)
            except Killed:
                assert failure not in ("ENOSPC", "EIO")
        found = CheckpointStore(after(disk, failure), store)
        if acknowledged:
            weights = (found.verified_folder(path) / "adapter_model.safetensors").read_bytes()
            assert weights in (acknowledged[-1], b"second"), f"change {disk.at}"
        row = store.checkpoint(RUN, TRAINING, "a")
        assert (row is not None) >= bool(acknowledged)
        if row is not None:
            store.delete_checkpoint(row)
        failures += disk.has_failed
    store.close()
    assert failures > 15


def test_an_evicted_sampler_survives_a_power_failure(tmp_path: Path, tiny_model: Path) -> None:
    """The journal that could replay it is cut as soon as it is saved."""
    home = tmp_path / "home"
    home.mkdir()
    disk = Disk(home)
    row = SamplerRow(id="s:sample:1", session_id="s", user="u", base_model="m", run_id=RUN)

    async def save() -> None:
        log, options = tmp_path / "engine.log", EngineOptions("exact", None)
        engine = await EngineProcess.start("tiny", tiny_model, log, 120.0, options)
        try:
            lora = LoraSpec(rank=4, seed=1)
            await engine.call("create_run", run_id=RUN, lora=lora, tenant="u")
            await engine.call("create_sampler", sampler_id=row.id, run_id=RUN)
            with disk.failing():  # nothing fails, but what is not synced is lost
                await EvictedSamplers(home / "samplers", 1).save(row, engine)
        finally:
            await engine.stop()

    asyncio.run(save())
    disk.cut_power(tmp_path / "after")
    before = EvictedSamplers(home / "samplers", 1).find(row)
    after = EvictedSamplers(tmp_path / "after" / "samplers", 1).find(row)
    assert before is not None
    assert after is not None
    assert checksums(after) == checksums(before)


def test_a_read_only_folder_refuses_operations_and_keeps_the_journal(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    disk = Disk(tmp_path / "home", at=1, failure="EROFS", lasts=True)
    journal = Journal(tmp_path / "home" / "runs" / "run")
    journal.append_operation(1, "optim_step", "application/json", b"first")
    with disk.failing():
        for number in (2, 3):
            with pytest.raises(OSError, match="Read-only"):
                journal.append_operation(number, "optim_step", "application/json", b"x" * number)
        journal.append_outcome(Outcome("optim_step", [1]))
    assert disk.changes > 2
    journal.append_operation(2, "optim_step", "application/json", b"second")
    journal.close()
    journal = Journal(tmp_path / "home" / "runs" / "run")
    assert (journal.body(1), journal.body(2)) == (b"first", b"second")
    assert journal.next == 2
    journal.close()


@pytest.mark.parametrize("fails_at", [0, 1, 2, 3])
def test_an_outcome_is_final_when_the_next_process_does_not_execute_the_operation(
    tmp_path: Path, fails_at: int
) -> None:
    """The disk fails at a change of the operation's record or, with 0, before that. A record whose
    sync failed is there after a kill, if it could not be cut off either."""
    disk = Disk(tmp_path / "home", fails_at or 1, "EROFS", lasts=True, changes=not fails_at)
    disk.root.mkdir()
    journal = Journal(disk.root / "run")
    journal.append_operation(1, "optim_step", "application/json", b"first")
    with disk.failing():
        with pytest.raises(OSError, match="Read-only"):
            journal.append_operation(2, "optim_step", "application/json", b"second")
        assert journal.append_outcome(Outcome("optim_step", [2], "disk", "user")) == (not fails_at)
        assert not journal.append_outcome(Outcome("optim_step", [1], "disk", "user"))
        with pytest.raises(OSError, match="Read-only"):
            journal.flush()
        (tmp_path / "killed").mkdir()
        (tmp_path / "killed" / "journal").write_bytes((disk.root / "run" / "journal").read_bytes())
    killed = Journal(tmp_path / "killed")
    assert (2 in killed.entries) == (fails_at == 3)
    killed.close()
    journal.flush()
    journal.close()
    journal = Journal(disk.root / "run")
    assert [outcome.seq_ids for outcome in journal.outcomes] == [[2], [1]]
    journal.close()
