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


def check_batching(engine: Engine, names: list[str], request: SampleRequest) -> None:
    """Sample a request from each of these samplers alone, then from all at once; compare."""
    alone = [sample(engine, name, request)[0] for name in names]
    for ticket, name in enumerate(names):
        engine.sample(ticket, name, request)
    together = {}
    while not engine.sampling.is_idle:
        together |= {job.ticket: job.result() for job in engine.sampling.step()}
    for ticket, want in enumerate(alone):
        for one, other in zip(want.sequences, together[ticket].sequences, strict=True):
            np.testing.assert_array_equal(one.tokens, other.tokens)
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=5e-5)


def ids(text: str) -> np.ndarray:
    """Token ids for a text: any numbers of the vocabulary do."""
    return np.frombuffer(text.encode(), np.uint8).astype(np.int64)
