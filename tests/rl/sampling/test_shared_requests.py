"""Rollouts of a group that ask the same at the same time share one request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import mint
from mint.rl import Chat, RLConfig
from mint.rl.rollouts.policy import PolicyAnswer
from mint.rl.sampling.shared_requests import SharedRequest
from tests.rl.stepping import stepping

Settings = Callable[..., RLConfig]


class Words:
    """One reply or two; some rollouts ask a moment later than the others."""

    def __init__(self, turns: int = 1, are_late: bool = False) -> None:
        self.turns = turns
        self.are_late = are_late
        self.begun = 0

    def build_dataset(self) -> list[int]:
        return [1, 2]

    async def rollout(self, task: int, chat: Chat) -> float:
        self.begun += 1
        if self.are_late and self.begun % 2:
            for _ in range(3):
                await asyncio.sleep(0)
        for _ in range(self.turns):
            chat.user(f"say {task}")
            await chat.reply()
        return float(len(chat.text) % 7)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many answers each request asks for."""
    counts: list[int] = []
    original = mint.SamplingClient.sample_async

    async def counted(self: Any, **request: Any) -> Any:
        counts.append(request["num_samples"])
        return await original(self, **request)

    monkeypatch.setattr(mint.SamplingClient, "sample_async", counted)
    return counts


def texts(
    environment: Words, settings: Settings, client: mint.ServiceClient, steps: int = 1
) -> list[str]:
    with stepping(environment, settings(steps=steps), client) as run:
        batches = [run.sample(step) for step in range(1, steps + 1)]
    groups = [group for batch in batches for group in batch.groups]
    return [rollout.text for group in groups for rollout in group.rollouts]


def test_a_group_sends_one_request_and_gets_the_answers_of_its_own_seeds(
    client: mint.ServiceClient, settings: Settings, sent: list[int]
) -> None:
    together = texts(Words(), settings, client)
    assert sent == [4, 4]
    sent.clear()
    assert texts(Words(are_late=True), settings, client) == together
    assert sorted(sent) == [2, 2, 2, 2]
    assert len(set(together)) > 1


def test_conversations_of_several_replies_wait_for_no_other(
    client: mint.ServiceClient, settings: Settings, sent: list[int]
) -> None:
    texts(Words(turns=2), settings, client, steps=2)
    first, later = sent[: sent.index(1)], sent[-16:]
    assert first == [4, 4]
    assert later == [1] * 16, "the second step's two groups of four, with two replies each"


def test_a_request_ends_with_the_last_that_waits_for_it() -> None:
    async def scenario() -> None:
        ended: list[str] = []
        answered = asyncio.Event()

        async def send() -> list[PolicyAnswer]:
            try:
                await answered.wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise
            return [PolicyAnswer([number], [0.0], False) for number in range(2)]

        shared = SharedRequest(send())
        one, other = (asyncio.ensure_future(shared.answer(seed)) for seed in (1, 2))
        await asyncio.wait([one, other], timeout=0)
        one.cancel()
        await asyncio.wait([one])
        answered.set()
        assert (await other).tokens == [1]
        assert not ended

        answered.clear()
        shared = SharedRequest(send())
        both = [asyncio.ensure_future(shared.answer(seed)) for seed in (1, 2)]
        await asyncio.wait(both, timeout=0)
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        while not ended:
            await asyncio.sleep(0)

    asyncio.run(scenario())
