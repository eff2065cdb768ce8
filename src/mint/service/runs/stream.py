"""The order of a run's operations, without I/O: which numbers run next, and together."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

GRADIENT_KINDS = ("forward_backward", "forward_backward_reverse_kl")
MAX_GROUP_BYTES = 512 * 1024 * 1024


@dataclass
class Operation:
    """One accepted, numbered request. One with an ``error`` fails when its turn comes."""

    seq_id: int
    kind: str
    size: int = 0
    error: str | None = None
    is_ready: bool = False


class Stream:
    """Accepts numbers in any order and returns them in order, each exactly once.

    >>> stream = Stream()
    >>> for n in (2, 1, 1): _ = stream.accept(Operation(n, "forward_backward", is_ready=True))
    >>> [op.seq_id for op in stream.take()]
    [1, 2]

    An operation without a number gets a negative one. It runs after everything that was ready when
    it arrived, and before everything that arrived later.
    """

    def __init__(self, next_seq_id: int = 1, taken: Iterable[int] = ()) -> None:
        self.next = next_seq_id
        self._waiting: dict[int, Operation] = {}
        self._unnumbered: list[tuple[int, Operation]] = []
        self._taken = {seq_id for seq_id in taken if seq_id < 0}

    def __len__(self) -> int:
        """Return the number of waiting operations."""
        return len(self._waiting) + len(self._unnumbered)

    @property
    def gap(self) -> int | None:
        """The missing number that others are waiting for, if there is one."""
        return self.next if self._waiting and self.next not in self._waiting else None

    def knows(self, seq_id: int) -> bool:
        """Return whether the operation of this number is waiting or was taken."""
        if seq_id >= 0:
            return seq_id < self.next or seq_id in self._waiting
        return seq_id in self._taken or any(op.seq_id == seq_id for _, op in self._unnumbered)

    def accept(self, operation: Operation) -> bool:
        """Add a new operation. A repeated number changes nothing: the first one stays."""
        if self.knows(operation.seq_id):
            return False
        if operation.seq_id < 0:
            absent = next(n for n in itertools.count(self.next) if n not in self._waiting)
            self._unnumbered.append((absent, operation))
        else:
            self._waiting[operation.seq_id] = operation
        return True

    def take(self) -> list[Operation]:
        """Return the operations to run next, as one group: all of them succeed or none.

        Consecutive forward_backward operations that are ready together are one group; every
        other operation is a group of its own.
        """
        if self._is_turn_of_unnumbered:
            _, operation = self._unnumbered[0]
            if not operation.is_ready:
                return []
            del self._unnumbered[0]
            self._taken.add(operation.seq_id)
            return [operation]
        group: list[Operation] = []
        size = 0
        while (following := self._waiting.get(self.next)) is not None and following.is_ready:
            fits = not group or (
                following.kind == group[0].kind == "forward_backward"
                and size + following.size <= MAX_GROUP_BYTES
                and not self._is_turn_of_unnumbered
            )
            if not fits:
                break
            group.append(self._waiting.pop(self.next))
            size += following.size
            self.next += 1
        return group

    @property
    def _is_turn_of_unnumbered(self) -> bool:
        return bool(self._unnumbered) and self._unnumbered[0][0] <= self.next

    def drop_waiting(self) -> list[Operation]:
        """Remove everything that waits for a missing number, so that later numbers can run."""
        stranded = [self._waiting[n] for n in sorted(self._waiting)]
        self.next = max(self._waiting, default=self.next - 1) + 1
        self._waiting.clear()
        return stranded


@dataclass
class Gradients:
    """Gradients since the last optim_step: how many were kept, and why others were not."""

    kept: int = 0
    voided: list[str] = field(default_factory=list)

    def why_not_step(self) -> str | None:
        """Return why a step now would apply nothing but old momentum; None if it would not."""
        if self.kept or not self.voided:
            return None
        return (
            "optim_step did nothing: every forward_backward since the last optim_step failed, so "
            f"there is no gradient. The first failure was: {self.voided[0]}"
        )

    def note(self, kind: str, count: int, error: str | None) -> None:
        """Record how ``count`` operations of a kind ended."""
        if kind in GRADIENT_KINDS:
            if error is None:
                self.kept += count
            else:
                self.voided.append(error)
        elif kind in ("optim_step", "load_weights") and (error is None or self.why_not_step()):
            self.clear()

    def clear(self) -> None:
        self.kept = 0
        self.voided.clear()
