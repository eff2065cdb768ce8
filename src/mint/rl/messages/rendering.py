"""Render messages to tokens with a model's chat template, at the start and after each reply."""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from mint.rl.algorithms.sequences import common_prefix
from mint.rl.messages.tool_calls import ToolCall
from mint.tokenizer import plain_tokenizer

Message = dict[str, Any]
_MARK = "MARK0F4B7"  # stands for the model's reply while the template renders what comes after it
_TEXT = "TEXT0F4B7"  # stands for a message's content, to check that the template renders it
_ASKED: Message = {"role": "user", "content": "-"}
_SAID: Message = {"role": "assistant", "content": _MARK}


def special_tokens(tokenizer: Any) -> frozenset[int]:
    """Return the special tokens, such as the end of a turn."""
    added: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    marks = {token for token, entry in added.items() if entry.special}
    return frozenset(marks.union(getattr(tokenizer, "all_special_ids", [])))


class TemplateRefused(ValueError):
    """The model's chat template cannot render this conversation."""


class ToolsNotShown(UserWarning):
    """The prompt mentions none of the tools that the model should call."""


class Renderer:
    """Turns messages into tokens, without ever re-rendering the model's replies."""

    def __init__(self, tokenizer: Any, tools: Sequence[dict[str, Any]] = ()) -> None:
        self.tokenizer = plain_tokenizer(tokenizer)
        self.tools = list(tools)
        self.has_template = bool(getattr(tokenizer, "chat_template", None))

    def start(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of a conversation up to where the model replies."""
        self._check_shown([], messages)
        text = self._text(messages)
        self._warn_of_hidden_tools(text)
        return self._encoded(text, alone=not self.has_template)

    def _warn_of_hidden_tools(self, prompt: str) -> None:
        """Warn, at the line that asks for the reply, if a template has left all tools out."""
        names = [each.get("function", each).get("name", "") for each in self.tools]
        if self.has_template and names and not any(name in prompt for name in names):
            warnings.warn(
                "The model's chat template does not render tools, so the model does not see "
                f"{', '.join(names)}. Describe them, and how to call them, with chat.system(...).",
                ToolsNotShown,
                stacklevel=5,
            )

    def follow(
        self,
        messages: Sequence[Message],
        said: Sequence[int],
        ended: bool,
        calls: Sequence[ToolCall] = (),
    ) -> list[int]:
        """Return the tokens between a reply of the tokens ``said`` and the next reply.

        They begin with what closes a turn, unless the model has ``ended`` it. Results of tools get
        the names and ids of the reply's ``calls``, in order.
        """
        labels = iter({"name": c.name, "tool_call_id": _id(c, i)} for i, c in enumerate(calls))
        named = [{**next(labels, {}), **m} if m["role"] == "tool" else m for m in messages]
        if calls and named[0]["role"] == "tool":
            with suppress(TemplateRefused):
                return self._after_calls(named, said[-1], ended, calls)
        self._check_shown([_ASKED, _SAID], named)
        tokens = self._after_mark([_ASKED, _SAID, *named])
        return tokens[self._closing(tokens, said[-1]) :] if ended else tokens

    def _after_calls(
        self, results: Sequence[Message], end: int, ended: bool, calls: Sequence[ToolCall]
    ) -> list[int]:
        """Render results after the calls that they answer, since templates look at these."""
        given = []
        for index, call in enumerate(calls):
            arguments = {"-": _MARK} if index == len(calls) - 1 else call.arguments
            function = {"name": call.name, "arguments": arguments}
            given.append({"id": _id(call, index), "type": "function", "function": function})
        called = [_ASKED, {"role": "assistant", "content": "", "tool_calls": given}]
        self._check_shown(called, results)
        turn = self._after_mark(called, prompts=False)
        tokens = self._after_mark([*called, *results])
        shared = common_prefix(turn, tokens)
        closes = [at for at in range(shared) if tokens[at] in self._marks]
        if not closes:
            raise _refusal(called, "no special token closes a turn with calls")
        if ended:
            at = shared + self._first_mark(tokens[shared:])
            if tokens[at : at + 1] == [end] and not self._decode(tokens[shared:at]).strip():
                return tokens[at + 1 :]
            closes = [at for at in closes if tokens[at] == end] or closes
        elif tokens[closes[-1]] != end:
            return tokens[closes[-1] :]
        return tokens[closes[-1] + 1 :]

    def _closing(self, tokens: Sequence[int], end: int) -> int:
        """Return how many tokens close a turn that the model has closed itself."""
        shared = tokens[: common_prefix(tokens, self._tail)]
        if marks := [at for at, token in enumerate(shared) if token in self._marks]:
            return marks[-1] + 1
        at = self._first_mark(tokens)
        if at == len(tokens) or self._decode(tokens[:at]).strip():
            return 0
        closes_turns = not self._marks.isdisjoint(self._tail)
        return at + 1 if tokens[at] == end or closes_turns else 0

    @cached_property
    def _tail(self) -> list[int]:
        """Return what the template writes after the last reply of a conversation."""
        return self._after_mark([_ASKED, _SAID], prompts=False)

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(tokens))

    @cached_property
    def _marks(self) -> frozenset[int]:
        return special_tokens(self.tokenizer)

    def _first_mark(self, tokens: Sequence[int]) -> int:
        return next((i for i, token in enumerate(tokens) if token in self._marks), len(tokens))

    def _check_shown(self, before: Sequence[Message], messages: Sequence[Message]) -> None:
        """Raise :class:`TemplateRefused` if the template leaves a message out."""
        given = [m for m in messages if m.get("role") != "assistant" and m.get("content")]
        probes = [{**m, "content": _TEXT} if m in given else m for m in messages]
        if self._text([*before, *probes]).count(_TEXT) < len(given):
            raise _refusal([*before, *messages], "it leaves some of them out")

    def _after_mark(self, messages: Sequence[Message], prompts: bool = True) -> list[int]:
        """Return the tokens after the model's reply: some tokenizers mark where a text begins."""
        _, found, text = self._text(messages, prompts).rpartition(_MARK)
        if not found:
            raise _refusal(messages, "it leaves out what the assistant said")
        before, both = self._encoded(_MARK), self._encoded(_MARK + text)
        return both[len(before) :] if both[: len(before)] == before else self._encoded(text)

    def _text(self, messages: Sequence[Message], prompts: bool = True) -> str:
        if not self.has_template:
            lines = [f"{m['role'].capitalize()}: {m['content']}\n" for m in messages]
            return "".join(lines) + ("Assistant:" if prompts else "")
        options: dict[str, Any] = {"tools": self.tools} if self.tools else {}
        try:
            rendered = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=prompts, **options
            )
        except Exception as error:
            raise _refusal(messages, str(error)) from error
        return str(rendered)

    def _encoded(self, text: str, alone: bool = False) -> list[int]:
        """``alone``: with the tokens that the model expects at the beginning of plain text."""
        return [int(token) for token in self.tokenizer.encode(text, add_special_tokens=alone)]


def _id(call: ToolCall, index: int) -> str:
    """Return the call's own id, or one of nine letters and digits, as some templates want."""
    return call.id or f"call{index:05}"


def _refusal(messages: Sequence[Message], reason: str) -> TemplateRefused:
    roles = ", ".join(str(message.get("role")) for message in messages)
    return TemplateRefused(
        f"The model's chat template rejects these messages ({roles}): {reason}. If it does not "
        "support system or tool messages, use chat.user(...)."
    )
