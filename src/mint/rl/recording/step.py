"""The rollouts of the step in progress, until they are written with what training says of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mint import types
from mint.rl.groups.collect import Batch, merge_parts
from mint.rl.recording.tables import Pieces, TrainedTokens, rollout_rows
from mint.watch.directory.recorder import RunDirectory


class Recording:
    """Writes the rollouts of each step once: after its update, or at the end of the run."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self._batch: Batch | None = None
        self._trained = TrainedTokens()
        self._pieces: Pieces | None = None

    def sampled(self, batch: Batch) -> None:
        """Keep the rollouts of a step, or of a part of it."""
        self._pieces = self._pieces or Pieces(batch.policy.tokenizer)
        self._batch = merge_parts([self._batch, batch]) if self._batch else batch

    def trained(
        self,
        datums: Sequence[types.Datum],
        logprobs_D_T: Sequence[NDArray[np.float64]],
        entropy_D_T: Sequence[NDArray[np.float64]] = (),
    ) -> None:
        """Keep the trainer's logprobs of the step's datums, and entropies where it has any."""
        self._trained.add(datums, logprobs_D_T, entropy_D_T)

    def write(self, metrics: Mapping[str, float]) -> None:
        """Write what was kept, and the metrics of its step, while the next step begins."""
        self.directory.write_step(self._taken(), metrics)

    def _taken(self) -> Iterable[dict[str, Any]]:
        """The rows of what was kept, which is then forgotten."""
        batch, self._batch = self._batch, None
        trained, self._trained = self._trained, TrainedTokens()
        return () if batch is None else rollout_rows(batch, self._pieces, trained)

    def end(self, error: BaseException | None, finished: bool) -> None:
        """Write what is left of a step that was not completed, and how the run ended."""
        self.directory.rollouts(self._taken())
        if error is not None and not isinstance(error, KeyboardInterrupt):
            self.directory.set_status("failed")
        else:
            self.directory.set_status("finished" if finished else "interrupted")
