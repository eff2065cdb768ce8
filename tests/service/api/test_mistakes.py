"""Errors: one clear message, a run that stays usable, and nothing saved is lost."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tinker
from tinker import types

from tests.service.samples import datum, prompt
from tests.service_fixture import MODEL, LiveService, RawClient, start_service

REFUSALS = (
    tinker.RequestFailedError,
    tinker.BadRequestError,
    tinker.UnprocessableEntityError,
)
STEP = types.AdamParams(learning_rate=1e-3)


@pytest.fixture(scope="module")
def client(live_service: LiveService) -> tinker.ServiceClient:
    return tinker.ServiceClient(base_url=live_service.base_url, api_key="tml-test")


@pytest.fixture(scope="module")
def training(client: tinker.ServiceClient) -> tinker.TrainingClient:
    return client.create_lora_training_client(base_model=MODEL, rank=4)


def message_of(failing: Callable[[], Any]) -> str:
    """Return the message for the client, which must be a user error."""
    with pytest.raises(REFUSALS) as error:
        failing()
    if isinstance(error.value, tinker.RequestFailedError):
        assert error.value.category == "user"
    return str(error.value)


def assert_usable(training: tinker.TrainingClient) -> None:
    training.forward_backward([datum()], "cross_entropy")
    assert (training.optim_step(STEP).result().metrics or {})["grad_norm"] > 0


def test_a_wrong_model_name(client: tinker.ServiceClient) -> None:
    text = message_of(lambda: client.create_lora_training_client(base_model="no/such-model"))
    assert "no/such-model" in text
    text = message_of(lambda: client.create_sampling_client(base_model="no/such-model"))
    assert "no/such-model" in text


def test_rank_zero(client: tinker.ServiceClient) -> None:
    text = message_of(lambda: client.create_lora_training_client(base_model=MODEL, rank=0))
    assert "rank" in text


def test_an_empty_batch(raw: RawClient) -> None:
    run = raw.run()
    empty = {"forward_backward_input": {"data": [], "loss_fn": "cross_entropy"}}
    failure = raw.result(raw.operate("forward_backward", run, 1, **empty))
    assert failure["category"] == "user"
    assert "did nothing" in raw.result(raw.operate("optim_step", run, 2))["error"]
    assert "metrics" in raw.result(raw.operate("optim_step", run, 3))


def rl_datum(**changes: Any) -> types.Datum:
    inputs = {
        "target_tokens": [2, 3, 4],
        "logprobs": [-1.0, -1.0, -1.0],
        "advantages": [1.0, 1.0, 1.0],
        **changes,
    }
    return types.Datum(
        model_input=prompt([1, 2, 3]),
        loss_fn_inputs={key: value for key, value in inputs.items() if value is not None},
    )


BAD_BATCHES = {
    "mismatched lengths": (rl_datum(advantages=[1.0]), "advantages"),
    "a token outside the vocabulary": (rl_datum(target_tokens=[2, 3, 99999]), "token ids"),
    "a missing loss input": (rl_datum(logprobs=None), "logprobs"),
    "NaN in advantages": (rl_datum(advantages=[1.0, float("nan"), 1.0]), "advantages"),
}


@pytest.mark.parametrize("mistake", BAD_BATCHES)
def test_a_bad_batch_is_refused_whole(training: tinker.TrainingClient, mistake: str) -> None:
    bad, named = BAD_BATCHES[mistake]
    data = [rl_datum(), bad]
    text = message_of(lambda: training.forward_backward(data, "importance_sampling").result())
    assert named in text
    text = message_of(lambda: training.optim_step(STEP).result())
    assert "did nothing" in text
    assert named in text
    assert_usable(training)


def test_a_bad_chunk_voids_the_whole_batch(client: tinker.ServiceClient) -> None:
    training = client.create_lora_training_client(base_model=MODEL, rank=4)
    bad = types.Datum(model_input=prompt([1]), loss_fn_inputs={"target_tokens": [99999]})
    data = [*(datum(i, length=1) for i in range(1100)), bad]
    text = message_of(lambda: training.forward_backward(data, "cross_entropy").result())
    assert "token ids" in text
    assert "did nothing" in message_of(lambda: training.optim_step(STEP).result())
    assert_usable(training)


def test_an_unknown_loss(training: tinker.TrainingClient) -> None:
    text = message_of(lambda: training.forward_backward([datum()], "stable_reinforce").result())
    assert "cross_entropy" in text
    message_of(lambda: training.optim_step(STEP).result())
    assert_usable(training)


def test_a_prompt_longer_than_the_context(training: tinker.TrainingClient) -> None:
    sampler = training.save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=4)
    long = prompt([1] * 500)
    text = message_of(lambda: sampler.sample(long, 1, params).result())
    assert "context" in text
    assert sampler.sample(prompt(), 1, params).result().sequences


def test_no_tokens_asked_for(training: tinker.TrainingClient) -> None:
    sampler = training.save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=0)
    text = message_of(lambda: sampler.sample(prompt(), 1, params).result())
    assert "max_tokens" in text


@pytest.mark.parametrize(
    "path", ["tinker://x/weights/y", "tinker://a:train:0/weights/../../x", "tinker://a:train:0/w/x"]
)
def test_a_bad_checkpoint_path(
    client: tinker.ServiceClient, training: tinker.TrainingClient, path: str
) -> None:
    message_of(lambda: client.create_sampling_client(model_path=path))
    with pytest.warns(FutureWarning):
        text = message_of(lambda: training.load_state(path).result())
    assert "checkpoint" in text or "training run" in text
    assert_usable(training)


def test_a_bad_checkpoint_name(training: tinker.TrainingClient) -> None:
    text = message_of(lambda: training.save_state("../../etc").result())
    assert "step-100" in text
    assert_usable(training)


def test_a_time_to_live_out_of_range(training: tinker.TrainingClient) -> None:
    text = message_of(lambda: training.save_state("short", ttl_seconds=5).result())
    assert "ttl_seconds" in text


def test_loading_into_another_shape(client: tinker.ServiceClient) -> None:
    wide = client.create_lora_training_client(base_model=MODEL, rank=8)
    saved = wide.save_state("wide").result().path
    narrow = client.create_lora_training_client(base_model=MODEL, rank=4)
    with pytest.warns(FutureWarning):
        text = message_of(lambda: narrow.load_state(saved).result())
    assert "rank" in text
    assert_usable(narrow)


@pytest.fixture(scope="module")
def impatient(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    """A service that hardly waits for space on its disk."""
    service = start_service(tmp_path_factory.mktemp("full"), tiny_model, disk_wait_s=0.1)
    yield service
    service.stop()


def test_a_full_disk_while_saving(impatient: LiveService, subtests: pytest.Subtests) -> None:
    service = impatient
    raw = RawClient(service.base_url)
    run = raw.run()
    saved = raw.result(raw.operate("save_weights", run, 1, path="kept"))["path"]
    [worker] = service.worker_pids()
    unlimited = resource.prlimit(worker, resource.RLIMIT_FSIZE, (9000, -1))
    for seq_id, kind in ((2, "save_weights"), (3, "save_weights_for_sampler")):
        with subtests.test(kind):
            failure = raw.result(raw.operate(kind, run, seq_id, path="kept", overwrite=True))
            assert "disk of the service is full" in failure["error"]
    resource.prlimit(worker, resource.RLIMIT_FSIZE, unlimited)
    assert raw.result(raw.operate("load_weights", run, 4, path=saved, optimizer=True))["path"]
    assert raw.result(raw.operate("save_weights", run, 5, path="later"))["path"]
    drafts = list((service.home / "checkpoints").rglob(".draft*"))
    assert not drafts


def test_a_full_disk_while_training(impatient: LiveService) -> None:
    service = impatient
    raw = RawClient(service.base_url)
    run = raw.run()
    unlimited = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (50, -1))
    failure = raw.result(raw.operate("optim_step", run, 1))
    assert "disk of the service is full" in failure["error"]
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, unlimited)
    assert "metrics" in raw.result(raw.operate("optim_step", run, 2))
