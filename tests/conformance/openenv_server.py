"""An environment written for OpenEnv, served by its package; prints the port it listens on.

Run by ``test_openenv.py`` where openenv is installed and mint is not.
"""

from __future__ import annotations

import socket

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Say(Action):
    message: str


class Heard(Observation):
    prompt: str


class Echo(Environment):
    """Repeat a word."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, word="mint", **others):
        self._word, self._state = word, State(episode_id=episode_id, step_count=0)
        return Heard(prompt=f"Say {word}.", reward=None, done=False)

    def step(self, action, timeout_s=None, **others):
        self._state.step_count += 1
        right = action.message == self._word
        prompt = "Right." if right else "Again."
        return Heard(prompt=prompt, reward=float(right), done=right)

    @property
    def state(self):
        return self._state


if __name__ == "__main__":
    app = create_fastapi_app(Echo, Say, Heard, max_concurrent_envs=4)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
