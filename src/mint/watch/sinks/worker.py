"""A sink in a thread of its own, so that a slow server delays no step."""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mint.watch.sinks.sink import Sink
from mint.watch.verdict.series import Row

_MOST_WAITING = 1_000
_LAST_S = 60.0


class SinkThread(Sink):
    """Opens a sink and calls it in a thread. An error there is raised at the next call."""

    def __init__(self, open_sink: Callable[[], Sink], last_s: float = _LAST_S) -> None:
        self._last_s = last_s
        self._work: queue.Queue[Callable[[Sink], None] | None] = queue.Queue(_MOST_WAITING)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(open_sink,), daemon=True)
        self._thread.start()

    def _run(self, open_sink: Callable[[], Sink]) -> None:
        try:
            sink = open_sink()
            while (work := self._work.get()) is not None:
                work(sink)
            sink.close()
        except Exception as error:
            self._error = error

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._put(lambda sink: sink.log(step, metrics))

    def rollouts(self, rows: Sequence[Row]) -> None:
        self._put(lambda sink: sink.rollouts(rows))

    def close(self) -> None:
        """Wait until everything has been sent, for at most ``last_s`` seconds."""
        self._put(None)
        self._thread.join(self._last_s)
        self._raise_error()
        if self._thread.is_alive():
            raise TimeoutError(
                f"it did not end within {self._last_s:g} s, so its last steps may be missing. The "
                "run directory has them."
            )

    def _put(self, work: Any) -> None:
        self._raise_error()
        try:
            self._work.put_nowait(work)
        except queue.Full:
            raise TimeoutError(f"it is {_MOST_WAITING} calls behind.") from None

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
