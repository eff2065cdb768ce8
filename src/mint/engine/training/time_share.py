"""How samples and training share the time of the engine's process."""

import time
from collections.abc import Callable


class TimeShare:
    """Says whose turn it is while both have work.

    Samples come first, for the time of one training pass: short ones are then scored, outside of
    this process, during the pass. From then on both get the same time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()
        self._lead = 0.0  # how much longer samples ran, of late
        self._pass_s = 0.0  # the time of the last training pass
        self._this_pass_s = 0.0  # and of the one that is running

    @property
    def is_for_samples(self) -> bool:
        """Whether training waits for samples now."""
        return self._lead <= self._pass_s

    def sampled(self) -> None:
        """Count the time since the last call: samples ran, and training waited for them."""
        self._lead += self._elapsed()

    def trained(self) -> None:
        """Count the time since the last call: training ran, or not both had work."""
        elapsed = self._elapsed()
        self._this_pass_s += elapsed
        self._lead = max(self._lead - elapsed, 0.0)

    def begin_pass(self) -> None:
        self.trained()
        self._this_pass_s = 0.0

    def end_pass(self) -> None:
        self.trained()
        self._pass_s = self._this_pass_s

    def _elapsed(self) -> float:
        before, self._at = self._at, self._clock()
        return self._at - before
