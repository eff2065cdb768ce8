"""What Linux says of other processes, any of which may end while it is asked."""

from __future__ import annotations

from pathlib import Path


def children_of(pid: int | str = "self") -> list[int]:
    """The processes that one has started and not reaped."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, _content(thread).split())
        except ProcessLookupError:
            continue
    return found


def descendants_of(pid: int | str = "self") -> set[int]:
    """Its children, theirs, and so on."""
    children = children_of(pid)
    return set(children).union(*(descendants_of(child) for child in children))


def arguments_of(pid: int) -> list[str]:
    """Its command line; empty if it has ended and is not reaped."""
    return _content(Path(f"/proc/{pid}/cmdline")).split("\0")[:-1]


def is_running(pid: int) -> bool:
    """Whether it is there, and not only its exit status."""
    try:
        return _content(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[0] not in "ZX"
    except ProcessLookupError:
        return False


def _content(file: Path) -> str:
    """Read a file of /proc. Its process may be gone before the file is opened, or after."""
    try:
        return file.read_text()
    except FileNotFoundError as error:
        raise ProcessLookupError from error
