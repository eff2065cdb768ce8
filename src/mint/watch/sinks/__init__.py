"""Other places where a run's metrics go: TensorBoard, W&B, Trackio, MLflow, OpenTelemetry.

Each is imported when it is switched on, and runs in a thread of its own, so that a server that does
not answer delays nothing. One that fails is switched off, with a warning and an event; training
continues.
"""

from mint.watch.sinks.sink import SINKS, Sink, SinkName, Sinks, open_sink

__all__ = ["SINKS", "Sink", "SinkName", "Sinks", "open_sink"]
