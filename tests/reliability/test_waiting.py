"""A client that waits hears why, through the protocol: loading, queued behind others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import tinker
from tinker import types

from tests.service_fixture import MODEL, LiveService, RawClient


class Heard(logging.Handler):
    """What the client's own log says; ``wait_for`` returns once a text was in it."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []
        self._changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._changed:
            self._lines.append(record.getMessage())
            self._changed.notify_all()

    def wait_for(self, text: str) -> str:
        def found() -> str | None:
            return next((line for line in self._lines if text in line), None)

        with self._changed:
            line = self._changed.wait_for(found, timeout=120)
        assert line, f"the client has not heard {text!r}: {self._lines}"
        return line


@pytest.fixture
def heard() -> Iterator[Heard]:
    handler = Heard()
    logger = logging.getLogger("tinker")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def test_the_tinker_client_is_informed_of_a_loading_model_and_of_the_queue(
    own_service: Callable[..., LiveService], heard: Heard, tmp_path: Path
) -> None:
    service = own_service(long_poll_s=0.05)
    client = tinker.ServiceClient(base_url=service.base_url, api_key="tml-test")
    training = client.create_lora_training_client(base_model=MODEL, rank=2)
    assert f"the base model {MODEL} is loading" in heard.wait_for("Reason: the base model")
    sampler = training.save_weights_and_get_sampling_client()
    prompt = types.ModelInput.from_ints([1, 2, 3])
    params = types.SamplingParams(max_tokens=8, stop=[])
    crowd = [sampler.sample(prompt, 400, params) for _ in range(10)]
    line = heard.wait_for("Sampling is paused")
    assert "samples of this user" in line
    assert f"wait for {MODEL}" in line
    assert [len(future.result().sequences) for future in crowd] == [400] * 10


def test_an_operation_behind_others_of_its_run_is_active_and_says_how_many(
    other_service: LiveService,
) -> None:
    """The second waits for the first, which trains on 60,000 tokens."""
    client = RawClient(other_service.base_url)
    run = client.run()
    tensors = {
        "target_tokens": {"data": [6] * 200, "dtype": "int64"},
        "weights": {"data": [1.0] * 200, "dtype": "float32"},
    }
    data = [
        {
            "model_input": {"chunks": [{"tokens": [row % 250] + [5] * 199}]},
            "loss_fn_inputs": tensors,
        }
        for row in range(300)
    ]
    batch = {"forward_backward_input": {"data": data, "loss_fn": "cross_entropy"}}
    first = client.operate("forward_backward", run, 1, **batch)
    second = client.operate("optim_step", run, 2, adam_params={"learning_rate": 0.1})

    def pending(request_id: str) -> httpx.Response:
        return client.post("/retrieve_future", {"request_id": request_id})

    answer = pending(second)
    assert answer.status_code == 408
    said = answer.json()
    assert said["queue_state"] == "active"
    assert said["queue_state_reason"] == "queued behind 1 operations of this run"
    assert client.retrieve(first).status_code == 200
    assert "metrics" in client.result(second)
