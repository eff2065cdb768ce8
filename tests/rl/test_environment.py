"""Environments in the loop: conversations become datums, and failures stay inside them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mint
from mint.rewards import Score, TooManyFailures
from mint.rl import Chat, RLConfig, Run, calculator, run_grpo, run_tools, search_tool, tool
from mint.rl.datums import values
from mint.rl.tool_calls import ToolCall
from mint.watch.recorder import ROLLOUTS, read_rows

Settings = Callable[..., RLConfig]
Rows = Callable[[], list[dict[str, Any]]]


class Talk:
    """Two turns with a tool's answer between them; pays for bytes below 128."""

    def __init__(self, trouble: str = "") -> None:
        self.trouble = trouble
        self.started = 0

    def build_dataset(self) -> list[dict[str, int]]:
        return [{"number": i} for i in range(4)]

    async def rollout(self, task: dict[str, int], chat: Chat) -> Any:
        self.started += 1
        index = self.started
        chat.system("Talk.")
        chat.user(f"say {task['number']}")
        reply = await chat.reply()
        if index == 1 and self.trouble == "raises":
            raise RuntimeError("the tool broke")
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
    row = read_rows(tmp_path / "run" / ROLLOUTS)[0]
    assert [message["role"] for message in row["trace"]] == [
        *("system", "user", "assistant", "tool", "assistant")
    ]
    assert row["prompt"] == row["trace"][1]["content"] == "say 0"


def one_batch(environment: Any, cfg: RLConfig, client: mint.ServiceClient) -> tuple[Any, Any]:
    with Run(environment, cfg, client) as run:
        batch = run.sample(1)
        return batch, run.prefer(batch)


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
    ("trouble", "said"), [("raises", "the tool broke"), ("hangs", "TimeoutError: no end after")]
)
def test_one_failing_rollout_never_kills_the_step(
    client: mint.ServiceClient, settings: Settings, trouble: str, said: str
) -> None:
    cfg = settings(rollout_timeout=20.0 if trouble == "raises" else 3.0)
    batch, datums = one_batch(Talk(trouble), cfg, client)
    rollouts = [r for group in batch.groups for r in group.rollouts]
    failed = [r for r in rollouts if r.error]
    assert [said in str(r.error) for r in failed] == [True]
    assert len(datums) > 0


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


def test_tools_answer_the_model_whatever_it_asks() -> None:
    async def fetch(key: str) -> str:
        """Look a key up."""
        return {"a": "1"}[key]

    tools = {t.name: t for t in (calculator, tool(fetch), search_tool({"x": "mint tea"}))}
    calls = [
        ToolCall("calculate", {"expression": "2 ** 10"}),
        ToolCall("calculate", {"expression": "__import__('os')"}),
        ToolCall("calculate", {"expression": "9 ** 9 ** 9"}),
        ToolCall("calculate", {"wrong": 1}),
        ToolCall("fetch", {"key": "a"}),
        ToolCall("search", {"query": "tea"}),
        ToolCall("nothing", {}),
        ToolCall("", error="the call is not JSON"),
    ]
    results = asyncio.run(run_tools(tools, calls))
    assert results[0] == "1024"
    assert results[4:6] == ["1", "x: mint tea"]
    assert all(results[i].startswith("error: ") for i in (1, 2, 3, 6, 7))
    assert tools["fetch"].schema["function"]["description"] == "Look a key up."
