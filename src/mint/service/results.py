"""Bounds on finished results: they are kept in memory, then on disk, then dropped.

Each bound applies to all users together, and one user may use four fifths of what the others leave.
Beyond it, results of the user who has the most are moved or dropped: first those that were
retrieved, then the oldest.
"""

import mmap
import uuid
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path

MAX_RESULTS = 100_000
"""The number of results that are kept, however small they are."""


class Share:
    """The amount that each user holds, and which user holds too much."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._of: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self._of.total()

    def of(self, user: str) -> int:
        return self._of[user]

    def has_room(self, user: str) -> bool:
        """Return whether a user may hold one more unit."""
        mine = self._of[user]
        return mine < fair_limit(self._limit, self.total - mine)

    def add(self, user: str, amount: int) -> None:
        """Add to the amount of a user; a negative amount is subtracted."""
        self._of[user] += amount
        if self._of[user] <= 0:
            del self._of[user]

    def user_over_limit(self) -> str | None:
        """Return the user that holds the most, if it is over the limit of one user.

        >>> share = Share(100)
        >>> share.add("ada", 80)
        >>> share.user_over_limit()
        >>> share.add("bob", 10)
        >>> share.user_over_limit()
        'ada'
        """
        if not self._of:
            return None
        user, amount = max(self._of.items(), key=lambda item: item[1])
        return user if amount > fair_limit(self._limit, self.total - amount) else None


def fair_limit(limit: int, others: int) -> int:
    """Return how much of a limit one user may hold, given what the others hold.

    A fifth of the rest always stays free for the next user, however many users there are.

    >>> fair_limit(20_000, others=0), fair_limit(20_000, others=16_000), fair_limit(1, others=0)
    (16000, 3200, 1)
    """
    return -(-4 * max(limit - others, 0) // 5)


class Queue:
    """Results by user, in the order in which they are dropped."""

    def __init__(self, limit: int) -> None:
        self.bytes = Share(limit)
        self._of = defaultdict[str, OrderedDict[str, int]](OrderedDict)

    def add(self, user: str, request_id: str, size: int) -> None:
        self._of[user][request_id] = size
        self.bytes.add(user, size)

    def remove(self, user: str, request_id: str) -> None:
        """Remove a result, if it is in the queue."""
        self.bytes.add(user, -self._of[user].pop(request_id, 0))

    def move_to_front(self, user: str, request_id: str) -> None:
        """Move a result to the front, to be dropped before the others of its user."""
        if request_id in self._of[user]:
            self._of[user].move_to_end(request_id, last=False)

    def first(self, user: str) -> str | None:
        """Return the result of a user that is dropped next."""
        return next(iter(self._of[user]), None)


def write_body(folder: Path, body: bytes) -> Path:
    """Write the body of a result to a new file in a folder. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / uuid.uuid4().hex
    try:
        file.write_bytes(body)
    except OSError:
        file.unlink(missing_ok=True)
        raise
    return file


def map_body(file: Path) -> mmap.mmap:
    """Return the body of a result mapped from its file: only what is read is in memory."""
    with open(file, "rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
