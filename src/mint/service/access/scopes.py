"""The scopes of keys: read, sample, train, admin. Each includes the ones before it."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from mint.service.errors import ApiError


class Scope(IntEnum):
    """The rights of a key. A larger scope includes the smaller ones.

    >>> Scope.TRAIN > Scope.SAMPLE, Scope.parse("train").label
    (True, 'train')
    """

    READ = 1
    """List and show runs, sessions and checkpoints, and download checkpoints."""
    SAMPLE = 2
    """Sample from base models and checkpoints."""
    TRAIN = 3
    """Create and train runs; save, upload, share and delete checkpoints."""
    ADMIN = 4
    """Read the usage and the load of all keys."""

    @property
    def label(self) -> str:
        return self.name.lower()

    @classmethod
    def parse(cls, label: str) -> Self:
        return cls[label.upper()]


@dataclass(frozen=True)
class Caller:
    """The caller of a request: the key, and the user whose objects it reaches."""

    user: str
    key: str
    scope: Scope = Scope.ADMIN

    def require(self, needed: Scope) -> None:
        """Raise ApiError 403, with the command that creates a suitable key, for a smaller scope."""
        if self.scope < needed:
            raise ApiError(
                403,
                f"This request requires a key with the scope {needed.label}, and the key "
                f"{self.key!r} has the scope {self.scope.label}. Create one on the service's "
                f"machine:  mint keys create NAME --user {self.user} --scope {needed.label}",
            )
