"""Gauges for Prometheus, read from the running service at each scrape."""

import asyncio
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from mint.service.admin import metrics
from mint.service.engines.process import EngineProcess
from mint.service.files import free_bytes
from mint.service.service import Service

_ANSWER_WITHIN_S = 0.2
_OF_MEMORY = {
    "cache_tokens_used": "Tokens in the key-value cache.",
    "cache_tokens_kept": "Tokens in the key-value cache that are kept for later prompts.",
    "cache_tokens_capacity": "Capacity of the key-value cache, in tokens.",
    "device_bytes_used": "GPU memory used by the engine.",
    "device_bytes_capacity": "Total GPU memory.",
    "process_bytes": "Memory of the engine's process.",
    "runs_resident": "Training runs whose adapter is in memory.",
    "samplers_resident": "Samplers whose adapter is in memory.",
}


class Gauges(Collector):
    """Renders all metrics; if an engine does not answer in time, its last known values."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._asking: dict[EngineProcess, asyncio.Task[None]] = {}
        self._memory: dict[EngineProcess, dict[str, float]] = {}
        self._disk_free = 0

    async def render(self) -> bytes:
        """Return the text of ``/metrics``."""
        await self.memory()
        self._disk_free = await asyncio.to_thread(free_bytes, self._service.settings.home)
        now = CollectorRegistry()
        now.register(self)
        return generate_latest(metrics.REGISTRY) + generate_latest(now)

    async def memory(self) -> dict[EngineProcess, dict[str, float]]:
        """Ask all engines; return the memory of each that has answered."""
        engines = self._service.engines.loaded()
        self._memory = {e: m for e, m in self._memory.items() if e in engines}
        self._asking = {e: t for e, t in self._asking.items() if e in engines and not t.done()}
        for engine in engines:
            if engine not in self._asking:
                self._asking[engine] = asyncio.create_task(self._ask(engine))
        if self._asking:
            await asyncio.wait(self._asking.values(), timeout=_ANSWER_WITHIN_S)
        return dict(self._memory)

    async def _ask(self, engine: EngineProcess) -> None:
        try:
            found = await engine.call("memory")
            self._memory[engine] = {**found, "process_bytes": float(engine.resident_bytes)}
        except Exception:  # already counted, and the next scrape asks again
            self._memory.pop(engine, None)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        service, loaded = self._service, self._service.engines.loaded()
        waiting = {"operations": service.runs.waiting, "samples": service.samplers.in_progress}
        futures = service.futures
        kept = {"memory": futures.in_memory.bytes.total, "disk": futures.on_disk.bytes.total}
        calls = {engine.name: engine.depth for engine in loaded}
        yield GaugeMetricFamily("mint_ready", "1 once the service is ready.", service.is_ready)
        yield GaugeMetricFamily("mint_models_loaded", "Base models in memory.", len(loaded))
        yield GaugeMetricFamily(
            "mint_disk_free_bytes", "Free space on the disk of the home folder.", self._disk_free
        )
        yield GaugeMetricFamily(
            "mint_runs_paused", "Runs that wait for the disk.", len(service.runs.paused)
        )
        yield _by_label("queue_depth", "Accepted operations without an answer.", "kind", waiting)
        yield _by_label("results_bytes", "Finished results that are kept.", "where", kept)
        yield _by_label("engine_calls", "Calls that an engine has not answered.", "model", calls)
        for name, text in _OF_MEMORY.items():
            found = {e.name: memory[name] for e, memory in self._memory.items() if name in memory}
            yield _by_label(name, text, "model", found)


def _by_label(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"mint_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
