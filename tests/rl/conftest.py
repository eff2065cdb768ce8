"""A task that a random byte model learns in a few steps, on a live service."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mint
from mint.rl import RLAdapter, RLConfig
from mint.watch.directory.recorder import METRICS, read_rows
from tests.service_fixture import MODEL, LiveService

OUR_VARIABLES = re.compile(r"(MINT|TINKER)_")


class Letters(RLAdapter):
    """Pays for bytes below 128: half of what a random byte model writes."""

    def build_dataset(self) -> list[str]:
        return [f"{random.randint(0, 999)}:" for _ in range(20)]

    def make_prompt(self, sample: str, tokenizer: Any) -> list[int]:
        return [int(token) for token in tokenizer.encode(sample)]

    def compute_reward(self, response: str, sample: str) -> Any:
        return sum(character < "\x80" for character in response) / max(1, len(response))

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
        self.reported = [*getattr(self, "reported", []), (step, len(rewards), num_datums)]


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the developer's shell has set must not reach a test."""
    for name in filter(OUR_VARIABLES.match, list(os.environ)):
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def live_service(roomy_service: LiveService) -> LiveService:
    """The service that ``service`` is the address of."""
    return roomy_service


@pytest.fixture
def client(service: str) -> mint.ServiceClient:
    """A client of the shared live service."""
    return mint.ServiceClient(base_url=service, api_key="tml-rl")


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., RLConfig]:
    """Settings for small, quick runs in a folder of the test's own."""

    def make(**more: Any) -> RLConfig:
        defaults: dict[str, Any] = {
            "base_model": MODEL,
            "rank": 4,
            "steps": 2,
            "batch_size": 2,
            "group_size": 4,
            "max_tokens": 4,
            "learning_rate": 1e-2,
            "run_dir": str(tmp_path / "run"),
            "truncation_limit": 1.0,
        }
        return RLConfig(**{**defaults, **more})

    return make


@pytest.fixture
def metrics(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """The metrics that the test's run has written."""
    return lambda: read_rows(tmp_path / "run" / METRICS)
