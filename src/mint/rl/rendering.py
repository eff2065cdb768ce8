"""Messages as tokens, by a model's chat template: a beginning, and what follows a reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mint.rl.adapter import plain_tokenizer

Message = dict[str, Any]
_MARK = "MARK0F4B7"
"""Stands for the model's reply while the template renders what comes after it."""


class Renderer:
    """Turns messages into tokens, without ever rendering the model's own replies again.

    A model without a chat template gets ``Role: content`` lines.
    """

    def __init__(self, tokenizer: Any, tools: Sequence[dict[str, Any]] = ()) -> None:
        self.tokenizer = plain_tokenizer(tokenizer)
        self.tools = list(tools)
        self.has_template = bool(getattr(tokenizer, "chat_template", None))

    def start(self, messages: Sequence[Message]) -> list[int]:
        """The tokens of a conversation up to where the model replies."""
        return self._encoded(self._text(messages))

    def follow(self, messages: Sequence[Message], last: int | None) -> list[int]:
        """The tokens between a reply that ended with the token ``last`` and the next reply.

        They begin with the end of the turn, unless the model has written it itself.
        """
        probe = [{"role": "user", "content": "-"}, {"role": "assistant", "content": _MARK}]
        _, found, after = self._text([*probe, *messages]).rpartition(_MARK)
        if not found:
            raise ValueError("The chat template drops what the assistant said.")
        tokens = self._encoded(after)
        return tokens[1:] if tokens and tokens[0] == last else tokens

    def _text(self, messages: Sequence[Message]) -> str:
        if not self.has_template:
            lines = [f"{m['role'].capitalize()}: {m['content']}\n" for m in messages]
            return "".join(lines) + "Assistant:"
        options: dict[str, Any] = {"tools": self.tools} if self.tools else {}
        return str(
            self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True, **options
            )
        )

    def _encoded(self, text: str) -> list[int]:
        return [int(token) for token in self.tokenizer.encode(text, add_special_tokens=False)]
