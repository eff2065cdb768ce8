"""The clients against a live service, as a script uses them."""

from __future__ import annotations

import asyncio
import logging
import pickle
import warnings
from collections.abc import Iterator

import pytest

import mint
from mint import types

from .conftest import SEED_MODEL

pytestmark = pytest.mark.usefixtures("embedded")

ONE_TOKEN = types.SamplingParams(max_tokens=1)
PROMPT = types.ModelInput.from_ints([65, 66, 67])


def datum() -> types.Datum:
    return types.Datum(
        model_input=PROMPT,
        loss_fn_inputs={"target_tokens": [66, 67, 68], "weights": [0.0, 1.0, 1.0]},
    )


@pytest.fixture
def service_client() -> mint.ServiceClient:
    return mint.ServiceClient()


@pytest.fixture
def training_client(service_client: mint.ServiceClient) -> mint.TrainingClient:
    return service_client.create_lora_training_client(base_model=SEED_MODEL, rank=4)


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No warning is raised and nothing above INFO is logged."""
    with warnings.catch_warnings(), caplog.at_level(logging.INFO):
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)  # the SDK's own sockets
        yield
    loud = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    assert loud == []


@pytest.mark.usefixtures("quiet")
def test_the_documented_calls_make_no_noise(training_client: mint.TrainingClient) -> None:
    training_client.forward_backward([datum()], loss_fn="cross_entropy").result()
    training_client.optim_step(types.AdamParams()).result()
    path = training_client.save_state(name="quiet").result().path
    training_client.load_state(path).result()
    training_client.load_state_with_optimizer(path).result()
    training_client.save_weights_for_sampler(name="quiet").result()
    sampling_client = training_client.save_weights_and_get_sampling_client(name="quiet")
    sampling_client.sample(PROMPT, 1, ONE_TOKEN).result()


@pytest.mark.usefixtures("quiet")
def test_the_async_forms_make_no_noise_either(service_client: mint.ServiceClient) -> None:
    async def script() -> None:
        client = await service_client.create_lora_training_client_async(SEED_MODEL, rank=4)
        await (await client.forward_backward_async([datum()], loss_fn="cross_entropy"))
        await (await client.optim_step_async(types.AdamParams()))
        path = (await (await client.save_state_async(name="quiet"))).path
        await (await client.load_state_async(path))
        await (await client.load_state_with_optimizer_async(path))
        await (await client.save_weights_for_sampler_async(name="quiet"))
        sampler = await client.save_weights_and_get_sampling_client_async(name="quiet")
        result = await sampler.sample_async(PROMPT, 1, ONE_TOKEN)
        assert len(result.sequences) == 1

    asyncio.run(script())


def test_every_way_to_make_a_client_makes_ours(
    service_client: mint.ServiceClient, training_client: mint.TrainingClient
) -> None:
    path = training_client.save_state(name="kept").result().path
    sampler_path = training_client.save_weights_for_sampler(name="kept").result().path
    assert type(training_client) is mint.TrainingClient
    assert type(service_client.create_rest_client()) is mint.RestClient
    for make in (
        service_client.create_training_client_from_state,
        service_client.create_training_client_from_state_with_optimizer,
    ):
        assert type(make(path)) is mint.TrainingClient
    for sampler in (
        training_client.save_weights_and_get_sampling_client(),
        training_client.create_sampling_client(sampler_path),
        service_client.create_sampling_client(model_path=sampler_path),
        service_client.create_sampling_client(base_model=SEED_MODEL),
    ):
        assert type(sampler) is mint.SamplingClient


def test_every_async_way_to_make_a_client_makes_ours(service_client: mint.ServiceClient) -> None:
    async def script() -> None:
        client = await service_client.create_lora_training_client_async(SEED_MODEL, rank=4)
        path = (await (await client.save_state_async(name="kept"))).path
        sampler_path = (await (await client.save_weights_for_sampler_async(name="kept"))).path
        for make in (
            service_client.create_training_client_from_state_async,
            service_client.create_training_client_from_state_with_optimizer_async,
        ):
            assert type(await make(path)) is mint.TrainingClient
        for sampler in (
            await client.save_weights_and_get_sampling_client_async(),
            await client.create_sampling_client_async(sampler_path),
            await service_client.create_sampling_client_async(base_model=SEED_MODEL),
        ):
            assert type(sampler) is mint.SamplingClient

    asyncio.run(script())


def test_a_checkpoint_may_be_called_by_a_mint_path(
    service_client: mint.ServiceClient, training_client: mint.TrainingClient
) -> None:
    path = training_client.save_state(name="state").result().path
    sampler_path = training_client.save_weights_for_sampler(name="sampler").result().path
    mint_path = path.replace("tinker://", "mint://")
    assert mint_path != path
    training_client.load_state(mint_path).result()
    training_client.load_state_with_optimizer(mint_path).result()
    service_client.create_training_client_from_state(path=mint_path)
    service_client.create_sampling_client(sampler_path.replace("tinker://", "mint://"))
    info = mint.RestClient().get_weights_info_by_tinker_path(mint_path).result()
    assert info.base_model == SEED_MODEL
    assert info.lora_rank == 4


def test_the_tokenizer_comes_from_the_service(training_client: mint.TrainingClient) -> None:
    tokenizer = training_client.get_tokenizer()
    text = "Q: What is 3 + 5?\nA: 8"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.chat_template
    sampling_client = training_client.save_weights_and_get_sampling_client()
    assert sampling_client.get_tokenizer().encode(text) == tokenizer.encode(text)


def test_a_sampling_client_survives_pickling(training_client: mint.TrainingClient) -> None:
    sampling_client = training_client.save_weights_and_get_sampling_client()
    copy = pickle.loads(pickle.dumps(sampling_client))
    assert type(copy) is mint.SamplingClient
    greedy = types.SamplingParams(max_tokens=4, temperature=0)
    ours, theirs = (client.sample(PROMPT, 1, greedy) for client in (sampling_client, copy))
    assert list(ours.result().sequences[0].tokens) == list(theirs.result().sequences[0].tokens)


def test_an_empty_batch_is_refused_before_it_is_sent(training_client: mint.TrainingClient) -> None:
    with pytest.raises(ValueError, match="skip the step"):
        training_client.forward_backward([], loss_fn="cross_entropy")
    training_client.forward_backward([datum()], loss_fn="cross_entropy").result()


def test_clients_of_one_script_share_one_service(service_client: mint.ServiceClient) -> None:
    assert mint.ServiceClient().holder._base_url == service_client.holder._base_url


def test_reverse_kl_takes_its_turn_among_the_operations_of_a_run(
    training_client: mint.TrainingClient,
) -> None:
    def towards_the_base_model() -> float:
        datum = mint.ReverseKLDatum(
            student_input=types.ModelInput.from_ints([67, 68]),
            reference_input=types.ModelInput.from_ints([65, 66, 67, 68]),
            target_tokens=[68, 69],
            weights=[1.0, 1.0],
        )
        done = training_client.forward_backward_reverse_kl([datum], SEED_MODEL)
        training_client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        output = done.result()
        assert output.metrics["loss:sum"] == output.outputs[0].loss.data[0]
        return output.metrics["loss:sum"]

    losses = [towards_the_base_model() for _ in range(5)]
    assert losses[-1] < losses[0]
    with pytest.raises(ValueError, match="was called without data"):
        training_client.forward_backward_reverse_kl([], SEED_MODEL)
