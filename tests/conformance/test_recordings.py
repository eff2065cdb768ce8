"""Recorded sessions of unmodified clients get the answers that they got."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service_fixture import LiveService, start_service

from .environments import CLIENTS, Client
from .recordings import PUBLIC_NAME, Replay, load, new_key


@pytest.fixture(scope="module")
def keyed_service(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveService]:
    """A service that has keys, one for each client."""
    home = tmp_path_factory.mktemp("recordings")
    service = start_service(home, None, aliases={PUBLIC_NAME: tiny_model})
    yield service
    service.stop()


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_recorded_session_is_answered_as_it_was(
    keyed_service: LiveService, client: Client
) -> None:
    steps = load(client)
    replay = Replay(keyed_service.base_url, new_key(keyed_service, client))
    assert list(replay.play(steps)) == []
    assert len(steps) > 100
    assert {"/create_model", "/forward_backward", "/optim_step", "/asample"} <= {
        step.endpoint for step in steps
    }
