"""The newest client with everything on that a service may turn on: other requests, same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service_fixture import LiveService

from .environments import NEWEST, Conversation, converse
from .proxy import proxy_to

pytestmark = pytest.mark.slow

FLAGS = {
    "proto_compress_fwdbwd": True,
    "sample_use_retrieve_futures": True,
    "create_model_via_load_weights": True,
    "pjwt_auth_enabled": True,
    "use_pyqwest_transport": False,
}
SCENARIOS = ("samples", "chunks", "resume", "frozen_samplers")


@pytest.fixture(scope="module")
def flagged(clients_service: LiveService, tmp_path_factory: pytest.TempPathFactory) -> Conversation:
    folder: Path = tmp_path_factory.mktemp("flags")
    with proxy_to(clients_service.base_url, flags=FLAGS) as wire:
        return converse(NEWEST, wire, wire, folder, SCENARIOS)


def test_compressed_batches_are_trained_on(flagged: Conversation) -> None:
    encodings = {
        e.request_headers.get("content-encoding") for e in flagged.wire.to("/forward_backward")
    }
    assert encodings == {"zstd"}
    seen = flagged.saw("chunks")
    assert seen["outputs"] == 2500
    assert seen["loss"] == pytest.approx(-seen["sum_of_logprobs"], rel=1e-6)


def test_samples_are_announced_together(flagged: Conversation) -> None:
    announced = {
        completion["request_id"]
        for e in flagged.wire.to("/retrieve_futures")
        for completion in e.answered["completions"]
    }
    assert announced == {e.answered["request_id"] for e in flagged.wire.to("/asample")}
    assert len(flagged.saw("samples")) == 3


def test_a_run_is_made_by_loading_a_checkpoint(flagged: Conversation) -> None:
    loads = [e.asked for e in flagged.wire.to("/load_weights")]
    assert [load["path"] for load in loads] == [flagged.saw("resume")["path"]] * 2
    assert all("model_seq_id" in load and "model_id" not in load for load in loads)
    seen = flagged.saw("resume")
    assert seen["resumed"] == seen["uninterrupted"]
    assert seen["without_optimizer"][0] == seen["uninterrupted"][0]


def test_samplers_are_frozen_with_flags_too(flagged: Conversation) -> None:
    seen = flagged.saw("frozen_samplers")
    assert seen["fresh_later"] == seen["fresh_by_path"] == seen["fresh"]
    assert seen["trained_later"] == seen["trained"] != seen["fresh"]


def test_every_request_after_the_exchange_carries_the_token(flagged: Conversation) -> None:
    token = flagged.wire.to("/auth/token")[-1].answered["jwt"]
    keys = {e.request_headers["x-api-key"] for e in flagged.wire.to("/optim_step", "/asample")}
    assert keys == {token}
