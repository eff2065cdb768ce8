"""The ten rules that break a naive server, one by one, in what real clients sent and saw."""

from __future__ import annotations

from collections import Counter

import pytest

from mint.service.wire.bodies import read_address
from mint.service.wire.codec import PROTOBUF

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
