"""Several base models in one service: loaded on first use, unloaded when idle or in the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.service.samples import batch, json_datum
from tests.service.test_recovery import logprobs, logprobs_of, train
from tests.service_fixture import MODEL, LiveService, RawClient
from tests.tiny import build_model

OTHER = "Qwen/Qwen3-8B"


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("models") / "qwen" / "tiny", "qwen3")


def sampler_of(raw: RawClient, model: str, session: str, number: int) -> str:
    body = {"session_id": session, "sampling_session_seq_id": number, "base_model": model}
    return str(raw.post("/create_sampling_session", body).json()["sampling_session_id"])


def test_models_take_turns_in_a_small_memory_and_runs_come_back_as_they_were(
    own_service: Callable[..., LiveService], tiny_model: Path, other_model: Path
) -> None:
    service = own_service(aliases={MODEL: tiny_model, OTHER: other_model}, memory_gb=0.6)
    raw = RawClient(service.base_url)
    assert service.worker_pids() == [], "nothing is loaded before it is used"
    run, session = raw.run(), raw.session()
    following = train(raw, run, 1)
    saving = raw.operate("save_weights_for_sampler", run, following, sampling_session_seq_id=5)
    frozen = raw.result(saving)["sampling_session_id"]
    before = logprobs_of(raw, frozen, 0)
    raw.retrieve(
        raw.operate("forward_backward", run, following + 1, **batch(json_datum([5, 6, 9])))
    )
    [first] = service.worker_pids()

    reference = sampler_of(raw, OTHER, session, 0)
    assert b"error" not in logprobs_of(raw, reference, 0)
    [second] = service.worker_pids()
    assert second != first, "one made room for the other"

    assert logprobs_of(raw, frozen, 1) == before
    step = raw.operate("optim_step", run, following + 2, adam_params={"learning_rate": 0.01})
    assert raw.result(step)["metrics"]["grad_norm"] > 0, "a gradient that had no step came back"
    [third] = service.worker_pids()
    assert third not in (first, second)

    undisturbed = raw.run()
    number = train(raw, undisturbed, 1)
    raw.operate("forward_backward", undisturbed, number, **batch(json_datum([5, 6, 9])))
    raw.operate("optim_step", undisturbed, number + 1, adam_params={"learning_rate": 0.01})
    np.testing.assert_array_equal(
        logprobs(raw, run, following + 3), logprobs(raw, undisturbed, number + 2)
    )
    names = {
        model["model_name"]
        for model in raw.http.get("/get_server_capabilities").json()["supported_models"]
    }
    assert {MODEL, OTHER} <= names


def test_a_model_that_never_fits_is_refused(own_service: Callable[..., LiveService]) -> None:
    raw = RawClient(own_service(memory_gb=0.1).base_url)
    body = {"session_id": raw.session(), "model_seq_id": 0, "base_model": MODEL}
    answer = raw.post("/create_model", {**body, "lora_config": {"rank": 4}})
    failure = raw.result(answer.json()["request_id"])
    assert "memory_gb" in failure["error"]
    assert failure["category"] == "user"


def test_an_idle_model_is_unloaded_and_its_run_goes_on(
    own_service: Callable[..., LiveService],
) -> None:
    service = own_service(model_idle_s=0.2)
    raw = RawClient(service.base_url)
    run = raw.run()
    following = train(raw, run, 1)
    while service.worker_pids():
        pass
    assert list((service.home / "runs").glob("*/snapshot-*")), "it comes back without a replay"
    train(raw, run, following)
