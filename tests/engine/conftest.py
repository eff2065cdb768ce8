"""An engine with a base model that all tests of the process share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mint.engine.engine import Engine
from mint.engine.messages import SampleRequest, SampleResult
from mint.engine.model.base_model import BaseModel


@pytest.fixture(scope="session")
def base(tiny_model: Path) -> BaseModel:
    return BaseModel.load("tiny", tiny_model, device="cpu", precision="exact")


@pytest.fixture
def engine(base: BaseModel) -> Engine:
    return Engine(base)


def sample(engine: Engine, sampler_id: str, *requests: SampleRequest) -> list[SampleResult]:
    """Submit requests together and decode until all are done."""
    for ticket, request in enumerate(requests):
        engine.sample(ticket, sampler_id, request)
    results: dict[int, SampleResult] = {}
    while not engine.sampling.is_idle:
        results |= {job.ticket: job.result() for job in engine.sampling.step()}
    return [results[ticket] for ticket in range(len(requests))]


def ids(text: str) -> np.ndarray:
    """Token ids for a text: any numbers of the vocabulary do."""
    return np.frombuffer(text.encode(), np.uint8).astype(np.int64)
