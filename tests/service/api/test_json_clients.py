"""Requests as SDK 0.22 (and MinT on top of it) sends them: JSON bodies, `/forward`, tokens."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
from tinker.proto import response_conv

from tests.service.samples import batch, forward, json_datum
from tests.service_fixture import MODEL, RawClient


def sampler_of(raw: RawClient) -> str:
    body = {"session_id": raw.session(), "sampling_session_seq_id": 0, "base_model": MODEL}
    return str(raw.post("/create_sampling_session", body).json()["sampling_session_id"])


def sample(raw: RawClient, sampler: str, seq_id: int, **fields: object) -> object:
    body = {
        "sampling_session_id": sampler,
        "seq_id": seq_id,
        "num_samples": 1,
        "prompt": {"chunks": [{"tokens": [72, 101], "type": "encoded_text"}]},
        "sampling_params": {"max_tokens": 8, "temperature": 0, **fields},
        "type": "sample",
    }
    answer = raw.post("/asample", body)
    assert answer.status_code == 200, answer.text
    content = raw.retrieve(answer.json()["request_id"]).content
    return response_conv.deserialize_sample_response(content).sequences[0]


def test_a_training_step_in_json(raw: RawClient) -> None:
    run = raw.run()
    inputs = {
        "target_tokens": {"data": [2, 3], "dtype": "int64"},
        "logprobs": {"data": [-1.0, -1.0], "dtype": "float32"},
        "advantages": {"data": [1.0, -1.0], "dtype": "float32"},
    }
    chunks = [{"tokens": [1, 2], "type": "encoded_text"}]
    datum = {"model_input": {"chunks": chunks}, "loss_fn_inputs": inputs}
    trained = raw.retrieve(
        raw.operate("forward_backward", run, 1, **batch(datum, loss_fn="importance_sampling"))
    )
    output = response_conv.deserialize_forward_backward_output(trained.content)
    [found] = output.loss_fn_outputs
    assert found["logprobs"].shape == [2]
    assert sum(found["elementwise_loss"].data) == pytest.approx(output.metrics["loss:sum"])
    assert raw.result(raw.operate("optim_step", run, 2))["metrics"]["grad_norm"] > 0


def test_forward_gives_logprobs_and_no_gradient(raw: RawClient) -> None:
    run = raw.run()
    raw.operate("forward", run, 1, **forward())
    stepped = raw.result(raw.operate("optim_step", run, 2))
    assert stepped["metrics"]["grad_norm"] == 0


def test_a_failed_forward_does_not_void_a_gradient(raw: RawClient) -> None:
    run = raw.run()
    failed = raw.operate("forward", run, 1, forward_input={"data": [], "loss_fn": "cross_entropy"})
    assert "error" in raw.result(failed)
    assert "metrics" in raw.result(raw.operate("optim_step", run, 2))


def test_sparse_targets_equal_dense_ones(raw: RawClient) -> None:
    run = raw.run()
    datum = json_datum([1, 2, 3])

    def with_inputs(sparse: bool) -> dict[str, object]:
        values = {"target_tokens": ([5, 7], "int64"), "weights": ([1.0, 0.5], "float32")}
        inputs = {}
        for name, (data, dtype) in values.items():
            inputs[name] = {"data": [*data, 0, 0], "dtype": dtype, "shape": [2, 2]}
            if sparse:
                inputs[name] = {
                    "data": data,
                    "dtype": dtype,
                    "shape": [2, 2],
                    "sparse_crow_indices": [0, 2, 2],
                    "sparse_col_indices": [0, 1],
                }
        return {**datum, "loss_fn_inputs": inputs}

    results = [
        response_conv.deserialize_forward_backward_output(
            raw.retrieve(raw.operate("forward", run, n, **forward(with_inputs(n == 2)))).content
        )
        for n in (1, 2)
    ]
    arrays = [r.loss_fn_outputs[0]["logprobs"].to_numpy() for r in results]
    assert arrays[0].shape == (2, 2)
    np.testing.assert_array_equal(arrays[0], arrays[1])


def test_operations_without_a_number_run_in_turn_and_use_up_none(raw: RawClient) -> None:
    run = raw.run()
    ids = [raw.operate("optim_step", run, None) for _ in range(3)]
    assert len(set(ids)) == 3
    numbered = raw.operate("optim_step", run, 1)
    assert all("metrics" in raw.result(request_id) for request_id in (*ids, numbered))


def test_greedy_means_greedy_and_stops_are_understood(raw: RawClient) -> None:
    sampler = sampler_of(raw)
    greedy = sample(raw, sampler, 0, stop=[])
    assert sample(raw, sampler, 1, stop=[]).tokens == greedy.tokens
    assert len(greedy.tokens) == 8
    third = greedy.tokens[2]
    first_at = greedy.tokens.index(third)
    for number, stop in enumerate(([third],), 2):
        stopped = sample(raw, sampler, number, stop=stop)
        assert stopped.tokens == greedy.tokens[: first_at + 1]
        assert stopped.stop_reason == "stop"
    assert sample(raw, sampler, 9, stop_token_ids=[third]).tokens == stopped.tokens


def test_a_bare_string_stop_is_one_stop(raw: RawClient) -> None:
    sampler = sampler_of(raw)
    letters = sample(raw, sampler, 0, stop=[]).tokens
    text = "".join(chr(token) if 32 <= token < 127 else "?" for token in letters)
    never = sample(raw, sampler, 1, stop="never" + text)
    assert never.tokens == sample(raw, sampler, 2).tokens


def test_nulls_and_unknown_fields_are_tolerated(raw: RawClient) -> None:
    session = raw.post(
        "/create_session",
        {"tags": [], "user_metadata": None, "sdk_version": "9", "project_id": None, "news": 1},
    )
    assert session.status_code == 200
    run = raw.run(session.json()["session_id"], seed=None, train_mlp=None, invented=True)
    step = raw.operate("optim_step", run, 1, adam_params=None, optimizer_params=None, later="x")
    assert "metrics" in raw.result(step)


def test_adamw_may_be_named_as_other_optimizers_are(raw: RawClient) -> None:
    params = {"type": "adamw", "learning_rate": 0.25}
    step = raw.operate("optim_step", raw.run(), 1, optimizer_params=params)
    assert raw.result(step)["metrics"]["learning_rate"] == 0.25


def test_what_is_known_but_not_supported_is_refused_by_name(raw: RawClient) -> None:
    sampler = sampler_of(raw)
    body = {"sampling_session_id": sampler, "prompt": {"chunks": [{"tokens": [1]}]}}
    answer = raw.post("/asample", {**body, "record_stability_info": True})
    assert answer.status_code == 400
    assert "record_stability_info" in answer.json()["detail"]
    run = raw.run()
    dimuon = raw.operate("optim_step", run, 1, optimizer_params={"type": "dimuon"})
    assert "dimuon" in raw.result(dimuon)["error"]
    model = {"session_id": raw.session(), "model_seq_id": 0, "base_model": MODEL}
    refused = raw.post(
        "/create_model",
        {**model, "lora_config": {"rank": 1}, "optimizer_config": {"type": "dimuon"}},
    )
    assert "dimuon" in refused.json()["detail"]


def test_the_tokenizer_of_a_model_can_be_fetched(raw: RawClient) -> None:
    answer = raw.http.get(f"/mint/tokenizers/{MODEL}")
    assert answer.headers["content-type"] == "application/gzip"
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        names = archive.getnames()
    assert {"tokenizer.json", "tokenizer_config.json", "config.json"} <= set(names)
    unknown = raw.http.get("/mint/tokenizers/no/model")
    assert unknown.status_code == 404
    assert "no/model" in unknown.json()["detail"]


def test_sk_keys_are_exchanged_for_a_token(service: str) -> None:
    raw = RawClient(service, key="sk-minty")
    assert raw.post("/client/config").json()["pjwt_auth_enabled"] is True
    token = raw.post("/auth/token").json()["jwt"]
    assert RawClient(service, key=token).post("/create_session", {}).status_code == 200
    tampered = RawClient(service, key=token[:-4] + "AAAA")
    assert tampered.post("/create_session", {}).status_code == 401


def test_a_client_of_an_unloaded_run_gets_an_error_that_says_what_to_do(raw: RawClient) -> None:
    run = raw.run()
    raw.operate("forward_backward", run, 1, **batch())
    raw.result(raw.operate("optim_step", run, 2))
    saved = raw.result(raw.operate("save_weights", run, 3, path="kept"))["path"]
    for _ in range(2):  # the second is a retry
        unloaded = raw.result(raw.post("/unload_model", {"model_id": run}).json()["request_id"])
        assert unloaded == {"model_id": run, "type": "unload_model"}
    refused = raw.post("/forward", {"model_id": run, "seq_id": 4, **forward()})
    assert refused.status_code == 404
    assert "was unloaded with unload_model" in refused.text
    assert "create_training_client_from_state_with_optimizer()" in refused.text
    assert raw.post("/weights_info", {"tinker_path": saved}).status_code == 200
