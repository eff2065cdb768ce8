"""A conversation with the policy, recorded token by token as it was sampled.

What the model said is never rendered again: a new message is appended to the very tokens that were
sampled. A conversation that goes on like that is one context, and one datum. A conversation whose
past was changed (shortened, summarised, rewritten) begins another context, and another datum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mint.rl.policy import Policy, seed_for
from mint.rl.rendering import Message, Renderer
from mint.rl.rollout import Segment
from mint.rl.tool_calls import ToolCall, parse_tool_calls


class TurnLimit(RuntimeError):
    """The model has replied as often as one rollout may."""


class ContextFull(RuntimeError):
    """There is no room for another reply."""


@dataclass(frozen=True)
class Reply:
    """What the model said."""

    text: str
    tokens: list[int] = field(repr=False)
    truncated: bool = False

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tools that the reply wants called."""
        return parse_tool_calls(self.text)

    @property
    def message(self) -> Message:
        """The reply, for a list of messages."""
        return {"role": "assistant", "content": self.text}


class Chat:
    """What an environment talks to.

    Either say things and ask for replies::

        chat.user("What is 2 + 2?")
        reply = await chat.reply()

    or, like the client of a chat service, pass the whole conversation every time::

        reply = await chat.complete(messages)
    """

    def __init__(
        self,
        policy: Policy,
        seed: int | None = None,
        max_turns: int = 8,
        context_length: int | None = None,
        tools: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.policy = policy
        self.max_turns = max_turns
        self.context_length = context_length
        self.turns = 0
        self.segments: list[Segment] = []
        self.trace: list[dict[str, Any]] = []
        self.truncated = False
        self._seed = seed
        self._renderer = Renderer(policy.tokenizer, tools)
        self._context: list[Message] = []  # the messages that the last segment stands for
        self._waiting: list[Message] = []
        self._said: list[str] = []
        self._last: int | None = None
        self._fresh = True  # whether the next reply begins a segment
        self._opening: int | None = None  # how much of the trace came before the first reply

    def use_tools(self, tools: Sequence[dict[str, Any]]) -> None:
        """Describe tools to the model, before the first reply."""
        self._renderer = Renderer(self.policy.tokenizer, tools)

    def system(self, content: str) -> None:
        """Say what holds for the whole conversation."""
        self.add("system", content)

    def user(self, content: str) -> None:
        """Say something to the model."""
        self.add("user", content)

    def tool(self, content: str, name: str | None = None) -> None:
        """Give the result of a tool."""
        self.add("tool", content, **({"name": name} if name else {}))

    def add(self, role: str, content: str, **more: Any) -> None:
        """Add a message of any role. The model reads it before its next reply.

        An assistant's message that is added, as in an example, is given and not trained on.
        """
        message = {"role": role, "content": content, **more}
        self._waiting.append(message)
        self.trace.append(message)

    def restart(self, messages: Sequence[Message] = ()) -> None:
        """Begin another context: what was said before is still trained on, but no longer seen."""
        self._context, self._last = [], None
        self._waiting = list(messages)
        self.trace += [dict(message) for message in messages]
        self._fresh = True

    @property
    def turns_left(self) -> int:
        """How often the model may still reply."""
        return self.max_turns - self.turns

    @property
    def prompt(self) -> str:
        """What the model was asked: the last message before its first reply."""
        before = self.trace[: self._opening]
        return str(before[-1].get("content") or "") if before else ""

    @property
    def text(self) -> str:
        """Everything that the model said."""
        return "\n".join(self._said)

    async def complete(self, messages: Sequence[Message], **options: Any) -> Reply:
        """The reply to a whole conversation.

        If it extends what was said so far, word for word, only what is new is added; else it
        begins another context.
        """
        known = [*self._context, *self._waiting]
        if not self._fresh and _same(messages[: len(known)], known) and len(messages) > len(known):
            for message in messages[len(known) :]:
                self._waiting.append(dict(message))
                self.trace.append(dict(message))
        else:
            self.restart(messages)
        return await self.reply(**options)

    async def reply(
        self, max_tokens: int | None = None, stop: Sequence[str] | None = None
    ) -> Reply:
        """Let the model speak. Raises :class:`TurnLimit` and :class:`ContextFull`."""
        if self.turns_left < 1:
            raise TurnLimit(
                f"The rollout has used its {self.max_turns} turns. End it while chat.turns_left "
                "is 0, or raise max_turns."
            )
        segment = self._extended()
        if self._opening is None:
            self._opening = len(self.trace)
        room = self._room(segment, max_tokens or self.policy.max_tokens)
        seed = seed_for(self._seed, self.turns)
        answer = (await self.policy.sample(segment.tokens, 1, seed, room, stop))[0]
        segment.sample(answer.tokens, answer.logprobs)
        self._last = answer.tokens[-1] if answer.tokens else None
        self.turns += 1
        self.truncated |= answer.truncated
        reply = Reply(self.policy.text(answer.tokens), answer.tokens, answer.truncated)
        self._context.append(reply.message)
        self._said.append(reply.text)
        self.trace.append(_traced(reply))
        return reply

    def _extended(self) -> Segment:
        """The segment to sample from, with what was said since the last reply."""
        if self._fresh:
            if not self._waiting:
                raise ValueError("Nothing was said yet: call chat.user(...) before chat.reply().")
            self.segments.append(Segment())
            self.segments[-1].give(self._renderer.start(self._waiting))
        elif self._waiting:
            self.segments[-1].give(self._renderer.follow(self._waiting, self._last))
        else:
            raise ValueError("The model has just spoken: say something before chat.reply().")
        self._context += self._waiting
        self._waiting, self._fresh = [], False
        return self.segments[-1]

    def _room(self, segment: Segment, wanted: int) -> int:
        if self.context_length is None:
            return wanted
        room = min(wanted, self.context_length - len(segment.tokens))
        if room < 1:
            raise ContextFull(
                f"The conversation has {len(segment.tokens)} tokens, and context_length is "
                f"{self.context_length}. Shorten it with chat.restart(messages)."
            )
        return room


def _traced(reply: Reply) -> dict[str, Any]:
    calls = [
        {"name": call.name, "arguments": call.arguments, "error": call.error}
        for call in reply.tool_calls
    ]
    return {**reply.message, **({"tool_calls": calls} if calls else {})}


def _same(messages: Sequence[Message], known: Sequence[Message]) -> bool:
    def words(message: Message) -> tuple[Any, Any]:
        return message.get("role"), message.get("content")

    return [words(m) for m in messages] == [words(m) for m in known]
