"""The sinks of a run, each in a thread of its own. One that fails is switched off."""

import queue
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from mint.watch.verdict.series import Row, number

SinkName = Literal["tensorboard", "wandb", "trackio", "mlflow", "opentelemetry"]
SINKS: tuple[str, ...] = get_args(SinkName)
_PACKAGES = {"opentelemetry": "opentelemetry-sdk"}
_MOST_WAITING = 1_000


class Sink:
    """A receiver of a run's metrics and rollouts. Subclasses override what they need."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Receive the metrics of a step."""

    def rollouts(self, rows: Sequence[Row]) -> None:
        """Receive the rollouts of a step."""

    def close(self) -> None:
        """Write what is left, and close."""


def open_sink(name: str, path: Path, config: Row) -> Sink:
    """Open a sink by its name.

    >>> open_sink("tensorbord", Path("run"), {})
    Traceback (most recent call last):
    ValueError: 'tensorbord' is not a sink. Use one of tensorboard, wandb, trackio, mlflow, opentelemetry.
    """  # noqa: E501
    from mint.watch.sinks.opentelemetry import Spans
    from mint.watch.sinks.trackers import MLflow, TensorBoard, Trackio, WeightsAndBiases

    kinds = dict(zip(SINKS, (TensorBoard, WeightsAndBiases, Trackio, MLflow, Spans), strict=True))
    if name not in kinds:
        raise ValueError(f"{name!r} is not a sink. Use one of {', '.join(SINKS)}.")
    try:
        return kinds[name](path, dict(config))
    except ImportError as error:
        raise ImportError(
            f"The sink {name!r} needs a package that is not installed ({error.name or error}). "
            f"Type: pip install {_PACKAGES.get(name, name)}"
        ) from error


class SinkThread(Sink):
    """Opens a sink and calls it in a thread. An error there is raised at the next call."""

    def __init__(self, open_sink: Callable[[], Sink], last_s: float = 60.0) -> None:
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

    def _put(self, work: Callable[[Sink], None] | None) -> None:
        self._raise_error()
        try:
            self._work.put_nowait(work)
        except queue.Full:
            raise TimeoutError(f"it is {_MOST_WAITING} calls behind.") from None

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


class Sinks:
    """The sinks of a run. None of them can stop it."""

    def __init__(self, on_failure: Callable[[str, str], None]) -> None:
        self._on_failure = on_failure
        self._open: dict[str, Sink] = {}

    def add(self, names: Iterable[str], path: Path, config: Row) -> None:
        """Switch sinks on, each in a thread of its own."""
        for name in names:
            if name not in self._open:
                self.attach(name, SinkThread(partial(open_sink, name, path, config)))

    def attach(self, name: str, sink: Sink) -> None:
        """Switch on an open sink that is called in the recorder's own thread."""
        self._open[name] = sink

    def log(self, row: Row) -> None:
        """Forward the finite numbers among a step's metrics."""
        numbers = {name: number(row[name]) for name in row if name not in ("step", "time")}
        metrics = {name: value for name, value in numbers.items() if value is not None}
        self._call_each(lambda sink: sink.log(int(row.get("step") or 0), metrics))

    def rollouts(self, rows: Sequence[Row]) -> None:
        """Forward the rollouts of a step."""
        self._call_each(lambda sink: sink.rollouts(rows))

    def close(self) -> None:
        """End all sinks."""
        self._call_each(lambda sink: sink.close())
        self._open.clear()

    def _call_each(self, call: Callable[[Sink], None]) -> None:
        """Call each sink, and switch off those that fail."""
        for name, sink in list(self._open.items()):
            try:
                call(sink)
            except Exception as error:
                self._open.pop(name, None)
                said = f"The sink {name!r} is switched off: {type(error).__name__}: {error}"
                warnings.warn(f"{said} Training continues.", stacklevel=2)
                self._on_failure(name, said)
