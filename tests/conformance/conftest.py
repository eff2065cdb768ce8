"""A live service under a public model name, and every client's conversation with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service_fixture import LiveService, start_service

from .environments import CLIENTS, Conversation, converse
from .proxy import first_answer_of_each_endpoint, proxy_to

collect_ignore = [
    "bridge.py",
    "client.py",
    "recipes.py",
    "tool_calls.py",
    "weights.py",
]  # scripts for other environments
PUBLIC_NAME = "Qwen/Qwen3-8B"
SHORT_POLL_S = 0.05


@pytest.fixture(scope="package")
def clients_service(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveService]:
    """Its polls are short, so that clients meet answers that are still pending."""
    service = start_service(
        tmp_path_factory.mktemp("clients"),
        None,
        aliases={PUBLIC_NAME: tiny_model},
        long_poll_s=SHORT_POLL_S,
    )
    yield service
    service.stop()


@pytest.fixture(scope="package", params=CLIENTS, ids=lambda client: client.name)
def conversation(
    request: pytest.FixtureRequest,
    clients_service: LiveService,
    tiny_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Conversation:
    """One run of ``client.py`` in each environment."""
    url = clients_service.base_url
    folder = tmp_path_factory.mktemp("client")
    (folder / PUBLIC_NAME).parent.mkdir()
    (folder / PUBLIC_NAME).symlink_to(tiny_model)
    with proxy_to(url) as wire, proxy_to(url, first_answer_of_each_endpoint) as lossy_wire:
        return converse(request.param, wire, lossy_wire, folder)
