"""What people do with a service gives the same, right numbers with every version of the client."""

from __future__ import annotations

import pytest

from mint.service.wire.codec import JSON, PROTOBUF

from .conftest import PUBLIC_NAME
from .environments import Conversation

pytestmark = pytest.mark.slow


def test_the_client_is_the_one_it_is_called(conversation: Conversation) -> None:
    versions = conversation.saw("versions")
    if conversation.client.module == "mint":
        assert versions == {"mindlab-toolkit": "0.2.0", "tinker": "0.22.0"}
    else:
        assert f"tinker-{versions['tinker']}" == conversation.client.name


def test_old_clients_send_json_and_new_ones_protobuf(conversation: Conversation) -> None:
    sent = {e.request_headers["content-type"] for e in conversation.wire.to("/forward_backward")}
    assert sent == {JSON if conversation.client.sends_json else PROTOBUF}
    assert bool(conversation.wire.to("/forward")) == conversation.client.sends_json


def test_the_public_name_is_served(conversation: Conversation) -> None:
    assert PUBLIC_NAME in conversation.saw("models")


def test_keys_of_mint_are_exchanged_for_tokens(conversation: Conversation) -> None:
    exchanged = conversation.wire.to("/auth/token")
    assert bool(exchanged) == conversation.client.key.startswith("sk-")
    if exchanged:
        last = conversation.wire.to("/optim_step")[-1]
        assert last.request_headers["x-api-key"] == exchanged[-1].answered["jwt"]


def test_samples_have_a_logprob_for_each_token(conversation: Conversation) -> None:
    samples = conversation.saw("samples")
    for sample in samples:
        assert len(sample["tokens"]) == len(sample["logprobs"]) <= 5
        assert all(logprob <= 0 for logprob in sample["logprobs"])
        assert sample["stop_reason"] == ("stop" if sample["tokens"][-1] == 258 else "length")
    assert len({tuple(sample["tokens"]) for sample in samples}) > 1


def test_2500_datums_come_back_in_order(conversation: Conversation) -> None:
    seen = conversation.saw("chunks")
    assert seen["outputs"] == 2500
    assert seen["loss"] == pytest.approx(-seen["sum_of_logprobs"], rel=1e-6)
    for together, alone in zip(seen["few"], seen["few_alone"], strict=True):
        assert together == pytest.approx(alone, abs=1e-5)
    assert seen["grad_norm"] > 0


def test_training_goes_as_if_no_answer_had_been_lost(conversation: Conversation) -> None:
    seen = conversation.saw("lost_answers")
    assert seen["seen"] == seen["expected"]
    lost = {e.endpoint for e in conversation.lossy_wire.exchanges if e.lost}
    assert {"/create_session", "/create_model", "/forward_backward", "/optim_step"} <= lost
    assert {"/retrieve_future", "/asample", "/save_weights", "/load_weights"} <= lost
    assert {"/save_weights_for_sampler", "/create_sampling_session", "/weights_info"} <= lost


def test_a_custom_loss_has_the_gradient_of_its_formula(conversation: Conversation) -> None:
    seen = conversation.saw("a_custom_loss")
    if seen is None:
        pytest.skip(f"no torch in the environment of {conversation.client.name}, to keep it small")
    assert seen["metrics"]["mine"] == 0.5
    assert seen["metrics"]["loss:sum"] == pytest.approx(2 * seen["reference_loss"], rel=1e-6)
    assert seen["grad_norm"] == pytest.approx(2 * seen["reference_grad_norm"], rel=1e-5)


def test_a_resumed_run_has_the_same_losses_to_the_bit(conversation: Conversation) -> None:
    seen = conversation.saw("resume")
    assert seen["resumed"] == seen["uninterrupted"]
    assert seen["uninterrupted"][-1] < seen["before"][0]


def test_resuming_without_the_optimizer_starts_it_anew(conversation: Conversation) -> None:
    seen = conversation.saw("resume")
    assert seen["without_optimizer"][0] == seen["uninterrupted"][0]
    assert seen["without_optimizer"][1:] != seen["uninterrupted"][1:]


def test_samplers_are_frozen(conversation: Conversation) -> None:
    seen = conversation.saw("frozen_samplers")
    assert seen["fresh_later"] == seen["fresh"]
    assert seen["fresh_tokens_later"] == seen["fresh_tokens"]
    assert seen["fresh_by_path"] == seen["fresh"]
    assert seen["trained"] != seen["fresh"]
    assert seen["trained_later"] == seen["trained"]


def test_sampler_and_trainer_agree(conversation: Conversation) -> None:
    seen = conversation.saw("scores_of_a_prompt")
    assert seen["sampler"][0] is None
    assert seen["sampler"][1:] == pytest.approx(seen["trainer"], abs=1e-4)
    assert seen["topk"][0] is None
    for row, logprob in zip(seen["topk"][1:], seen["sampler"][1:], strict=True):
        (_, best), (_, second) = row
        assert best >= second
        assert best >= logprob - 1e-5


def test_tokenizers_are_found(conversation: Conversation) -> None:
    assert conversation.saw("tokenizers") == ["Hello!", "Hello!"]


def test_checkpoints_are_listed_published_kept_and_deleted(conversation: Conversation) -> None:
    seen = conversation.saw("book_keeping")
    assert seen["before"] == ["sampler_weights/dropped", "weights/kept"]
    assert seen["after"] == ["weights/kept"]
    assert seen["public"] == [False, True]
    assert seen["expires"] == [True, False]
    assert seen["size"] > 0
    assert seen["run"] == [True, PUBLIC_NAME]
    assert seen["lora_rank"] == 4
    assert seen["in_list"]
    assert seen["in_session"]
    assert "404" in seen["gone"]


def test_an_adapter_can_be_downloaded(conversation: Conversation) -> None:
    files = conversation.saw("downloaded_files")
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(files)


def test_a_client_that_closes_finishes_its_session(conversation: Conversation) -> None:
    finished = [e for e in conversation.wire.exchanges if e.endpoint.endswith("/finish")]
    assert len(finished) == (conversation.client.name == "tinker-0.36.0")
    assert all(e.status == 200 for e in finished)


def test_mints_own_calls(conversation: Conversation) -> None:
    if conversation.client.module != "mint":
        pytest.skip("only MinT's toolkit has them")
    seen = conversation.saw("mint_extras")
    assert seen["mixed"] == pytest.approx(seen["trained"], abs=1e-5)
    assert seen["outputs"] == 2
    assert seen["kl_to_itself"]["loss:sum"] == pytest.approx(0.0, abs=1e-5)
    assert seen["kl_to_fresh"]["loss:sum"] > 0
