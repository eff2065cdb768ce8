"""Crashes, restarts, silent clients: acknowledged operations survive them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tinker
from tinker import types
from tinker.proto import response_conv

from mint.service.runs.journal import Journal, RunIsElsewhere
from tests.postgres import Postgres
from tests.service.samples import batch, datum, forward, json_datum
from tests.service_fixture import DATABASES, MODEL, SLOWLY_BOTH, LiveService, RawClient

Start = Callable[..., LiveService]


def train(raw: RawClient, run: str, first: int, steps: int = 1) -> int:
    """Some steps of training; returns the next number."""
    for step in range(steps):
        raw.operate("forward_backward", run, first, **batch(json_datum([5, 6, 7 + step])))
        last = raw.operate("optim_step", run, first + 1, adam_params={"learning_rate": 0.01})
        first += 2
    assert "metrics" in raw.result(last)
    return first


def logprobs(raw: RawClient, run: str, seq_id: int) -> object:
    content = raw.retrieve(raw.operate("forward", run, seq_id, **forward())).content
    output = response_conv.deserialize_forward_backward_output(content)
    return output.loss_fn_outputs[0]["logprobs"].to_numpy()


def undisturbed(raw: RawClient, steps: int) -> object:
    run = raw.run()
    return logprobs(raw, run, train(raw, run, 1, steps))


@SLOWLY_BOTH
def test_a_killed_engine_restarts_with_its_run(own_service: Start) -> None:
    service = own_service()
    raw = RawClient(service.base_url)
    expected = undisturbed(raw, 3)
    run = raw.run()
    following = train(raw, run, 1, 2)
    raw.operate("forward_backward", run, following, **batch(json_datum([5, 6, 9])))
    raw.retrieve(f"{run}:{following}")
    [worker] = service.worker_pids()
    os.kill(worker, signal.SIGKILL)
    step = raw.operate("optim_step", run, following + 1, adam_params={"learning_rate": 0.01})
    assert "metrics" in raw.result(step)
    np.testing.assert_array_equal(logprobs(raw, run, following + 2), expected)


@SLOWLY_BOTH
@pytest.mark.parametrize("snapshot_after_bytes", [0, 10**9])
def test_a_killed_service_resumes_where_it_stopped(
    own_service: Start, snapshot_after_bytes: int
) -> None:
    service = own_service(snapshot_after_bytes=snapshot_after_bytes)
    raw = RawClient(service.base_url)
    expected = undisturbed(raw, 3)
    run = raw.run()
    following = train(raw, run, 1, 2)
    gradient = raw.operate("forward_backward", run, following, **batch(json_datum([5, 6, 9])))
    ahead = raw.operate("optim_step", run, following + 2, adam_params={"learning_rate": 0.0})
    service.kill()
    service = own_service(service.port, snapshot_after_bytes=snapshot_after_bytes)
    raw = RawClient(service.base_url)
    answer = raw.retrieve(gradient)
    assert answer.headers["content-type"] == "application/x-protobuf"
    again = raw.operate("forward_backward", run, following, **batch())
    assert again == gradient, "a repeated request is recognised across the restart"
    step = raw.operate("optim_step", run, following + 1, adam_params={"learning_rate": 0.01})
    assert "metrics" in raw.result(step)
    assert "metrics" in raw.result(ahead)
    np.testing.assert_array_equal(logprobs(raw, run, following + 3), expected)
    has_snapshot = list((service.home / "runs").glob("*/snapshot-*"))
    assert bool(has_snapshot) == (snapshot_after_bytes == 0)


@SLOWLY_BOTH
def test_the_unmodified_client_does_not_notice_a_restart(own_service: Start) -> None:
    service = own_service()
    client = tinker.ServiceClient(base_url=service.base_url, api_key="tml-test")
    training = client.create_lora_training_client(base_model=MODEL, rank=4, seed=1)
    losses = []
    for step in range(4):
        loss = training.forward_backward([datum()], "cross_entropy")
        if step == 1:
            losses.append(loss.result().metrics["loss:sum"])
            service.kill()
            service = own_service(service.port)
        if step == 2:
            service.stop()
            service = own_service(service.port)
        training.optim_step(types.AdamParams(learning_rate=0.01)).result()
        losses.append(loss.result().metrics["loss:sum"])
    assert sorted(losses, reverse=True) == losses
    assert len(set(losses)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_the_unmodified_client_does_not_notice_that_the_database_was_killed(
    own_service: Start, database_server: Postgres
) -> None:
    """What had been acknowledged waits for the database, and what is sent meanwhile too."""
    service = own_service(long_poll_s=0.2)
    client = tinker.ServiceClient(base_url=service.base_url, api_key="tml-test")
    training = client.create_lora_training_client(base_model=MODEL, rank=4, seed=1)
    raw = RawClient(service.base_url)
    run = training.get_info().model_id
    [worker] = service.worker_pids()
    os.kill(worker, signal.SIGSTOP)
    loss = training.forward_backward([datum()], "cross_entropy")
    step = training.optim_step(types.AdamParams(learning_rate=0.01))
    saved = training.save_state("kept")
    while raw.post("/retrieve_future", {"request_id": f"{run}:3"}).status_code == 404:
        pass
    try:
        database_server.stop(signal.SIGQUIT)  # every connection is cut in the middle
        os.kill(worker, signal.SIGCONT)
        refused = raw.post("/create_session", {})
        while "save_weights of" not in (service.home / "service.log").read_text():
            pass
        again = training.save_state("again")
    finally:
        database_server.start()
    assert refused.status_code == 503
    assert "Start it" in refused.json()["detail"]
    assert loss.result().metrics["loss:sum"] > 0
    assert step.result().metrics
    assert saved.result().path.endswith("/kept")
    assert again.result().path.endswith("/again")
    assert raw.session()


@SLOWLY_BOTH
@pytest.mark.slow
def test_failures_stay_failures_after_a_restart(own_service: Start) -> None:
    service = own_service()
    raw = RawClient(service.base_url)
    run = raw.run()
    bad = raw.operate("forward_backward", run, 1, **batch(json_datum([1, 99999])))
    failure = raw.result(bad)
    service.kill()
    raw = RawClient(own_service(service.port).base_url)
    assert raw.result(bad) == failure
    assert "did nothing" in raw.result(raw.operate("optim_step", run, 2))["error"]
    assert raw.result(f"{run}:0") == {"model_id": run, "type": "create_model"}


@SLOWLY_BOTH
@pytest.mark.slow
def test_an_ephemeral_sampler_survives_a_killed_engine(own_service: Start) -> None:
    service = own_service()
    raw = RawClient(service.base_url)
    run = raw.run()
    following = train(raw, run, 1)
    frozen = raw.result(
        raw.operate("save_weights_for_sampler", run, following, sampling_session_seq_id=0)
    )["sampling_session_id"]
    train(raw, run, following + 1)

    def sample(seq_id: int) -> bytes:
        body = {
            "sampling_session_id": frozen,
            "seq_id": seq_id,
            "prompt": {"chunks": [{"tokens": [1, 2, 3]}]},
            "prompt_logprobs": True,
            "sampling_params": {"max_tokens": 3, "temperature": 0},
        }
        return raw.retrieve(raw.post("/asample", body).json()["request_id"]).content

    before = sample(0)
    [worker] = service.worker_pids()
    os.kill(worker, signal.SIGKILL)
    assert sample(1) == before


@SLOWLY_BOTH
@pytest.mark.slow
def test_a_sampler_lost_with_its_engine_says_so(own_service: Start) -> None:
    service = own_service(snapshot_after_bytes=0, samplers_kept_per_run=0)
    raw = RawClient(service.base_url)
    run = raw.run()
    saved = raw.operate("save_weights_for_sampler", run, 1, sampling_session_seq_id=0)
    sampler = raw.result(saved)["sampling_session_id"]
    logprobs(raw, run, train(raw, run, 2))
    [worker] = service.worker_pids()
    os.kill(worker, signal.SIGKILL)
    prompt = {"chunks": [{"tokens": [1]}]}
    body = {"sampling_session_id": sampler, "seq_id": 0, "prompt": prompt}
    failure = raw.result(raw.post("/asample", body).json()["request_id"])
    assert "no longer kept" in failure["error"]


@DATABASES
@pytest.mark.slow
def test_two_services_share_a_home_but_not_a_run(own_service: Start) -> None:
    one, other = RawClient(own_service().base_url), RawClient(own_service().base_url)
    run = one.run()
    refused = other.post("/optim_step", {"model_id": run, "seq_id": 1})
    assert refused.status_code == 400
    assert "another mint service" in refused.json()["detail"]
    path = one.result(one.operate("save_weights", run, 1, path="shared"))["path"]
    loaded = other.operate("load_weights", other.run(), 1, path=path, optimizer=True)
    assert other.result(loaded)["path"] == path


@DATABASES
def test_a_silent_session_gives_its_memory_back_and_may_return(own_service: Start) -> None:
    service = own_service(session_idle_s=0.5)
    raw = RawClient(service.base_url)
    expected = undisturbed(raw, 2)
    run = raw.run()
    following = train(raw, run, 1, 2)
    folder = service.home / "runs" / run.replace(":", "_")
    while True:
        try:
            Journal(folder).close()
        except RunIsElsewhere:
            continue
        break
    np.testing.assert_array_equal(logprobs(raw, run, following), expected)


@DATABASES
def test_the_state_of_a_forgotten_run_is_deleted_and_its_checkpoints_are_not(
    own_service: Start,
) -> None:
    first = own_service()
    raw = RawClient(first.base_url)
    run = raw.run()
    path = raw.result(raw.operate("save_weights", run, 1, path="kept"))["path"]
    folder = first.home / "runs" / run.replace(":", "_")
    assert folder.exists()
    first.stop()
    raw = RawClient(own_service(session_idle_s=0.5, run_kept_s=0.0).base_url)
    while folder.exists():
        pass
    gone = raw.post("/optim_step", {"model_id": run, "seq_id": 2})
    assert gone.status_code == 404
    assert "create_training_client_from_state" in gone.json()["detail"]
    assert raw.post("/weights_info", {"tinker_path": path}).json()["lora_rank"] == 4


@SLOWLY_BOTH
def test_a_number_that_never_arrives_is_abandoned(own_service: Start) -> None:
    raw = RawClient(own_service(gap_limit_s=0.3).base_url)
    run = raw.run()
    stranded = raw.operate("forward_backward", run, 2, **batch())
    assert "operation 1 of this run did not arrive" in raw.result(stranded)["error"]
    assert "did nothing" in raw.result(raw.operate("optim_step", run, 3))["error"]
    train(raw, run, 4)


@SLOWLY_BOTH
def test_an_operation_that_comes_too_late_is_refused_and_not_said_to_be_done(
    own_service: Start,
) -> None:
    """It was acknowledged, dropped, and then reported as carried out."""
    service = own_service(gap_limit_s=0.3)
    raw = RawClient(service.base_url)
    run = raw.run()
    raw.retrieve(raw.operate("forward_backward", run, 2, **batch()))
    for _ in range(2):
        late = raw.post("/forward_backward", {"model_id": run, "seq_id": 1, **batch()})
        assert late.status_code == 400
        assert "too late" in late.json()["detail"]
        assert raw.retrieve(f"{run}:1").status_code == 404
        service.kill()
        service = own_service(service.port, gap_limit_s=0.3)
    train(raw, run, 3)


@SLOWLY_BOTH
@pytest.mark.slow
def test_old_results_are_gone_and_unknown_ones_never_were(own_service: Start) -> None:
    first = own_service()
    run = RawClient(first.base_url).run()
    first.stop()
    raw = RawClient(own_service(result_kept_s=0.0, session_idle_s=0.2).base_url)
    saved = raw.operate("save_weights", run, 1, path="a")
    body = {"session_id": raw.session(), "sampling_session_seq_id": 0, "base_model": MODEL}
    sampler = raw.post("/create_sampling_session", body).json()["sampling_session_id"]
    assert raw.post("/retrieve_future", {"request_id": f"{run}:77"}).status_code == 404
    assert raw.post("/retrieve_future", {"request_id": f"{sampler}:5"}).status_code == 410
    assert raw.post("/retrieve_future", {"request_id": "nonsense"}).status_code == 404
    while (answer := raw.retrieve(saved)).status_code == 200:
        pass
    assert answer.status_code == 410


@SLOWLY_BOTH
def test_a_stopped_service_leaves_no_worker(own_service: Start) -> None:
    service = own_service(models=(MODEL,))
    [worker] = service.worker_pids()
    service.stop()
    assert not Path(f"/proc/{worker}").exists()


def logprobs_of(raw: RawClient, sampler: str, seq_id: int) -> bytes:
    body = {
        "sampling_session_id": sampler,
        "seq_id": seq_id,
        "prompt": {"chunks": [{"tokens": [1, 2, 3]}]},
        "prompt_logprobs": True,
        "sampling_params": {"max_tokens": 1, "temperature": 0},
    }
    return raw.retrieve(raw.post("/asample", body).json()["request_id"]).content


@SLOWLY_BOTH
@pytest.mark.slow
def test_samplers_that_leave_memory_come_back_from_disk_unchanged(own_service: Start) -> None:
    service = own_service(samplers_per_run=1, samplers_kept_per_run=2, snapshot_after_bytes=0)
    raw = RawClient(service.base_url)
    run, number, samplers, before = raw.run(), 1, [], []
    for n in range(4):
        number = train(raw, run, number)
        saved = raw.operate("save_weights_for_sampler", run, number, sampling_session_seq_id=n)
        samplers.append(raw.result(saved)["sampling_session_id"])
        before.append(logprobs_of(raw, samplers[-1], 0))
        number += 1
    assert len(set(before)) == 4
    train(raw, run, number)
    assert [logprobs_of(raw, sampler, 1) for sampler in samplers[2:]] == before[2:]
    [worker] = service.worker_pids()
    os.kill(worker, signal.SIGKILL)
    assert [logprobs_of(raw, sampler, 2) for sampler in samplers[2:]] == before[2:]
    assert b"no longer kept" in logprobs_of(raw, samplers[0], 2)


@SLOWLY_BOTH
@pytest.mark.slow
def test_a_sampler_is_never_made_twice_with_other_weights(own_service: Start) -> None:
    raw = RawClient(own_service(samplers_per_run=1).base_url)
    run = raw.run()
    for n in range(2):
        raw.operate("save_weights_for_sampler", run, n + 1, sampling_session_seq_id=n)
    following = train(raw, run, 3)
    again = raw.operate("save_weights_for_sampler", run, following, sampling_session_seq_id=0)
    assert "samplers cannot be changed" in raw.result(again)["error"]
