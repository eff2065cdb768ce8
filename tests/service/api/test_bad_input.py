"""Whatever a request holds, the answer is a clear refusal: never a 5xx, never a hang."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.service_fixture import MODEL, LiveService, RawClient

JUNK = [None, [], {}, "text", 5, -1, 2**70, 1e400, True, {"a": None}, [[]], "x" * 10_000, "\0"]
JUNK += ["\ud800", {"\udfff": "\ud800"}]  # half of a surrogate pair has no UTF-8
FIELDS = [
    "session_id",
    "model_id",
    "model_seq_id",
    "base_model",
    "lora_config",
    "optimizer_config",
    "user_metadata",
    "path",
    "optimizer",
    "ttl_seconds",
    "overwrite",
    "sampling_session_seq_id",
    "sampling_session_id",
    "num_samples",
    "prompt",
    "sampling_params",
    "prompt_logprobs",
    "topk_prompt_logprobs",
    "request_id",
    "tinker_path",
    "tags",
    "adam_params",
    "forward_backward_input",
    "forward_input",
    "reason",
    "detail",
    "model_path",
    "age_encryption_recipients",
    "source_path",
    "source_paths",
    "coefficients",
    "output_path",
    "destination_project_id",
    "weights_access_token",
    "reference_model_path",
    "data",
    "temperature",
    "target",
    "prev_cursor",
    "timeout",
    "retrieved_request_ids",
    "topk_sample_logprobs",
    "prompt_alt_tokens_k",
    "prompt_logprobs_last_n",
    "target_prompt_logprobs",
    "display_name",
    "project_ids",
    "owner",
    "statuses",
    "limit",
    "cursor",
]


def routes(raw: RawClient) -> list[tuple[str, str]]:
    schema = raw.http.get(f"{raw.base_url}/openapi.json").json()
    return [
        (method, path.removeprefix("/api/v1"))
        for path, methods in schema["paths"].items()
        for method in methods
    ]


def test_every_route_refuses_junk_with_a_text(raw: RawClient) -> None:
    for method, path in routes(raw):
        for junk in JUNK:
            url = path.replace("{", "").replace("}", "")
            body = json.dumps(junk).encode() if method in ("post", "put") else None
            headers = {"content-type": "application/json"}
            answer = raw.http.request(method, url, content=body, headers=headers)
            assert answer.status_code < 500, (method, path, junk, answer.text)
            if answer.status_code >= 400:
                assert answer.json()["detail"], (method, path, junk)


@given(
    fields=st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(JUNK), max_size=4),
    path=st.sampled_from(
        [
            "create_session",
            "create_model",
            "optim_step",
            "forward",
            "forward_backward",
            "save_weights",
            "asample",
            "save_weights_for_sampler",
            "load_weights",
            "create_sampling_session",
            "weights_info",
            "get_info",
            "save_weights_external",
            "copy_weights",
            "mint/checkpoints/interpolate",
            "mint/forward_backward_reverse_kl",
            "retrieve_futures",
            "cancel_future",
            "join_sampling_session",
            "sessions/search",
        ]
    ),
)
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_good_request_with_junk_in_some_fields(
    live_service: LiveService, shared: dict[str, str], fields: dict[str, Any], path: str
) -> None:
    raw = RawClient(live_service.base_url)
    good = {
        "session_id": shared["session"],
        "model_id": shared["run"],
        "sampling_session_seq_id": 10**6,
        "model_seq_id": 10**6,
        "base_model": MODEL,
        "tinker_path": "tinker://a:train:0/weights/x",
        "lora_config": {"rank": 0},
        "sampling_session_id": shared["sampler"],
        "prompt": {"chunks": [{"tokens": [1]}]},
        "sampling_params": {"max_tokens": 1},
        "path": "good",
        "source_path": shared["path"],
        "source_paths": [shared["path"]],
        "coefficients": [1.0],
        "reference_model_path": MODEL,
        "data": [],
        "target": {"sampling_session_id": shared["sampler"]},
        "timeout": 0,
    }
    content = json.dumps({**good, **fields}).encode()
    answer = raw.http.post(
        f"/{path}", content=content, headers={"content-type": "application/json"}
    )
    assert answer.status_code < 500, answer.text
    if answer.status_code == 200 and "request_id" in answer.json():
        assert raw.retrieve(answer.json()["request_id"]).status_code == 200


@pytest.mark.parametrize("query", ["limit", "offset", "access_scope", "project_id"])
def test_a_list_asked_for_with_junk(raw: RawClient, query: str) -> None:
    for path in ("/training_runs", "/sessions", "/checkpoints", "/training_runs/x:train:0"):
        for junk in ("", "-1", "1e400", str(2**70), "x" * 10_000, "\0", "ü", "true"):
            answer = raw.http.get(path, params={query: junk})
            assert answer.status_code < 500, (path, query, junk)
            if answer.status_code == 422:
                assert query in answer.json()["detail"]


def test_a_version_of_any_length_is_read(raw: RawClient) -> None:
    headers = {"x-stainless-package-version": "9" * 5000 + ".1.1"}
    answer = raw.post("/client/config", headers=headers)
    assert answer.json()["use_pyqwest_transport"] is True


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("mint/checkpoints/prune", {"older_than_s": 1e20}),
        ("sessions/search", {"cursor": "0001-01-01T00:00:00+14:00"}),
        ("sessions/search", {"cursor": "9999-12-31T23:59:59-14:00"}),
    ],
)
def test_a_time_that_no_calendar_has_is_refused(
    raw: RawClient, path: str, body: dict[str, Any]
) -> None:
    if "cursor" in body:
        body = {"cursor": {"last_created_at": body["cursor"], "last_session_id": "x"}}
    answer = raw.post(f"/{path}", body)
    assert answer.status_code == 422, answer.text


@pytest.mark.parametrize(
    "checkpoint",
    ["weights/x", "weights", "x/y", "weights/../x", "weights/" + "x" * 9000, "weights/%00"],
)
def test_an_impossible_checkpoint_is_refused(raw: RawClient, checkpoint: str) -> None:
    for run in (raw.run(), "x", "%2e%2e"):
        one = f"/training_runs/{run}/checkpoints/{checkpoint}"
        for answer in (
            raw.http.get(f"{one}/archive"),
            raw.http.get(f"{one}/external_weights_urls"),
            raw.http.post(f"{one}/publish"),
            raw.http.delete(f"{one}/publish"),
            raw.http.put(f"{one}/ttl", json={"ttl_seconds": None}),
            raw.http.delete(one),
        ):
            assert 400 <= answer.status_code < 500, answer.request.url
            assert answer.json()["detail"]


@pytest.mark.parametrize("seq_id", [-1, 0, 2**70, "1", True, 1.5, [1]])
def test_an_invalid_number_is_refused(raw: RawClient, seq_id: object) -> None:
    run = raw.run()
    answer = raw.post("/optim_step", {"model_id": run, "seq_id": seq_id})
    assert answer.status_code == 400
    assert "seq_id" in answer.json()["detail"]
    assert "metrics" in raw.result(raw.operate("optim_step", run, 1))


BAD_NUMBERS = [float("nan"), float("inf"), float("-inf"), 1e400]


@pytest.mark.parametrize("value", BAD_NUMBERS)
@pytest.mark.parametrize("field", ["temperature", "top_p"])
def test_a_sampling_parameter_that_is_not_a_number_is_refused_at_once(
    raw: RawClient, shared: dict[str, str], field: str, value: float
) -> None:
    answer = post_sample(raw, shared, {field: value})
    assert answer.status_code == 422
    assert field in answer.json()["detail"]


def test_half_a_character_in_a_stop_string_is_refused_at_once(
    raw: RawClient, shared: dict[str, str]
) -> None:
    for stop in ("\ud800", ["fine", "\udfff"]):
        answer = post_sample(raw, shared, {"stop": stop})
        assert answer.status_code == 400
        assert "ud800 alone is half of one" in answer.json()["detail"]


@pytest.mark.parametrize("stop", ["", [""], ["a", ""]])
def test_an_empty_stop_string_is_refused(
    raw: RawClient, shared: dict[str, str], stop: str | list[str]
) -> None:
    """Every text contains it, so that each sample ended after one token."""
    answer = post_sample(raw, shared, {"stop": stop, "max_tokens": 3})
    assert "stop has an empty string" in answer.json()["detail"]


@pytest.mark.parametrize("top_k", [0, 272, 10**6, 2**31, 2**63, 2**70])
def test_a_top_k_beyond_the_vocabulary_leaves_nothing_out(
    raw: RawClient, shared: dict[str, str], top_k: int
) -> None:
    def sample(k: int) -> bytes:
        answer = post_sample(raw, shared, {"max_tokens": 5, "seed": 3, "top_k": k})
        assert answer.status_code == 200, answer.text
        return raw.retrieve(answer.json()["request_id"]).content

    assert sample(top_k) == sample(-1)


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-38, 1e-6])
def test_a_temperature_close_to_zero_is_greedy(
    raw: RawClient, shared: dict[str, str], temperature: float
) -> None:
    def sample(heat: float) -> bytes:
        answer = post_sample(raw, shared, {"max_tokens": 5, "temperature": heat})
        return raw.retrieve(answer.json()["request_id"]).content

    assert sample(temperature) == sample(0)


def test_a_top_k_below_minus_one_is_refused(raw: RawClient, shared: dict[str, str]) -> None:
    answer = post_sample(raw, shared, {"top_k": -2})
    assert answer.status_code == 422
    assert "top_k" in answer.json()["detail"]


def post_sample(raw: RawClient, shared: dict[str, str], params: dict[str, Any]) -> httpx.Response:
    """Ask for one sample; NaN, infinity and half characters go out as Python writes them."""
    body = {
        "sampling_session_id": shared["sampler"],
        "prompt": {"chunks": [{"tokens": [1]}]},
        "sampling_params": {"max_tokens": 1, **params},
    }
    headers = {"content-type": "application/json"}
    return raw.http.post("/asample", content=json.dumps(body).encode(), headers=headers)


@pytest.fixture(scope="module")
def shared(live_service: LiveService) -> dict[str, str]:
    raw = RawClient(live_service.base_url)
    session = raw.session()
    body = {"session_id": session, "sampling_session_seq_id": 0, "base_model": MODEL}
    sampler = raw.post("/create_sampling_session", body).json()["sampling_session_id"]
    run = raw.run(session)
    path = raw.result(raw.operate("save_weights", run, 1, path="shared"))["path"]
    return {"session": session, "run": run, "sampler": sampler, "path": path}
