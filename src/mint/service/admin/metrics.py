"""Counters for Prometheus. Gauges are in :mod:`mint.service.api.gauges`."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from mint.engine.messages import SampleResult
from mint.service.errors import EngineDied, UserError

disable_created_metrics()  # type: ignore[no-untyped-call]
REGISTRY = CollectorRegistry()
OPERATION_SECONDS = Histogram(
    "mint_operation_seconds",
    "Time from sending an operation to an engine to its result.",
    ["operation"],
    buckets=(0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600),
    registry=REGISTRY,
)
ERRORS = Counter(
    "mint_errors",
    "Failed engine operations: kind is user, server or engine_died.",
    ["operation", "kind"],
    registry=REGISTRY,
)
TOKENS_SAMPLED = Counter("mint_tokens_sampled", "Generated tokens.", registry=REGISTRY)
TOKENS_TRAINED = Counter(
    "mint_tokens_trained",
    "Tokens of training data processed forward and backward.",
    registry=REGISTRY,
)
HTTP_REQUESTS = Counter(
    "mint_http_requests",
    "Answered HTTP requests by route and status.",
    ["method", "route", "status"],
    registry=REGISTRY,
)


async def measured(
    operation: str, arguments: Mapping[str, Any], answer: asyncio.Future[Any]
) -> Any:
    """Await the answer of an engine, and count its time, tokens or failure."""
    if operation == "memory":  # called by the metrics themselves
        return await answer
    start = time.monotonic()
    try:
        value = await answer
    except Exception as error:
        kind = "engine_died" if isinstance(error, EngineDied) else "server"
        ERRORS.labels(operation, "user" if isinstance(error, UserError) else kind).inc()
        raise
    OPERATION_SECONDS.labels(operation).observe(time.monotonic() - start)
    if isinstance(value, SampleResult):
        TOKENS_SAMPLED.inc(sum(len(sequence.tokens) for sequence in value.sequences))
    for batch in arguments.get("operations", ()):
        if not batch.forward_only:
            TOKENS_TRAINED.inc(batch.tokens)
    return value
