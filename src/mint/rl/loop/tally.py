"""The numbers of a step that is trained on in parts."""

from collections import defaultdict
from collections.abc import Mapping
from statistics import fmean

_SUMS = frozenset(
    (
        *("time/sample", "time/train", "datums", "datums/unmasked"),
        *("train/loss", "train/tokens", "train/updates", "train/refused"),
    )
)


class Tally:
    """Collects metrics part by part: counts and times add up, of the rest the mean is taken. The
    mismatch is that before the first update.

    >>> tally = Tally()
    >>> tally.add({"datums": 2.0, "train/grad_norm": 1.0})
    >>> tally.add({"datums": 3.0, "train/grad_norm": 2.0})
    >>> tally.numbers
    {'datums': 5.0, 'train/grad_norm': 1.5}
    """

    def __init__(self) -> None:
        self._found: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, numbers: Mapping[str, float]) -> None:
        """Take the numbers of a part into account."""
        for name, value in numbers.items():
            self._found[name].append(value)

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers of the step so far."""
        return {name: _together(name, values) for name, values in self._found.items()}


def _together(name: str, values: list[float]) -> float:
    if len(values) == 1 or name.startswith("mismatch/"):
        return values[0]
    if name in _SUMS:
        return sum(values)
    return fmean(values)
