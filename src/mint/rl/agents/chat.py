"""A conversation with the policy, recorded token by token as it was sampled.

The model's replies are never re-rendered: new messages are appended to the tokens that were
sampled. A conversation that only grows is one context, and one datum. If its earlier messages
change (shortened, summarised, rewritten), a new context begins, and with it a new datum.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import Any

from mint.rl.agents.tools import Tools, schemas
from mint.rl.messages.rendering import Message, Renderer
from mint.rl.messages.tool_calls import ToolCall, opens_thought, parse_tool_calls
from mint.rl.rollouts.policy import Policy, PolicyAnswer, make_segment, seed_for
from mint.rl.rollouts.rollout import Segment, Turn

_TAIL = 32  # tokens at the end of a prompt that are searched for an open thinking block


class TurnLimit(RuntimeError):
    """The rollout has used all of its replies."""


class ContextFull(RuntimeError):
    """The context has no room for another reply."""


@dataclass(frozen=True)
class Reply:
    """A reply of the model."""

    text: str
    tokens: list[int] = field(repr=False)
    truncated: bool = False
    ended: bool = False  # whether the model ended it, with its last token
    thinking: bool = False  # whether the prompt opened a thinking block, in which the reply begins

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls of the reply, without those inside a thinking block."""
        return parse_tool_calls(self.text, self.thinking)

    @property
    def message(self) -> Message:
        """The reply, for a list of messages."""
        return {"role": "assistant", "content": self.text}


class Chat:
    """A conversation between an environment and the model.

    Either add messages and ask for replies::

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
    ) -> None:
        self.policy = policy
        self.max_turns = max_turns
        self.context_length = context_length
        self.replies: list[Turn] = []
        self.segments: list[Segment] = []
        self.trace: list[dict[str, Any]] = []
        self.truncated = False
        self._seed = seed
        self._renderer = Renderer(policy.tokenizer)
        self._context: list[Message] = []  # the messages that the last segment stands for
        self._waiting: list[Message] = []
        self._last: Reply | None = None  # in this context; if None, the next begins a segment
        self._said: list[str] = []
        self._opening: int | None = None  # the length of the trace before the first reply
        self._speaking = self._closed = False

    def use_tools(self, tools: Tools) -> None:
        """Describe tools (or schemas) to the model, if its template can, before the first reply."""
        described = schemas(tools)
        if described == self._renderer.tools:
            return
        if self._last is not None:
            raise ValueError(
                "The tools of a conversation are fixed at its first reply. Call "
                "chat.use_tools(...) before chat.reply(), or after chat.restart(...)."
            )
        self._renderer = Renderer(self.policy.tokenizer, described)

    def system(self, content: str) -> None:
        self.add("system", content)

    def user(self, content: str) -> None:
        self.add("user", content)

    def tool(self, content: str, name: str | None = None) -> None:
        """Add the result of a tool; the results of a reply's calls in the order of the calls."""
        self.add("tool", content, **({"name": name} if name else {}))

    def add(self, role: str, content: str, **more: Any) -> None:
        """Add a message of any role, which the model reads before its next reply.

        An assistant's message is an example, which is not trained on: it and the messages that lead
        up to it are marked in ``trace``. ``example=True`` marks any other.
        """
        self._say([{"role": role, "content": content, **more}])

    def restart(self, messages: Sequence[Message] = ()) -> None:
        """Begin a new context: earlier replies are still trained on, but no longer visible."""
        self._check_silence()
        self._context, self._waiting, self._last = [], [], None
        self._say(messages)

    def close(self) -> None:
        """End the conversation: a reply still in progress is not recorded."""
        self._closed = True

    @property
    def turns(self) -> int:
        return len(self.replies)

    @property
    def turns_left(self) -> int:
        return self.max_turns - self.turns

    @property
    def prompt(self) -> str:
        """The last message before the model's first reply."""
        before = self.trace[: self._opening]
        return str(before[-1].get("content") or "") if before else ""

    @property
    def text(self) -> str:
        """The text of all replies."""
        return "\n".join(self._said)

    async def complete(self, messages: Sequence[Message], **options: Any) -> Reply:
        """Return the reply to a whole conversation, in a new context unless it extends this one."""
        known = [*self._context, *self._waiting]
        if self._last and len(messages) > len(known) and _same(messages[: len(known)], known):
            self._say(messages[len(known) :])
        else:
            self.restart(messages)
        return await self.reply(**options)

    async def reply(
        self, max_tokens: int | None = None, stop: str | Sequence[str] | None = None
    ) -> Reply:
        """Sample a reply. :class:`TurnLimit` and :class:`ContextFull` change nothing."""
        self._check_silence()
        if self.turns_left < 1:
            raise TurnLimit(
                f"The rollout has used its {self.max_turns} turns. End it while chat.turns_left "
                "is 0, or raise max_turns."
            )
        given = self._rendered()
        read = [*self.segments[-1].tokens, *given] if self._last else given
        room = self._room(len(read), max_tokens)
        stops = [stop] if isinstance(stop, str) else list(stop or self.policy.stop)
        self._speaking = True
        try:
            seed = seed_for(self._seed, self.turns)
            (answer,) = await self.policy.sample(read, 1, seed, room, stops)
        finally:
            self._speaking = False
        self._check_silence()
        return self._record(given, answer, stops)

    def _rendered(self) -> list[int]:
        """Return the tokens of the messages since the last reply."""
        last = self._last
        if not self._waiting:
            why = "The last message is already the model's" if last else "The conversation is empty"
            raise ValueError(f"{why}: add a message, as by chat.user(...), before chat.reply().")
        if last is None:
            return self._renderer.start(self._waiting)
        return self._renderer.follow(self._waiting, last.tokens, last.ended, last.tool_calls)

    def _room(self, used: int, max_tokens: int | None) -> int:
        wanted = self.policy.max_tokens if max_tokens is None else max_tokens
        if wanted < 1:
            raise ValueError(f"max_tokens is {wanted}; it must be at least 1.")
        if self.context_length is None:
            return wanted
        if used >= self.context_length:
            raise ContextFull(
                f"The conversation has {used} tokens, and context_length is "
                f"{self.context_length}. Shorten it with chat.restart(messages)."
            )
        return min(wanted, self.context_length - used)

    def _record(self, given: Sequence[int], answer: PolicyAnswer, stops: Sequence[str]) -> Reply:
        turn = make_segment(given, answer)
        if self._last is None:
            self.segments.append(turn)
        else:
            self.segments[-1].extend(turn)
        text, ended = self.policy.text(answer, stops), self.policy.has_ended(answer, stops)
        thinking = opens_thought(str(self.policy.tokenizer.decode(list(given[-_TAIL:]))))
        self._last = reply = Reply(text, answer.tokens, answer.truncated, ended, thinking)
        self._context += [*self._waiting, reply.message]
        self._waiting = []
        self._said.append(reply.text)
        end = len(self.segments[-1].tokens)
        self.replies.append(Turn(len(self.segments) - 1, end - len(answer.tokens), end))
        self.truncated |= reply.truncated
        if self._opening is None:
            self._opening = len(self.trace)
        calls = [
            {"name": c.name, "arguments": c.arguments, "error": c.error} for c in reply.tool_calls
        ]
        self.trace.append({**reply.message, **({"tool_calls": calls} if calls else {})})
        return reply

    def _say(self, messages: Sequence[Message]) -> None:
        self._check_silence()
        for message in deepcopy(list(messages)):
            self.trace.append({**message})
            example = message.pop("example", False)
            self._waiting.append(message)
            if message.get("role") != "assistant":
                continue
            if message.get("content") in self._said and not example:
                self.trace[-1]["repeated"] = True  # sampled earlier in this rollout
            else:
                self._mark_examples()

    def _mark_examples(self) -> None:
        """Mark an assistant message as an example, with the messages that it answers."""
        given = self.trace[-len(self._waiting) :]
        if self._last is not None:  # results of tools come first, and belong to its calls
            given = list(dropwhile(lambda message: message.get("role") == "tool", given))
        for message in given:
            if message.get("role") != "system" and "repeated" not in message:
                message["example"] = True

    def _check_silence(self) -> None:
        if self._closed:
            raise RuntimeError("The rollout is over: its conversation accepts no more messages.")
        if self._speaking:
            raise RuntimeError(
                "A reply is still being sampled: await chat.reply() before adding a message."
            )


def _same(messages: Sequence[Message], known: Sequence[Message]) -> bool:
    """Return whether messages are equal. A given reply may have more fields, such as its calls."""

    def words(message: Message) -> Message:
        kept = ("role", "content") if message.get("role") == "assistant" else message
        return {key: message.get(key) for key in kept if key != "example"}

    return [words(m) for m in messages] == [words(m) for m in known]
