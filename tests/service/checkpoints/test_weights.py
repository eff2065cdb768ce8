"""Saving, resuming, sampling from what was saved, and reading about it, with the SDK."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tinker
from tinker import types

from tests.service.samples import datum, prompt
from tests.service_fixture import MODEL, LiveService

STEP = types.AdamParams(learning_rate=1e-2)
GREEDY = types.SamplingParams(max_tokens=6, temperature=0)


@pytest.fixture(scope="module")
def client(live_service: LiveService) -> tinker.ServiceClient:
    return tinker.ServiceClient(base_url=live_service.base_url, api_key="tml-test")


@pytest.fixture(scope="module")
def rest(live_service: LiveService) -> tinker.RestClient:
    return tinker.RestClient(base_url=live_service.base_url, api_key="tml-test")


@pytest.fixture
def training(client: tinker.ServiceClient) -> tinker.TrainingClient:
    return client.create_lora_training_client(
        base_model=MODEL, rank=4, user_metadata={"renderer_name": "plain"}
    )


def train(training: tinker.TrainingClient, *seeds: int) -> list[float]:
    losses = []
    for seed in seeds:
        loss = training.forward_backward([datum(seed)], "cross_entropy")
        training.optim_step(STEP).result()
        losses.append(loss.result().metrics["loss:sum"])
    return losses


def test_resuming_with_the_optimizer_changes_nothing(
    client: tinker.ServiceClient, training: tinker.TrainingClient
) -> None:
    train(training, 0, 1)
    saved = training.save_state("halfway").result().path
    expected = train(training, 2, 3)
    resumed = client.create_training_client_from_state_with_optimizer(saved)
    assert train(resumed, 2, 3) == expected


def test_resuming_without_the_optimizer_keeps_the_weights_only(
    client: tinker.ServiceClient, training: tinker.TrainingClient
) -> None:
    train(training, 0, 1)
    saved = training.save_state("weights-only").result().path
    expected = train(training, 2, 3)
    resumed = client.create_training_client_from_state(saved)
    first, second = train(resumed, 2, 3)
    assert first == expected[0]
    assert second != expected[1]


def test_a_sampler_stays_as_it_was_made(training: tinker.TrainingClient) -> None:
    train(training, 0)
    early = training.save_weights_and_get_sampling_client()
    before = early.compute_logprobs(prompt()).result()
    train(training, 1, 2, 3)
    late = training.save_weights_and_get_sampling_client()
    assert early.compute_logprobs(prompt()).result() == before
    assert late.compute_logprobs(prompt()).result() != before


def test_sampling_from_either_kind_of_checkpoint(
    client: tinker.ServiceClient, training: tinker.TrainingClient
) -> None:
    train(training, 0, 1)
    live = training.save_weights_and_get_sampling_client().compute_logprobs(prompt()).result()
    for path in (
        training.save_state("same-name").result().path,
        training.save_weights_for_sampler("same-name").result().path,
    ):
        sampler = client.create_sampling_client(model_path=path)
        scored = sampler.compute_logprobs(prompt()).result()
        np.testing.assert_allclose(
            np.array(scored[1:], float), np.array(live[1:], float), rtol=1e-4, atol=1e-5
        )
        assert sampler.get_base_model() == MODEL


def test_overwriting_replaces_weights_and_metadata(
    training: tinker.TrainingClient, rest: tinker.RestClient
) -> None:
    training.save_state("again", user_metadata={"version": "1"}).result()
    train(training, 0)
    training.save_state("again", overwrite=True, user_metadata={"version": "2"}).result()
    [checkpoint] = rest.list_checkpoints(training.model_id).result().checkpoints
    assert checkpoint.user_metadata == {"version": "2"}


def test_the_service_describes_runs_and_checkpoints(
    training: tinker.TrainingClient, rest: tinker.RestClient
) -> None:
    path = training.save_state("state", ttl_seconds=7200).result().path
    training.save_weights_for_sampler("policy").result()
    run = rest.get_training_run(training.model_id).result()
    assert run.base_model == MODEL
    assert run.lora_rank == 4
    assert run.user_metadata == {"renderer_name": "plain"}
    assert run.last_checkpoint is not None
    assert run.last_checkpoint.tinker_path == path
    assert run.last_checkpoint.expires_at is not None
    assert (run.last_checkpoint.size_bytes or 0) > 0
    assert run.last_sampler_checkpoint is not None
    found = rest.list_checkpoints(training.model_id).result().checkpoints
    assert {c.checkpoint_id for c in found} == {"weights/state", "sampler_weights/policy"}
    everything = rest.list_user_checkpoints(limit=1000).result().checkpoints
    assert path in [c.tinker_path for c in everything]
    runs = rest.list_training_runs(limit=1000).result()
    assert training.model_id in [r.training_run_id for r in runs.training_runs]
    session = rest.get_session(training.model_id.split(":")[0]).result()
    assert training.model_id in session.training_run_ids


def test_a_deleted_checkpoint_is_gone(
    client: tinker.ServiceClient,
    training: tinker.TrainingClient,
    rest: tinker.RestClient,
    live_service: LiveService,
) -> None:
    path = training.save_state("rolling").result().path
    rest.delete_checkpoint(training.model_id, "weights/rolling").result()
    assert rest.list_checkpoints(training.model_id).result().checkpoints == []
    with pytest.raises(tinker.NotFoundError, match="There is no checkpoint"):
        client.create_sampling_client(model_path=path)
    assert not list((live_service.home / "checkpoints").rglob("rolling"))


def test_a_saved_sampler_is_a_peft_folder(
    training: tinker.TrainingClient, live_service: LiveService
) -> None:
    path = training.save_weights_for_sampler("peft").result().path
    folder = live_service.home / "checkpoints" / training.model_id.replace(":", "_")
    folder = folder / "sampler_weights" / path.rsplit("/", 1)[1]
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == 4
    assert (folder / "adapter_model.safetensors").exists()
    assert json.loads((folder / "checkpoint.json").read_text())["base_model"] == MODEL


def test_samples_of_one_seed_are_equal(client: tinker.ServiceClient) -> None:
    sampler = client.create_sampling_client(base_model=MODEL)
    params = types.SamplingParams(max_tokens=6, seed=3)
    one, two = (sampler.sample(prompt(), 2, params).result() for _ in range(2))
    assert [s.tokens for s in one.sequences] == [s.tokens for s in two.sequences]
    one, two = (sampler.sample(prompt(), 1, GREEDY).result() for _ in range(2))
    assert one.sequences[0].tokens == two.sequences[0].tokens


def test_info_names_the_model_and_its_tokenizer(training: tinker.TrainingClient) -> None:
    info = training.get_info()
    assert info.model_data.model_name == MODEL
    assert info.model_data.arch == "LlamaForCausalLM"
    assert training.get_tokenizer().decode([71, 72]) == "hi"
