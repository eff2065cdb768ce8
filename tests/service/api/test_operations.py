"""Operations over HTTP: order, repetition, damage and refusals beyond what real clients send.

``tests/conformance/test_clients.py`` tests the ten rules of the protocol, with every client.
"""

from __future__ import annotations

import httpx
import numpy as np
import pytest
import tinker
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tinker import types
from tinker.proto import request_conv, response_conv
from tinker.types.forward_backward_input import ForwardBackwardInput
from tinker.types.forward_backward_request import ForwardBackwardRequest

from tests.service.samples import batch, datum, forward, json_datum, prompt
from tests.service_fixture import MODEL, LiveService, RawClient

PROTOBUF = "application/x-protobuf"


@pytest.fixture(scope="module")
def client(live_service: object) -> tinker.ServiceClient:
    return tinker.ServiceClient(base_url=live_service.base_url, api_key="tml-test")  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def training(client: tinker.ServiceClient) -> tinker.TrainingClient:
    return client.create_lora_training_client(base_model=MODEL, rank=4, seed=1)


def protobuf(run: str, seq_id: int, data: list[types.Datum]) -> bytes:
    request = ForwardBackwardRequest(
        forward_backward_input=ForwardBackwardInput(data=data, loss_fn="cross_entropy"),
        model_id=run,
        seq_id=seq_id,
    )
    return bytes(request_conv.forward_backward_request_to_proto(request).SerializeToString())


def test_big_results_are_protobuf_and_small_ones_json(raw: RawClient) -> None:
    run = raw.run()
    trained = raw.retrieve(raw.operate("forward_backward", run, 1, **batch()))
    assert trained.headers["content-type"] == PROTOBUF
    stepped = raw.retrieve(raw.operate("optim_step", run, 2))
    assert stepped.headers["content-type"] == "application/json"
    assert "grad_norm" in stepped.json()["metrics"]


def test_a_batch_in_chunks_gives_the_gradient_of_the_whole(client: tinker.ServiceClient) -> None:
    data = [datum(seed, length=2) for seed in range(1500)]
    whole = client.create_lora_training_client(base_model=MODEL, rank=4, seed=1)
    result = whole.forward_backward(data, "cross_entropy").result()
    assert len(result.loss_fn_outputs) == 1500
    together = whole.optim_step(types.AdamParams()).result()
    parts = client.create_lora_training_client(base_model=MODEL, rank=4, seed=1)
    futures = [parts.forward_backward(data[i : i + 300], "cross_entropy") for i in (0, 300, 600)]
    futures.append(parts.forward_backward(data[900:], "cross_entropy"))
    step = parts.optim_step(types.AdamParams())
    losses = [future.result().metrics["loss:sum"] for future in futures]
    assert sum(losses) == pytest.approx(result.metrics["loss:sum"], rel=1e-4)
    assert (step.result().metrics or {})["grad_norm"] == pytest.approx(
        (together.metrics or {})["grad_norm"], rel=1e-3
    )


def test_a_number_ahead_is_accepted_and_held(raw: RawClient) -> None:
    run = raw.run()
    third = raw.operate("optim_step", run, 3)
    second = raw.operate("forward_backward", run, 2, **batch())
    first = raw.operate("forward_backward", run, 1, **batch())
    assert raw.retrieve(first).headers["content-type"] == PROTOBUF
    assert raw.retrieve(second).headers["content-type"] == PROTOBUF
    assert raw.result(third)["metrics"]["grad_norm"] > 0


def final_logprobs(raw: RawClient, arrivals: list[int], steps: list[dict[str, object]]) -> object:
    """Send the operations of a new run in the order of ``arrivals`` and read its logprobs."""
    run = raw.run()
    ids = {}
    for number in arrivals:
        kind, fields = next(iter(steps[number - 1].items()))
        request_id = raw.operate(kind, run, number, **fields)  # type: ignore[arg-type]
        assert ids.setdefault(number, request_id) == request_id
    last = raw.retrieve(raw.operate("forward", run, len(steps) + 1, **forward()))
    for request_id in ids.values():
        assert "error" not in raw.retrieve(request_id).text
    output = response_conv.deserialize_forward_backward_output(last.content)
    return output.loss_fn_outputs[0]["logprobs"].to_numpy()


@given(order=st.permutations(range(1, 6)), again=st.lists(st.integers(1, 5), max_size=3))
@settings(max_examples=8, deadline=None)
def test_any_order_and_any_repetition_train_the_same_adapter(
    live_service: object, order: list[int], again: list[int]
) -> None:
    raw = RawClient(live_service.base_url)  # type: ignore[attr-defined]
    steps: list[dict[str, object]] = [
        {"forward_backward": batch()},
        {"optim_step": {"adam_params": {"learning_rate": 0.01}}},
        {"forward_backward": batch(json_datum([1, 2, 3]))},
        {"forward_backward": batch(json_datum([9, 8, 7, 6], weight=2.0))},
        {"optim_step": {"adam_params": {"learning_rate": 0.02}}},
    ]
    expected = final_logprobs(raw, [1, 2, 3, 4, 5], steps)
    np.testing.assert_allclose(
        final_logprobs(raw, [*order, *again], steps), expected, rtol=1e-4, atol=1e-5
    )


def test_a_retried_ephemeral_save_makes_one_sampler(raw: RawClient) -> None:
    run = raw.run()
    first = raw.operate("save_weights_for_sampler", run, 1, sampling_session_seq_id=0)
    again = raw.operate("save_weights_for_sampler", run, 1, sampling_session_seq_id=1)
    assert first == again
    assert raw.result(again)["sampling_session_id"].endswith(":sample:0")


def test_a_retried_sample_is_the_same_request(raw: RawClient) -> None:
    session = raw.session()
    body = {"session_id": session, "sampling_session_seq_id": 0, "base_model": MODEL}
    sampler = raw.post("/create_sampling_session", body).json()["sampling_session_id"]
    sample = {
        "sampling_session_id": sampler,
        "seq_id": 3 * 10**9,
        "num_samples": 2,
        "prompt": {"chunks": [{"tokens": [1, 2], "type": "encoded_text"}]},
        "sampling_params": {"max_tokens": 3},
    }
    answers = [raw.post("/asample", sample).json() for _ in range(2)]
    assert answers[0] == answers[1]
    assert len(answers[0]["sample_sequence_ids"]) == 2
    contents = {raw.retrieve(answers[0]["request_id"]).content for _ in range(2)}
    assert len(contents) == 1, "retrieving twice gives the same samples"


@pytest.mark.parametrize(
    ("content_type", "ending"),
    [("application/json", b'{"model_id":"%s","seq_id":1,"forward_backward_input":"?"}')],
)
def test_a_refused_operation_uses_up_its_number(
    raw: RawClient, content_type: str, ending: bytes
) -> None:
    run = raw.run()
    headers = {"content-type": content_type}
    answer = raw.http.post("/forward_backward", content=ending % run.encode(), headers=headers)
    assert answer.status_code == 200
    assert raw.result(answer.json()["request_id"])["category"] == "user"
    assert "did nothing" in raw.result(raw.operate("optim_step", run, 2))["error"]
    raw.operate("forward_backward", run, 3, **batch())
    assert raw.result(raw.operate("optim_step", run, 4))["metrics"]["grad_norm"] > 0


def test_a_damaged_protobuf_uses_up_its_number(raw: RawClient) -> None:
    run = raw.run()
    headers = {"content-type": PROTOBUF}
    damaged = protobuf(run, 1, [datum()])[:-3]
    answer = raw.http.post("/forward_backward", content=damaged, headers=headers)
    assert "not a valid" in raw.result(answer.json()["request_id"])["error"]
    assert raw.retrieve(raw.operate("forward", run, 2, **forward())).status_code == 200


def test_a_zstd_body_that_lost_its_last_fields_is_refused(raw: RawClient) -> None:
    run = raw.run()
    without_forward_only = protobuf(run, 1, [datum()])
    packer = zstandard.ZstdCompressor().compressobj()
    cut = packer.compress(without_forward_only)
    cut += packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    headers = {"content-type": PROTOBUF, "content-encoding": "zstd"}
    answer = raw.http.post("/forward_backward", content=cut, headers=headers)
    assert b"complete frame" in raw.retrieve(answer.json()["request_id"]).content


def test_a_wrong_field_of_an_optim_step_comes_through_its_future(raw: RawClient) -> None:
    run = raw.run()
    request_id = raw.operate("optim_step", run, 1, adam_params={"learning_rate": "fast"})
    assert "adam_params.learning_rate" in raw.result(request_id)["error"]
    assert "metrics" in raw.result(raw.operate("optim_step", run, 2))


def test_a_pending_result_is_408_and_says_why(other_service: LiveService) -> None:
    raw = RawClient(other_service.base_url)
    run = raw.run()
    waiting = raw.operate("optim_step", run, 2)
    answer = raw.post("/retrieve_future", {"request_id": waiting})
    assert answer.status_code == 408
    assert answer.json()["type"] == "try_again"
    assert "operation 1" in answer.json()["queue_state_reason"]
    raw.operate("optim_step", run, 1)
    assert "metrics" in raw.result(waiting)


def test_a_custom_loss_of_the_client_trains(training: tinker.TrainingClient) -> None:
    def loss(data: object, logprobs: list[object]) -> tuple[object, dict[str, float]]:
        return -sum(lp.sum() for lp in logprobs), {"custom": 1.0}  # type: ignore[attr-defined]

    data = [
        types.Datum(
            model_input=prompt([1, 2, 3]),
            loss_fn_inputs={"target_tokens": [2, 3, 4]},
        )
    ]
    result = training.forward_backward_custom(data, loss).result()  # type: ignore[arg-type]
    assert result.metrics["custom"] == 1.0
    assert (training.optim_step(types.AdamParams()).result().metrics or {})["grad_norm"] > 0


def test_a_taken_name_is_a_failed_future(raw: RawClient) -> None:
    run = raw.run()
    assert raw.result(raw.operate("save_weights", run, 1, path="a"))["path"].endswith("/weights/a")
    failure = raw.result(raw.operate("save_weights", run, 2, path="a"))
    assert failure["category"] == "user"
    assert "overwrite=True" in failure["error"]
    again = raw.result(raw.operate("save_weights", run, 3, path="a", overwrite=True))
    assert again["path"].endswith("/weights/a")


def test_refusals_have_a_text(raw: RawClient) -> None:
    for answer in (
        raw.http.post("/forward_backward", content=b""),
        raw.post("/optim_step", {"model_id": "nobody:train:0", "seq_id": 1}),
        raw.post("/create_model", {}),
        raw.post("/retrieve_future", {"request_id": "?"}),
        raw.post("/asample", {"prompt": {"chunks": []}, "num_samples": 0}),
    ):
        assert answer.status_code in (400, 404, 422)
        assert len(answer.json()["detail"]) > 20


def test_zstd_bodies_are_opened_and_bombs_are_not(other_service: LiveService) -> None:
    raw = RawClient(other_service.base_url)
    run = raw.run()

    def send(body: bytes) -> httpx.Response:
        packed = zstandard.ZstdCompressor(write_content_size=False).compress(body)
        headers = {"content-type": PROTOBUF, "content-encoding": "zstd"}
        return raw.http.post("/forward_backward", content=packed, headers=headers)

    good = send(protobuf(run, 1, [datum()]))
    assert raw.retrieve(good.json()["request_id"]).headers["content-type"] == PROTOBUF
    bomb = send(protobuf(run, 2, []) + b"\x22" + b"\x80\x80\x80\x01" + bytes(2_097_152))
    assert "more than 1000000 bytes" in raw.result(bomb.json()["request_id"])["error"]
    assert raw.http.post("/forward_backward", content=bytes(1_000_001)).status_code == 413
