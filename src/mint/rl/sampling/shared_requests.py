"""One request for the first replies of a group's rollouts, whose conversations begin alike."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from mint.rl.rollouts.policy import Policy, PolicyAnswer

_Question = tuple[tuple[int, ...], int | None, tuple[str, ...]]


@dataclass(frozen=True)
class SharingPolicy(Policy):
    """A policy that sends requests made at the same time as one, if only their seeds differ.

    The answers are the same, and come when the last of them has ended.
    """

    _unsent: dict[_Question, SharedRequest] = field(default_factory=dict)

    @classmethod
    def of(cls, policy: Policy) -> Self:
        return cls(**{each.name: getattr(policy, each.name) for each in fields(policy)})

    async def sample(
        self,
        prompt: Sequence[int],
        count: int,
        seed: int | Sequence[int] | None,
        max_tokens: int | None = None,
        stop: Sequence[str] | None = None,
    ) -> list[PolicyAnswer]:
        if count != 1 or not isinstance(seed, int):
            return await super().sample(prompt, count, seed, max_tokens, stop)
        question = (tuple(prompt), max_tokens, tuple(stop or ()))
        shared = self._unsent.get(question)
        if shared is None:
            shared = self._unsent[question] = SharedRequest(self._send(question))
        return [await shared.answer(seed)]

    async def _send(self, question: _Question) -> list[PolicyAnswer]:
        """Send what was asked for before this task began to run."""
        shared = self._unsent.pop(question)
        prompt, max_tokens, stop = question
        return await super().sample(prompt, len(shared.seeds), shared.seeds, max_tokens, stop)


class SharedRequest:
    """A request for several answers, each of which is waited for by another rollout."""

    def __init__(self, answers: Coroutine[Any, Any, list[PolicyAnswer]]) -> None:
        self.seeds: list[int] = []
        self._waiting = 0
        self._answers = asyncio.ensure_future(answers)

    async def answer(self, seed: int) -> PolicyAnswer:
        """Return the answer with this seed. The request ends with the last that waits for it."""
        index = len(self.seeds)
        self.seeds.append(seed)
        self._waiting += 1
        try:
            return (await asyncio.shield(self._answers))[index]
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._answers.cancel()
