"""Other destinations of a run's metrics: TensorBoard, W&B, Trackio, MLflow, OpenTelemetry.

Each sink is imported when it is switched on and runs in a thread of its own, so that a slow server
delays no step. A sink that fails is switched off, with a warning and an event; training continues.
"""

from mint.watch.sinks.sink import Sink, SinkName, Sinks, open_sink

__all__ = ["Sink", "SinkName", "Sinks", "open_sink"]
