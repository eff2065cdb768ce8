"""Fixtures that every test may use: a tiny real model, and a live service that has it."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: tests share few cores
if "PYTEST_XDIST_WORKER" in os.environ:  # more processes than cores: threads would only wait
    os.environ.setdefault("OMP_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts jobs in the background so
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("MINT_PRECISION", "exact")  # for the services that tests start: they compare

from mint.embedded import stop_embedded_service
from tests.service_fixture import (
    database,
    database_server,
    keyed_service,
    live_service,
    other_service,
    own_service,
    raw,
    roomy_service,
    service,
)
from tests.tiny import build_model

__all__ = [
    "database",
    "database_server",
    "keyed_service",
    "live_service",
    "other_service",
    "own_service",
    "raw",
    "roomy_service",
    "service",
    "tiny_model",
]


_OF_AN_ENDED_SERVICE = ("Session heartbeat failed", "Failed to send telemetry batch")


def _is_worth_telling(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_OF_AN_ENDED_SERVICE)


# Clients of a service that a test has ended look for it until the process ends, and say so.
for name in ("internal_client_holder", "telemetry"):
    logging.getLogger(f"tinker.lib.{name}").addFilter(_is_worth_telling)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random two-layer Llama and a byte-level tokenizer."""
    return build_model(tmp_path_factory.mktemp("models") / "tiny" / "llama")


@pytest.fixture(scope="module", autouse=True)
def end_of_embedded_service() -> Iterator[None]:
    """A service that a file's tests started for themselves is not there for the next file."""
    yield
    stop_embedded_service()
