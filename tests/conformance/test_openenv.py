"""Environments served by the openenv package are played through our client, unmodified."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mint.rl import rehearse
from mint.rl.agents.episodes import OpenEnvEnvironment
from mint.rl.agents.openenv import OpenEnvSocket
from tests.rl.agents.test_episodes import play_two_words

from .environments import Client

pytestmark = pytest.mark.slow

OPENENV = Client("openenv")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    if not OPENENV.python.exists():
        pytest.skip("openenv is not installed; type: make test-openenv")
    script = Path(__file__).with_name("openenv_server.py")
    command = [str(OPENENV.python), "-P", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.terminate()


def echo(url: str, words: list[str]) -> OpenEnvEnvironment:
    return OpenEnvEnvironment(
        lambda: OpenEnvSocket(url),
        [{"word": word} for word in words],
        to_action=lambda text: {"message": text} if text != "nothing" else {},
        show=lambda seen: str(seen["prompt"]),
    )


def test_each_rollout_has_an_episode_of_its_own(url: str) -> None:
    play_two_words(echo(url, ["tea", "milk"]))


def test_an_action_without_its_field_is_reported_with_the_servers_reason(url: str) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)rejected step: .*message.*VALIDATION_ERROR"):
        rehearse(echo(url, ["tea"]), {"word": "tea"}, ["nothing"])


def test_a_hundred_episodes_leave_no_session_behind(url: str) -> None:
    """The server allows four at a time."""
    environment = echo(url, ["tea"])
    for _ in range(100):
        assert rehearse(environment, {"word": "tea"}, ["tea"]).turn_rewards == [1.0]
