"""Recorded sessions of unmodified clients get the answers that they got."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.service_fixture import LiveService, start_service

from .environments import CLIENTS, Client
from .recordings import PUBLIC_NAME, Replay, differences, load, new_keys


@dataclass(frozen=True)
class Keyed:
    """A service with a key for each client."""

    service: LiveService
    keys: dict[str, str]


@pytest.fixture(scope="module")
def keyed(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    home = tmp_path_factory.mktemp("recordings")
    keys = new_keys(home)
    service = start_service(home, None, aliases={PUBLIC_NAME: tiny_model})
    yield Keyed(service, keys)
    service.stop()


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_recorded_session_is_answered_as_it_was(keyed: Keyed, client: Client) -> None:
    steps = load(client)
    replay = Replay(keyed.service.base_url, keyed.keys[client.name])
    assert list(replay.play(steps)) == []
    assert len(steps) > 100
    assert {"/create_model", "/forward_backward", "/optim_step", "/asample"} <= {
        step.endpoint for step in steps
    }


def test_a_changed_number_or_a_missing_field_is_found() -> None:
    before = {"metrics": {"loss:sum": 1.5}, "detail": "old", "outputs": [[1, 2]], "type": "a"}
    assert not list(differences(before, {**before, "detail": "new", "more": 1}))
    for key, worse in (("metrics", {}), ("outputs", [[1]]), ("type", None), ("detail", 3)):
        assert list(differences(before, {**before, key: worse})), key
    assert list(differences(before, {**before, "metrics": {"loss:sum": 1.6}}))
