"""Environments that exist elsewhere: Gymnasium, an OpenEnv server, a code agent in the sandbox."""

from __future__ import annotations

import importlib
import json
import string
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from websockets.sync.server import ServerConnection, serve

from mint.rl import RLConfig, rehearse
from mint.rl.agents.episodes import GymnasiumEnvironment, OpenEnvEnvironment
from mint.rl.agents.openenv import OpenEnvSocket
from tests.needs import need_sandbox


class Guess(gymnasium.Env[str, str]):
    """Guess a number: an environment of Gymnasium whose observations and actions are text."""

    observation_space = gymnasium.spaces.Text(64, charset=string.printable)
    action_space = gymnasium.spaces.Text(8)
    closed = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(1, 10))
        return "Guess a number from 1 to 9.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        off = abs(int(action) - self.number)
        return f"You are {off} off.", float(off == 0) - 0.1, off == 0, False, {}

    def close(self) -> None:
        Guess.closed += 1


def digit(text: str) -> str:
    if not text.strip().isdigit():
        raise ValueError("answer with a number")
    return text.strip()


@pytest.fixture
def guess() -> GymnasiumEnvironment:
    Guess.closed = 0
    checked = gymnasium.wrappers.PassiveEnvChecker
    return GymnasiumEnvironment(
        lambda: checked(Guess()),
        seeds=range(4),
        to_action=digit,
        instructions="Play.",
        invalid_reward=-0.5,
    )


def number_of(seed: int) -> int:
    env = Guess()
    env.reset(seed=seed)
    return env.number


def test_a_gymnasium_environment_is_played_to_its_end(guess: GymnasiumEnvironment) -> None:
    task = guess.build_dataset()[2]
    number = number_of(task["seed"])
    wrong = 1 if number != 1 else 2
    rollout = rehearse(guess, task, ["what?", str(wrong), str(number)])
    assert rollout.turn_rewards == [-0.5, -0.1, 0.9]
    said = [m["content"] for m in rollout.messages if m["role"] == "user"]
    assert said[0] == "Play.\n\nGuess a number from 1 to 9."
    assert said[1] == "error: answer with a number"
    assert said[2] == f"You are {abs(wrong - number)} off."
    assert Guess.closed == 1


def test_an_episode_ends_at_the_turn_limit_with_what_it_has_earned(
    guess: GymnasiumEnvironment,
) -> None:
    task = guess.build_dataset()[0]
    wrong = str(1 if number_of(task["seed"]) != 1 else 2)
    rollout = rehearse(guess, task, [wrong] * 2, RLConfig(max_tokens=64, max_turns=2))
    assert rollout.turn_rewards == [-0.1, -0.1]


def play(socket: ServerConnection) -> None:
    """OpenEnv's WebSocket protocol: an episode for each connection, of repeating a word."""
    word = ""
    for text in socket:
        message = json.loads(text)
        data = message["data"]
        if message["type"] == "reset":
            word = data.get("word", "mint")
            found = {"observation": {"prompt": f"Say {word}."}, "reward": None, "done": False}
        elif "message" in data:
            right = data["message"] == word
            prompt = "Right." if right else "Again."
            found = {"observation": {"prompt": prompt}, "reward": float(right), "done": right}
        else:
            error = {"message": "no message", "code": "VALIDATION_ERROR"}
            socket.send(json.dumps({"type": "error", "data": error}))
            continue
        socket.send(json.dumps({"type": "observation", "data": found}))


@pytest.fixture
def socket_server() -> Iterator[str]:
    with serve(play, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()


def play_two_words(environment: OpenEnvEnvironment) -> None:
    """Play two conversations at a time: neither may see the other's word."""
    replies = {"tea": ["coffee", "tea"], "milk": ["milk"]}
    with ThreadPoolExecutor(2) as both:
        rollouts = list(
            both.map(
                lambda task: rehearse(environment, task, replies[task["word"]]),
                environment.build_dataset(),
            )
        )
    assert [rollout.turn_rewards for rollout in rollouts] == [[0.0, 1.0], [1.0]]
    said = [m["content"] for m in rollouts[0].messages if m["role"] == "user"]
    assert said == ["Say tea.", "Again."]


def test_an_openenv_server_is_played_over_a_websocket_with_an_episode_each(
    socket_server: str,
) -> None:
    environment = OpenEnvEnvironment(
        lambda: OpenEnvSocket(socket_server),
        [{"word": "tea"}, {"word": "milk"}],
        show=lambda seen: str(seen["prompt"]),
    )
    play_two_words(environment)


def test_a_websocket_server_that_refuses_or_is_gone_is_named(socket_server: str) -> None:
    refused = OpenEnvEnvironment(lambda: OpenEnvSocket(socket_server), to_action=lambda text: {})
    with pytest.raises(RuntimeError, match=r"rejected step: no message \(code VALIDATION_ERROR\)"):
        rehearse(refused, {}, ["x"])
    gone = OpenEnvEnvironment(lambda: OpenEnvSocket("http://127.0.0.1:1"))
    with pytest.raises(RuntimeError, match=r"no OpenEnv server at ws://127\.0\.0\.1:1/ws"):
        rehearse(gone, {}, ["x"])
    assert OpenEnvSocket("https://space.example/").url == "wss://space.example/ws"


def call(tool: str, /, **arguments: str) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


def test_a_code_agent_edits_files_and_is_scored_by_hidden_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need_sandbox()
    demos = Path(__file__).resolve().parents[3] / "demos" / "rl"
    monkeypatch.setattr(sys, "path", [str(demos), *sys.path])
    module = importlib.import_module("code_agent")
    agent = module.CodeAgent()
    task = next(task for task in agent.build_dataset() if task.name == "median")
    mended = "def ordered(values):\n    return sorted(values)\n"
    rollout = rehearse(
        agent,
        task,
        [
            call("run_tests"),
            call("read_file", name="ordering.py"),
            call("write_file", name="ordering.py", content=mended),
            call("run_tests"),
            "Done.",
        ],
    )
    results = [m["content"] for m in rollout.messages if m["role"] == "tool"]
    assert results[0].startswith("failed: ")
    assert results[1] == task.files["ordering.py"]
    assert results[3] == "all tests pass"
    cost = module.TURN_COST
    assert rollout.turn_rewards is not None
    assert rollout.turn_rewards[2] > 0.3
    assert rollout.turn_rewards[0] == rollout.turn_rewards[4] == -cost
    assert rollout.components == {"solved": 1.0}
    assert task.files["ordering.py"] != mended  # another rollout begins afresh
