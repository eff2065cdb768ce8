"""Environments in the loop: conversations become datums, and failures stay inside them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mint
from mint.rewards import Score, TooManyFailures
from mint.rl import Chat, RLConfig, run_grpo
from mint.rl.datums.datum import values
from mint.watch.directory.reader import open_run
from tests.rl.stepping import stepping

Settings = Callable[..., RLConfig]
Rows = Callable[[], list[dict[str, Any]]]


class Panic(BaseException):
    """As libraries written in other languages raise it."""


ERRORS: dict[str, BaseException] = {
    "raises": RuntimeError("the tool broke"),
    "gives up": asyncio.CancelledError("something inside was cancelled"),
    "exits": SystemExit(3),
    "panics": Panic("out of bounds"),
    "loses patience": TimeoutError(),
}
WRONG_REWARDS = {"pays NaN": float("nan"), "pays a list": [1.0]}


class Talk:
    """Two turns with a tool's answer between them; pays for bytes below 128."""

    def __init__(self, trouble: str = "") -> None:
        self.trouble = trouble
        self.started = 0
        self.chats: list[Chat] = []

    def build_dataset(self) -> list[dict[str, int]]:
        return [{"number": i} for i in range(4)]

    async def rollout(self, task: dict[str, int], chat: Chat) -> Any:
        self.started += 1
        index = self.started
        self.chats.append(chat)
        chat.system("Talk.")
        chat.user(f"say {task['number']}")
        reply = await chat.reply()
        if index == 1 and self.trouble in ERRORS:
            raise ERRORS[self.trouble]
        if index == 1 and self.trouble in WRONG_REWARDS:
            return WRONG_REWARDS[self.trouble]
        if index == 1 and self.trouble == "talks on":
            chat.user("x" * 5000)
            await chat.reply()
        if index == 1 and self.trouble == "hangs":
            await asyncio.Event().wait()
        if self.trouble == "loops":
            while True:
                chat.user("go on")
                await chat.reply()
        if self.trouble == "forgets":
            chat.restart([{"role": "user", "content": "summary"}])
        else:
            chat.tool("result")
        reply = await chat.reply()
        share = sum(c < "\x80" for c in reply.text) / max(1, len(reply.text))
        return Score(share - 0.01 * chat.turns, {"outcome": share, "steps": float(chat.turns)})


def test_an_environment_trains_like_an_adapter(
    client: mint.ServiceClient, settings: Settings, metrics: Rows, tmp_path: Path, capsys: Any
) -> None:
    path = run_grpo(Talk(), settings(), service=client)
    assert f"Saved: {path}" in capsys.readouterr().out
    assert metrics()[0]["component/steps"] == 2.0
    assert metrics()[0]["train/grad_norm"] > 0
    row = open_run(tmp_path / "run").rollouts()[0]
    assert [message["role"] for message in row["trace"]] == [
        *("system", "user", "assistant", "tool", "assistant")
    ]
    assert row["prompt"] == row["trace"][1]["content"]


def one_batch(environment: Any, cfg: RLConfig, client: mint.ServiceClient) -> tuple[Any, Any]:
    with stepping(environment, cfg, client) as run:
        batch = run.sample(1)
        return batch, run.build_datums(batch)


def test_an_extending_conversation_is_one_datum_with_two_spans_of_weight(
    client: mint.ServiceClient, settings: Settings
) -> None:
    batch, datums = one_batch(Talk(), settings(), client)
    trained = [r for group in batch.groups for r in group.rollouts if r.advantage]
    assert len(datums) == len(trained)
    for datum, rollout in zip(datums, trained, strict=True):
        weights = values(datum, "weights")
        begins = [i for i, w in enumerate(weights) if w and (i == 0 or not weights[i - 1])]
        assert len(begins) == 2
        assert weights.sum() == rollout.length


def test_a_conversation_that_forgets_is_two_datums(
    client: mint.ServiceClient, settings: Settings
) -> None:
    batch, datums = one_batch(Talk("forgets"), settings(), client)
    trained = [r for group in batch.groups for r in group.rollouts if r.advantage]
    assert len(datums) == 2 * len(trained) > 0


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("raises", "RuntimeError: the tool broke"),
        ("hangs", "TimeoutError: not finished after 3 s; raise rollout_timeout"),
        ("gives up", "CancelledError: something inside was cancelled"),
        ("exits", "SystemExit: 3"),
        ("panics", "Panic: out of bounds"),
        ("loses patience", "TimeoutError: "),
        ("pays NaN", "ValueError: A reward must be a finite number"),
        ("pays a list", "TypeError: A reward returned list"),
        ("talks on", "the model's context is 4096"),
    ],
)
def test_one_failing_rollout_never_kills_the_step(
    client: mint.ServiceClient, settings: Settings, trouble: str, said: str
) -> None:
    cfg = settings(rollout_timeout=3.0 if trouble == "hangs" else 60.0)
    batch, datums = one_batch(Talk(trouble), cfg, client)
    rollouts = [r for group in batch.groups for r in group.rollouts]
    (error,) = [str(r.error) for r in rollouts if r.error]
    assert said in error
    assert trouble == "hangs" or "not finished after" not in error
    assert len(datums) > 0


def test_a_conversation_beyond_context_length_fails_alone_and_says_so(
    client: mint.ServiceClient, settings: Settings
) -> None:
    batch, datums = one_batch(Talk("talks on"), settings(context_length=200), client)
    errors = [r.error for group in batch.groups for r in group.rollouts if r.error]
    assert len(errors) == 1
    assert "ContextFull: The conversation has 5" in errors[0]
    assert "context_length is 200" in errors[0]
    assert len(datums) > 0


def test_a_conversation_is_over_when_its_rollout_has_ended(
    client: mint.ServiceClient, settings: Settings
) -> None:
    environment = Talk()
    one_batch(environment, settings(), client)
    with pytest.raises(RuntimeError, match="The rollout is over"):
        environment.chats[0].user("And another thing.")


def test_endless_rollouts_end_at_the_turn_limit(
    client: mint.ServiceClient, settings: Settings
) -> None:
    cfg = settings(max_turns=3, batch_size=8)
    with pytest.raises(TooManyFailures, match="TurnLimit"):
        one_batch(Talk("loops"), cfg, client)


def test_all_rollouts_of_a_step_are_in_flight_at_once(
    client: mint.ServiceClient, settings: Settings
) -> None:
    class Together(Talk):
        everybody = asyncio.Event()

        async def rollout(self, task: dict[str, int], chat: Chat) -> Any:
            if self.started + 1 == 8:
                self.everybody.set()
            result = await super().rollout(task, chat)
            await self.everybody.wait()
            return result

    batch, _ = one_batch(Together(), settings(rollout_timeout=60.0), client)
    assert not [r.error for group in batch.groups for r in group.rollouts if r.error]
