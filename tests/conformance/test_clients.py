"""Every version of the client: the ten rules that break a naive server, one by one, in what it sent
and saw; then what people do with a service, which gives the same, right numbers.

Both are in one file because each client is run once for all tests of a worker.
"""

from __future__ import annotations

from collections import Counter

import pytest

from mint.service.wire.bodies import read_address
from mint.service.wire.codec import JSON, PROTOBUF

from .conftest import PUBLIC_NAME
from .environments import Conversation
from .proxy import Exchange

pytestmark = pytest.mark.slow

BIG = ("/forward_backward", "/forward", "/asample")
OPERATIONS = ("/forward_backward", "/forward", "/optim_step", "/save_weights", "/load_weights")


def address_of(exchange: Exchange) -> tuple[str, int | None]:
    """The run and the number of an operation as the client sent it."""
    is_protobuf = exchange.request_headers["content-type"] == PROTOBUF
    address = read_address(exchange.request, is_protobuf)
    assert address is not None
    return address.run_id, address.seq_id


def test_rule_1_samples_and_gradients_are_answered_in_protobuf(conversation: Conversation) -> None:
    wire = conversation.wire
    big = {e.answered["request_id"] for e in wire.to(*BIG)}
    kinds = Counter(
        (e.asked["request_id"] in big, e.content_type)
        for e in wire.to("/retrieve_future")
        if e.status == 200 and not e.answer.startswith(b'{"error"')
    )
    assert set(kinds) == {(True, PROTOBUF), (False, "application/json")}


def test_rule_2_a_sample_has_an_id_for_each_sequence(conversation: Conversation) -> None:
    assert len(conversation.saw("samples")) == 3
    for exchange in conversation.wire.to("/asample"):
        ids = exchange.answered["sample_sequence_ids"]
        assert len(set(ids)) == len(ids) == exchange.asked["num_samples"]


def test_rule_3_the_first_chunk_comes_last_and_is_trained_first(conversation: Conversation) -> None:
    seen = conversation.saw("chunks")
    arrivals = [
        (address_of(e)[1], e.status)
        for e in conversation.wire.to("/forward_backward")
        if address_of(e)[0] == seen["run"]
    ]
    assert {status for _, status in arrivals} == {200}
    chunks = [number for number, _ in arrivals[:3]]
    assert sorted(chunks) == [1, 2, 3]
    assert chunks[-1] == 1
    assert seen["outputs"] == 2500


def test_rule_4_a_repeated_operation_is_the_same_request(conversation: Conversation) -> None:
    sent: dict[tuple[str, tuple[str, int | None]], list[str]] = {}
    for exchange in conversation.lossy_wire.to(*OPERATIONS):
        key = exchange.endpoint, address_of(exchange)
        sent.setdefault(key, []).append(exchange.answered["request_id"])
    repeated = {key[0]: ids for key, ids in sent.items() if len(ids) > 1}
    assert set(repeated) == set(OPERATIONS) - {"/forward"}
    assert all(len(set(ids)) == 1 for ids in repeated.values())


def test_rule_4_a_repeated_save_for_a_sampler_keeps_its_first_number(
    conversation: Conversation,
) -> None:
    wire = conversation.lossy_wire
    lost, again = wire.to("/save_weights_for_sampler")[:2]
    assert (lost.lost, again.lost) == (True, False)
    assert lost.asked["seq_id"] == again.asked["seq_id"]
    assert lost.asked["sampling_session_seq_id"] != again.asked["sampling_session_seq_id"]
    assert lost.answered["request_id"] == again.answered["request_id"]
    first_number = lost.asked["sampling_session_seq_id"]
    results = [
        e.answered
        for e in wire.to("/retrieve_future")
        if e.status == 200 and e.asked["request_id"] == again.answered["request_id"]
    ]
    assert results[-1]["sampling_session_id"].endswith(f":sample:{first_number}")


def test_rule_4_a_repeated_sample_is_sampled_once(conversation: Conversation) -> None:
    lost, again = conversation.lossy_wire.to("/asample")[:2]
    assert (lost.lost, again.lost) == (True, False)
    assert lost.asked["seq_id"] == again.asked["seq_id"]
    assert lost.answered == again.answered


def test_rule_5_a_refused_operation_uses_up_its_number(conversation: Conversation) -> None:
    seen = conversation.saw("a_bad_batch")
    assert "token ids of this model run from 0 to 271" in seen["refused"]
    assert "optim_step did nothing" in seen["step_on_nothing"]
    assert "'magic'" in seen["unknown_loss"]
    assert len(seen["losses_after"]) == 1


def test_rule_6_what_is_pending_says_so_and_arrives(conversation: Conversation) -> None:
    polls = conversation.wire.to("/retrieve_future")
    pending = [e for e in polls if e.status == 408]
    assert {e.answered["type"] for e in pending} == {"try_again"}
    finished = {e.asked["request_id"] for e in polls if e.status == 200}
    assert {e.asked["request_id"] for e in pending} <= finished


def test_rule_7_every_metric_names_its_reduction(conversation: Conversation) -> None:
    for names in conversation.saw("metrics").values():
        assert "loss:sum" in names
        assert all(name.count(":") == 1 for name in names)


def test_rule_8_the_client_is_configured_before_anything_else(conversation: Conversation) -> None:
    first = conversation.wire.exchanges[0]
    assert (first.endpoint, first.status) == ("/client/config", 200)
    flags = first.answered
    assert flags["parallel_fwdbwd_chunks"]
    assert flags["pjwt_auth_enabled"] == conversation.client.key.startswith("sk-")
    assert {e.status for e in conversation.wire.to("/client/dynamic_config")} <= {200}


def test_rule_9_a_conflict_is_a_failed_future_and_every_refusal_has_a_text(
    conversation: Conversation,
) -> None:
    seen = conversation.saw("a_taken_name")
    assert "already exists" in seen["again"]
    assert "RequestFailedError" in seen["again"]
    assert seen["other"].endswith("/weights/free")
    assert "no/such-model" in conversation.saw("an_unknown_model")
    exchanges = conversation.wire.exchanges + conversation.lossy_wire.exchanges
    assert {e.status for e in exchanges} <= {200, 302, 400, 404, 408, 422}
    assert all(e.answered["detail"] for e in exchanges if e.status in (400, 404, 422))


def test_rule_10_telemetry_is_accepted(conversation: Conversation) -> None:
    reports = conversation.wire.to("/telemetry")
    assert reports
    assert all(e.answered == {"status": "accepted"} for e in reports)


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


def test_resuming_without_the_optimizer_resets_it(conversation: Conversation) -> None:
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
