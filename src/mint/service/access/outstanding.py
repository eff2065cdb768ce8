"""Limits of samples in progress: their number for each user, and their tokens."""

from collections import Counter

from mint.service.errors import ApiError


class Outstanding:
    """Counts samples in progress. Together they are bounded, and nobody takes all of the bound."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._samples: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """Return how many samples are in progress, of all users."""
        return self._samples.total()

    def refuse_if_full(self, user: str) -> None:
        """Raise ApiError 429 when a user has as many samples in progress as may be."""
        mine = self._samples[user]
        if mine >= most_outstanding(self._limit, self.total - mine):
            raise ApiError(
                429,
                f"Too many samples are in progress ({mine} of yours, {self.total} in all); retry.",
            )

    def tokens(self, key: str) -> int:
        """Return how many tokens the samples of a key that are in progress may take."""
        return self._tokens[key]

    def begin(self, user: str, key: str = "", tokens: int = 0) -> None:
        """Count one more sample of a user, made with a key."""
        self._samples[user] += 1
        self._tokens[key] += tokens

    def end(self, user: str, key: str = "", tokens: int = 0) -> None:
        """Count one less."""
        self._samples[user] -= 1
        self._tokens[key] -= tokens
        self._samples, self._tokens = +self._samples, +self._tokens


def most_outstanding(limit: int, others: int) -> int:
    """Return how many samples one user may have in progress beside those of other users.

    It is four times as many as stay free for whoever comes next, so that no number of users ever
    takes all.

    >>> most_outstanding(20_000, others=0), most_outstanding(20_000, others=16_000)
    (16000, 3200)
    >>> most_outstanding(1, others=0)
    1
    """
    return -(-4 * max(limit - others, 0) // 5)
