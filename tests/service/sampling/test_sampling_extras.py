"""Options of samples besides tokens, with the SDK; and samples whose client has gone."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import tinker
import torch
from tinker import types

import mint
from mint.engine.messages import MAX_SAMPLES
from tests.service.samples import TOKENS, prompt
from tests.service_fixture import MODEL, LiveService, RawClient

ONE = types.SamplingParams(max_tokens=1, temperature=0)


@pytest.fixture(scope="module")
def client(live_service: LiveService) -> tinker.ServiceClient:
    return tinker.ServiceClient(base_url=live_service.base_url, api_key="tml-test")


@pytest.fixture(scope="module")
def sampler(client: tinker.ServiceClient) -> tinker.SamplingClient:
    return client.create_sampling_client(base_model=MODEL)


def test_the_most_likely_tokens_of_each_sampled_one(sampler: tinker.SamplingClient) -> None:
    params = types.SamplingParams(max_tokens=4, temperature=0)
    [sequence] = sampler.sample(prompt(), 1, params, topk_sample_logprobs=3).result().sequences
    topk = sequence.topk_logprobs
    assert topk is not None
    rows = list(topk)
    assert len(rows) == len(sequence.tokens)
    assert [row[0][0] for row in rows] == sequence.tokens, "greedy takes the most likely"


def test_the_most_likely_tokens_of_the_prompt_come_with_its_own_logprobs(
    sampler: tinker.SamplingClient,
) -> None:
    params = types.SamplingParams(max_tokens=1)
    answer = sampler.sample(prompt(), 1, params, topk_prompt_logprobs=2).result()
    assert answer.topk_prompt_logprobs is not None
    assert answer.prompt_logprobs is not None
    assert len(answer.prompt_logprobs) == len(answer.topk_prompt_logprobs)


def test_only_the_end_of_the_prompt_is_scored(sampler: tinker.SamplingClient) -> None:
    whole = sampler.compute_logprobs(prompt()).result()
    result = sampler.sample(
        prompt(), 1, ONE, include_prompt_logprobs=True, prompt_logprobs_last_n=2
    ).result()
    assert result.prompt_logprobs is not None
    assert result.prompt_logprobs[:-2] == [None] * (len(TOKENS) - 2)
    np.testing.assert_allclose(
        np.array(result.prompt_logprobs[-2:], float), np.array(whole[-2:], float), atol=1e-5
    )


@pytest.mark.parametrize("is_sparse", [False, True])
def test_chosen_tokens_are_scored_in_the_layout_they_were_asked_in(
    sampler: tinker.SamplingClient, is_sparse: bool
) -> None:
    whole = sampler.compute_logprobs(prompt()).result()
    n = len(TOKENS) - 1
    wanted = torch.full((n, 3), -1)
    wanted[:, 1] = torch.tensor(TOKENS[1:])
    wanted[2, 1] = -1
    target: dict[str, Any] = {"data": wanted.flatten().tolist(), "dtype": "int64", "shape": [n, 3]}
    if is_sparse:
        listed = [i for i in range(n) if i != 2]
        crow = np.cumsum([0, *(int(i != 2) for i in range(n))]).tolist()
        target |= {"data": [TOKENS[1 + i] for i in listed], "sparse_crow_indices": crow}
        target["sparse_col_indices"] = [1] * len(listed)
    result = sampler.sample(
        prompt(), 1, ONE, target_prompt_logprobs=types.TensorData(**target)
    ).result()
    scored = result.target_prompt_logprobs
    assert scored is not None
    assert scored.shape == [n, 3]
    assert (scored.sparse_crow_indices is not None) == is_sparse
    dense = np.zeros((n, 3))
    if is_sparse:
        dense[listed, 1] = scored.data
    else:
        dense = np.array(scored.data).reshape(n, 3)
    expected = np.zeros((n, 3))
    expected[:, 1] = np.array(whole[1:], float)
    expected[2, 1] = 0
    np.testing.assert_allclose(dense, expected, atol=1e-5)


def test_other_tokens_are_drawn_for_each_of_the_prompt(sampler: tinker.SamplingClient) -> None:
    result = sampler.sample(prompt(), 1, ONE, prompt_alt_tokens_k=2).result()
    assert result.prompt_alt_tokens is not None
    assert result.prompt_alt_tokens.tokens.shape == [len(TOKENS) - 1, 2]
    assert result.prompt_alt_tokens.logprobs.dtype == "float32"
    assert max(result.prompt_alt_tokens.logprobs.data) <= 0


@pytest.fixture(scope="module")
def raw_sampler(live_service: LiveService) -> dict[str, Any]:
    raw = RawClient(live_service.base_url)
    body = {"session_id": raw.session(), "sampling_session_seq_id": 0, "base_model": MODEL}
    sampler = raw.post("/create_sampling_session", body).json()["sampling_session_id"]
    chunks = {"chunks": [{"tokens": TOKENS}]}
    return {"sampling_session_id": sampler, "prompt": chunks, "sampling_params": {"max_tokens": 1}}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_samples": 0}, "num_samples"),
        ({"num_samples": MAX_SAMPLES + 1}, str(MAX_SAMPLES)),
        ({"num_samples": 2**70}, "num_samples"),
        ({"topk_sample_logprobs": -1}, "topk_sample_logprobs"),
        ({"topk_sample_logprobs": 10**6}, "topk_sample_logprobs"),
        ({"topk_sample_logprobs": 2**70}, "topk_sample_logprobs"),
        ({"prompt_alt_tokens_k": -1}, "prompt_alt_tokens_k"),
        ({"prompt_alt_tokens_k": 10**6}, "prompt_alt_tokens_k"),
        ({"prompt_logprobs_last_n": 2}, "prompt_logprobs_last_n"),
        ({"prompt_logprobs_last_n": 0, "prompt_logprobs": True}, "prompt_logprobs_last_n"),
        ({"prompt_logprobs_last_n": 99, "prompt_logprobs": True}, "prompt_logprobs_last_n"),
        ({"record_stability_info": True}, "record_stability_info"),
        ({"target_prompt_logprobs": []}, "target_prompt_logprobs"),
        ({"target_prompt_logprobs": {}}, "target_prompt_logprobs"),
        ({"target_prompt_logprobs": {"data": [1], "dtype": "int64"}}, "target_prompt_logprobs"),
        (
            {"target_prompt_logprobs": {"data": [1] * 5, "dtype": "float32", "shape": [5, 1]}},
            "target_prompt_logprobs",
        ),
        (
            {"target_prompt_logprobs": {"data": [9**9] * 5, "dtype": "int64", "shape": [5, 1]}},
            "target_prompt_logprobs",
        ),
        (
            {
                "target_prompt_logprobs": {
                    "data": [],
                    "dtype": "int64",
                    "shape": [5, 2**60],
                    "sparse_crow_indices": [0] * 6,
                    "sparse_col_indices": [],
                }
            },
            "target_prompt_logprobs",
        ),
    ],
)
def test_a_question_that_cannot_be_answered_is_named(
    raw: RawClient, raw_sampler: dict[str, Any], fields: dict[str, Any], named: str
) -> None:
    answer = raw.post("/asample", {**raw_sampler, **fields})
    if answer.status_code == 200:
        failure = raw.result(answer.json()["request_id"])
        assert failure["category"] == "user"
        assert named in failure["error"]
    else:
        assert answer.status_code in (400, 422)
        assert named in answer.json()["detail"]


# ---- many samples, and none ----------------------------------------------------------------------


def test_one_poll_returns_all_finished_samples(raw: RawClient, raw_sampler: dict[str, Any]) -> None:
    submitted = [
        raw.post("/asample", {**raw_sampler, "seq_id": n}).json()["request_id"]
        for n in (100, 101, 5 * 10**9)
    ]
    bad = raw.post("/asample", {**raw_sampler, "seq_id": 102, "prompt": {"chunks": []}})
    submitted.append(bad.json()["request_id"])
    target = {"type": "sampling_session", "sampling_session_id": raw_sampler["sampling_session_id"]}
    cursor, done = 0, {}
    while len(done) < 3:
        poll = raw.post("/retrieve_futures", {"target": target, "prev_cursor": cursor}).json()
        cursor = poll["cursor"]
        done |= {c["request_id"]: c for c in poll["completions"] if c["request_id"] in submitted}
    assert {identifier: c["state"] for identifier, c in done.items()} == {
        submitted[0]: "finished",
        submitted[1]: "finished",
        submitted[3]: "failed",
    }
    size = done[submitted[0]]["response_payload_uncompressed_size"]
    assert size == len(raw.retrieve(submitted[0]).content)
    body = {"target": target, "prev_cursor": cursor, "timeout": 0}
    body["retrieved_request_ids"] = submitted[:1]
    assert raw.post("/retrieve_futures", body).json() == {"completions": [], "cursor": cursor}
    assert raw.post("/retrieve_future", {"request_id": submitted[0]}).status_code == 410
    clone = {**target, "cloned_sampler_id": 5}
    poll = raw.post("/retrieve_futures", {"target": clone}).json()
    assert [c["request_id"] for c in poll["completions"]] == [submitted[2]]


def test_the_newest_client_can_wait_for_all_samples_at_once(live_service: LiveService) -> None:
    client = tinker.ServiceClient(base_url=live_service.base_url, api_key="tml-test")
    flags = {"sample_use_retrieve_futures": True}
    client.holder._client_config = client.holder._client_config.model_copy(update=flags)
    sampler = client.create_sampling_client(base_model=MODEL)
    futures = [sampler.sample(prompt(), 1, ONE) for _ in range(5)]
    assert all(len(future.result().sequences) == 1 for future in futures)


def test_a_cancelled_sample_stops(raw: RawClient, raw_sampler: dict[str, Any]) -> None:
    long = {"max_tokens": 240, "stop": []}
    body = {**raw_sampler, "seq_id": 200, "num_samples": 64, "sampling_params": long}
    request_id = raw.post("/asample", body).json()["request_id"]
    cancelled = raw.post("/cancel_future", {"request_id": request_id}).json()["cancelled"]
    answer = raw.retrieve(request_id)
    if cancelled:
        assert "cancelled" in answer.json()["error"]
    assert raw.post("/cancel_future", {"request_id": request_id}).json()["cancelled"] is False
    assert raw.post("/cancel_future", {"request_id": "no:sample:1:1"}).status_code == 404


def test_a_copied_client_samples_under_numbers_of_its_own(sampler: tinker.SamplingClient) -> None:
    copy = pickle.loads(pickle.dumps(sampler))
    assert len(copy.sample(prompt(), 1, ONE).result().sequences) == 1
    assert copy._request_id_counter > 10**9


def test_filters_and_renormalized_logprobs_reach_the_sampler(live_service: LiveService) -> None:
    ours = mint.ServiceClient(base_url=live_service.base_url, api_key="tml-test")
    sampler = ours.create_sampling_client(base_model=MODEL)
    params = mint.types.SamplingParams(
        max_tokens=4, top_k=20, top_p=0.8, min_p=0.1, renormalize=True, seed=1, temperature=0.7
    )
    [sequence] = sampler.sample(prompt(), 1, params, topk_sample_logprobs=20).result().sequences
    found = sequence.topk_logprobs_np
    assert found is not None
    kept = np.isfinite(found.logprobs)
    np.testing.assert_allclose(np.exp(found.logprobs).sum(1), 1.0, rtol=1e-4)
    assert (kept.sum(1) < 20).all()
    share = np.exp(found.logprobs - found.logprobs.max(1, keepdims=True))
    assert (share[kept] >= 0.0999).all()
    for token, logprob, ids, logprobs in zip(
        sequence.tokens, sequence.logprobs or [], found.token_ids, found.logprobs, strict=True
    ):
        assert logprob == pytest.approx(logprobs[list(ids).index(token)], abs=1e-6)


def test_each_sample_can_have_a_seed_of_its_own(live_service: LiveService) -> None:
    ours = mint.ServiceClient(base_url=live_service.base_url, api_key="tml-test")
    sampler = ours.create_sampling_client(base_model=MODEL)

    def sample(count: int, **seeds: Any) -> list[list[int]]:
        params = mint.types.SamplingParams(max_tokens=6, **seeds)
        return [list(s.tokens) for s in sampler.sample(prompt(), count, params).result().sequences]

    [four], [five] = sample(1, seed=4), sample(1, seed=5)
    assert sample(3, seeds=[4, 5, 4]) == [four, five, four]
    with pytest.raises(mint.RequestFailedError, match="seeds has 3 numbers for 2 samples"):
        sample(2, seeds=[4, 5, 4])
    with pytest.raises(mint.RequestFailedError, match="leave seed out"):
        sample(1, seeds=[4], seed=4)
