"""Split samples into train and holdout by a hash of their identity."""

import hashlib
from collections.abc import Iterable


class Split:
    """The holdout: given identities and a fixed share of all others, the same in every process.

    >>> split = Split(fraction=0.5)
    >>> split.holds_out("a") == Split(fraction=0.5).holds_out("a")
    True
    """

    def __init__(self, fraction: float = 0.0, given: Iterable[str] = ()) -> None:
        self.fraction = fraction
        self.given = frozenset(given)

    def holds_out(self, identity: str) -> bool:
        """Return whether a sample is for evaluation only."""
        if identity in self.given:
            return True
        digest = hashlib.sha256(b"holdout:" + identity.encode()).digest()
        return int.from_bytes(digest[:8], "big") < self.fraction * 2.0**64

    @property
    def active(self) -> bool:
        return bool(self.given) or self.fraction > 0
