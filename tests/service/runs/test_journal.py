"""The journal: appended records are read back, whatever happened to the end of the file."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint.service.runs.journal import Journal, Outcome, RunIsElsewhere

operations = st.lists(st.tuples(st.sampled_from(["optim_step", "forward_backward"]), st.binary()))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "run")


def reopened(journal: Journal) -> Journal:
    journal.close()
    return Journal(journal.folder)


@given(operations, st.integers(0, 200))
def test_a_torn_end_loses_only_the_torn_record(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[tuple[str, bytes]], torn: int
) -> None:
    journal = Journal(tmp_path_factory.mktemp("run"))
    ends = []
    for number, (kind, body) in enumerate(bodies, 1):
        journal.append_operation(number, kind, "application/json", body)
        ends.append(journal.size)
    path = journal.folder / "journal"
    size = max(0, journal.size - torn)
    journal.close()
    with open(path, "r+b") as file:
        file.truncate(size)
    journal = Journal(journal.folder)
    whole = sum(end <= size for end in ends)
    assert sorted(journal.entries) == list(range(1, whole + 1))
    for number, (kind, body) in enumerate(bodies[:whole], 1):
        assert journal.entries[number].kind == kind
        assert journal.body(number) == body
    journal.append_operation(99, "optim_step", "application/json", b"after")
    journal = reopened(journal)
    assert journal.body(99) == b"after"
    journal.close()


def test_a_damaged_record_is_recognised(journal: Journal) -> None:
    journal.append_operation(1, "optim_step", "application/json", b"aaaa")
    journal.append_operation(2, "optim_step", "application/json", b"bbbb")
    path = journal.folder / "journal"
    path.write_bytes(path.read_bytes()[:-2] + b"xx")
    again = reopened(journal)
    assert list(again.entries) == [1]
    again.close()


def test_outcomes_say_what_is_next(journal: Journal) -> None:
    for number in (2, 1, 3):
        journal.append_operation(number, "forward_backward", "application/json", b"x")
    journal.append_outcome(Outcome("forward_backward", [1, 2], "no", "user"))
    assert journal.next == 3
    again = reopened(journal)
    assert again.outcomes == [Outcome("forward_backward", [1, 2], "no", "user")]
    assert again.next == 3
    again.close()


def test_a_snapshot_cuts_what_was_before_it(journal: Journal) -> None:
    for number in (1, 2, 4):
        journal.append_operation(number, "optim_step", "application/json", b"%d" % number)
    journal.append_outcome(Outcome("optim_step", [1]))
    journal.append_outcome(Outcome("optim_step", [2], result={"metrics": {"a": 1.0}}))
    old = journal.new_snapshot_folder(2)
    new = journal.new_snapshot_folder(3)
    journal.cut(new, 3)
    assert list(journal.entries) == [4]
    assert journal.body(4) == b"4"
    assert journal.next == 3
    assert journal.snapshot_folder == new
    assert new.exists()
    assert not old.exists()
    journal.append_operation(3, "optim_step", "application/json", b"3")
    again = reopened(journal)
    assert sorted(again.entries) == [3, 4]
    assert again.next == 3
    assert again.snapshot_folder == new
    again.close()


def test_two_services_cannot_hold_one_run(journal: Journal) -> None:
    with pytest.raises(RunIsElsewhere):
        Journal(journal.folder)


@pytest.fixture
def small_files() -> Iterator[None]:
    """The kernel refuses to let files grow beyond 300 bytes, as a full disk would."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_no_trace_and_no_outcome_behind(
    journal: Journal, small_files: None
) -> None:
    journal.append_operation(1, "optim_step", "application/json", bytes(150))
    size = journal.size
    with pytest.raises(OSError, match="File too large"):
        journal.append_operation(2, "optim_step", "application/json", bytes(200))
    assert journal.size == size == (journal.folder / "journal").stat().st_size
    journal.append_outcome(Outcome("optim_step", [2], "disk full" * 20, "server"))
    assert journal.next == 3
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    journal.append_operation(3, "optim_step", "application/json", b"again")
    again = reopened(journal)
    assert again.next == 3
    assert again.body(3) == b"again"
    again.close()


def test_a_snapshot_that_is_finished_after_its_journal_was_closed_changes_nothing(
    journal: Journal,
) -> None:
    """The next service has the run by then, and may have accepted operations."""
    journal.append_operation(1, "optim_step", "application/json", b"1")
    journal.append_outcome(Outcome("optim_step", [1]))
    snapshot = journal.new_snapshot_folder(2)
    again = reopened(journal)
    again.append_operation(2, "optim_step", "application/json", b"2")
    with pytest.raises(OSError, match="closed"):
        journal.cut(snapshot, 2)
    again = reopened(again)
    assert sorted(again.entries) == [1, 2]
    again.close()
