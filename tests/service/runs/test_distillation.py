"""Reverse KL towards a checkpoint: inside and beside the numbered operations of a run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.service.runs.test_recovery import logprobs, train
from tests.service.samples import TOKENS, batch, json_datum
from tests.service_fixture import MODEL, LiveService, RawClient

ADAM = {"learning_rate": 0.01}


def distill_datum(**changes: Any) -> dict[str, Any]:
    chunks = {"chunks": [{"tokens": TOKENS[:-1], "type": "encoded_text"}]}
    n = len(TOKENS) - 1
    return {
        "student_input": chunks,
        "reference_input": chunks,
        "target_tokens": {"data": TOKENS[1:], "dtype": "int64", "shape": [n]},
        "weights": {"data": [1.0] * n, "dtype": "float32", "shape": [n]},
        **changes,
    }


def body(run: str, reference: str, seq_id: int | None, **changes: Any) -> dict[str, Any]:
    """The request as MinT's client sends it, with its nulls."""
    return {
        "model_id": run,
        "reference_model_path": reference,
        "data": [distill_datum(), distill_datum()],
        "temperature": 1.0,
        "seq_id": seq_id,
        "type": "mint_forward_backward_reverse_kl",
        **changes,
    }


def distill(raw: RawClient, request: dict[str, Any], key: str | None = None) -> str:
    headers = {} if key is None else {"x-idempotency-key": key}
    answer = raw.post("/mint/forward_backward_reverse_kl", request, headers=headers)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["request_id"])


def reference_of(raw: RawClient) -> str:
    run = raw.run(seed=7)
    following = train(raw, run, 1, 2)
    saving = raw.operate("save_weights_for_sampler", run, following, path="reference")
    return str(raw.result(saving)["path"])


def test_without_a_number_it_takes_no_number_of_the_client(raw: RawClient) -> None:
    reference, run = reference_of(raw), raw.run()
    first = raw.result(distill(raw, body(run, reference, None), "first"))
    assert first["type"] == "mint_forward_backward_reverse_kl"
    assert [output["loss"]["shape"] for output in first["outputs"]] == [[1], [1]]
    assert first["metrics"]["loss:sum"] == pytest.approx(
        sum(output["loss"]["data"][0] for output in first["outputs"])
    )
    adam = {"learning_rate": 0.001}
    step = raw.result(raw.operate("optim_step", run, 1, adam_params=adam))
    assert step["metrics"]["grad_norm"] > 0, "the client's next number is its own"
    again = raw.result(distill(raw, body(run, reference, 2)))
    assert again["metrics"]["loss:sum"] < first["metrics"]["loss:sum"]


def test_the_same_request_sent_again_is_done_once(raw: RawClient) -> None:
    reference, run = reference_of(raw), raw.run()
    request = body(run, reference, None)
    assert distill(raw, request, "key") == distill(raw, request, "key")
    assert distill(raw, request, "key") != distill(raw, request, "another")


def test_the_reverse_kl_to_itself_is_zero(raw: RawClient) -> None:
    run = raw.run()
    result = raw.result(distill(raw, body(run, MODEL, 1)))
    assert result["metrics"]["loss:sum"] == pytest.approx(0, abs=1e-5)


def test_a_replay_finds_its_reference_after_the_checkpoint_is_deleted(
    own_service: Callable[..., LiveService],
) -> None:
    service = own_service()
    raw = RawClient(service.base_url)
    reference = reference_of(raw)

    def distilled(run: str, interrupt: Callable[[], None]) -> object:
        raw.operate("forward_backward", run, 1, **batch(json_datum([5, 6, 7])))
        assert "outputs" in raw.result(distill(raw, body(run, reference, None)))
        interrupt()
        assert "metrics" in raw.result(raw.operate("optim_step", run, 2, adam_params=ADAM))
        return logprobs(raw, run, 3)

    def lose_everything() -> None:
        name = reference.removeprefix("tinker://").partition("/")
        assert raw.http.delete(f"/training_runs/{name[0]}/checkpoints/{name[2]}").status_code == 200
        [worker] = service.worker_pids()
        os.kill(worker, signal.SIGKILL)

    expected = distilled(raw.run(), lambda: None)
    np.testing.assert_array_equal(distilled(raw.run(), lose_everything), expected)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"reference_model_path": "tinker://a:train:0/weights/x"}, "There is no checkpoint"),
        ({"reference_model_path": "x"}, "checkpoint path"),
        ({"reference_model_path": None}, "reference_model_path"),
        ({"reference_model_path": 5}, "reference_model_path"),
        ({"temperature": 0}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"data": []}, "data"),
        ({"data": "x"}, "data"),
        ({"data": [5]}, r"data[0]"),
        ({"data": [distill_datum(student_input=None)]}, "student_input"),
        ({"data": [distill_datum(student_input={"chunks": [{"type": "image"}]})]}, "image"),
        (
            {"data": [distill_datum(target_tokens={"data": [1.5], "dtype": "int64"})]},
            "target_tokens",
        ),
        ({"data": [distill_datum(weights={"data": [1.0], "dtype": "float32"})]}, "weights"),
        ({"data": [distill_datum(weights={"data": [1.0], "dtype": {}})]}, "dtype"),
    ],
)
def test_a_mistake_is_named_and_leaves_no_gradient(
    raw: RawClient, changes: dict[str, Any], named: str
) -> None:
    run = raw.run()
    failure = raw.result(distill(raw, {**body(run, MODEL, 1), **changes}))
    assert failure["category"] == "user"
    assert named in failure["error"]
    assert "did nothing" in raw.result(raw.operate("optim_step", run, 2))["error"]
    train(raw, run, 3)
