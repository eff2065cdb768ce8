"""The answers of the OpenAI API, whole or in chunks: one class for each of its two forms."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from mint.service.api.openai.inference import Piece, TokenCounts
from mint.service.text.stream import TokenScore
from mint.service.text.tokenizer import ModelTokenizer


class Form(Protocol):
    """The conversion of pieces to the objects that a client expects."""

    def whole(
        self, pieces: Iterable[Piece], choices: int, usage: TokenCounts
    ) -> dict[str, Any]: ...
    def opening(self, choice: int) -> dict[str, Any] | None: ...
    def chunk(self, piece: Piece) -> dict[str, Any]: ...
    def usage_chunk(self, usage: TokenCounts) -> dict[str, Any]: ...


@dataclass
class _Common:
    model: str
    tokenizer: ModelTokenizer
    with_logprobs: bool
    created: int = field(default_factory=lambda: int(time.time()))
    number: str = field(default_factory=lambda: uuid.uuid4().hex)

    def _object(self, prefix: str, kind: str, choices: list[Any]) -> dict[str, Any]:
        return {
            "id": f"{prefix}-{self.number}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


class ChatForm(_Common):
    """``chat.completion`` and ``chat.completion.chunk``."""

    def whole(self, pieces: Iterable[Piece], choices: int, usage: TokenCounts) -> dict[str, Any]:
        listed = []
        for choice, text, scores, reason in _by_choice(pieces, choices):
            message = {"role": "assistant", "content": text, "refusal": None}
            listed.append(
                {
                    "index": choice,
                    "message": message,
                    "logprobs": self._logprobs(scores),
                    "finish_reason": reason,
                }
            )
        whole = self._object("chatcmpl", "chat.completion", listed)
        return {**whole, "usage": _usage(usage)}

    def opening(self, choice: int) -> dict[str, Any]:
        return self._chunk(choice, {"role": "assistant", "content": ""}, None, None)

    def chunk(self, piece: Piece) -> dict[str, Any]:
        delta = {"content": piece.text} if piece.text or piece.finish_reason is None else {}
        return self._chunk(piece.choice, delta, self._logprobs(piece.scores), piece.finish_reason)

    def usage_chunk(self, usage: TokenCounts) -> dict[str, Any]:
        return {
            **self._object("chatcmpl", "chat.completion.chunk", []),
            "usage": _usage(usage),
        }

    def _chunk(
        self, choice: int, delta: dict[str, Any], logprobs: Any, reason: str | None
    ) -> dict[str, Any]:
        entry = {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._object("chatcmpl", "chat.completion.chunk", [entry])

    def _logprobs(self, scores: list[TokenScore]) -> dict[str, Any] | None:
        if not self.with_logprobs:
            return None
        return {"content": [self._entry(score) for score in scores], "refusal": None}

    def _entry(self, score: TokenScore) -> dict[str, Any]:
        top = [self._token(token, logprob) for token, logprob in score.top]
        return {**self._token(score.token, score.logprob), "top_logprobs": top}

    def _token(self, token: int, logprob: float | None) -> dict[str, Any]:
        return {
            "token": self.tokenizer.text_of(token),
            "bytes": self.tokenizer.bytes_of(token),
            "logprob": logprob,
        }


class CompletionForm(_Common):
    """``text_completion``, whole and in chunks."""

    def whole(self, pieces: Iterable[Piece], choices: int, usage: TokenCounts) -> dict[str, Any]:
        listed = [
            self._choice(choice, text, scores, reason)
            for choice, text, scores, reason in _by_choice(pieces, choices)
        ]
        return {**self._object("cmpl", "text_completion", listed), "usage": _usage(usage)}

    def opening(self, choice: int) -> None:
        return None

    def chunk(self, piece: Piece) -> dict[str, Any]:
        entry = self._choice(piece.choice, piece.text, piece.scores, piece.finish_reason)
        return self._object("cmpl", "text_completion", [entry])

    def usage_chunk(self, usage: TokenCounts) -> dict[str, Any]:
        return {**self._object("cmpl", "text_completion", []), "usage": _usage(usage)}

    def _choice(
        self, choice: int, text: str, scores: list[TokenScore], reason: str | None
    ) -> dict[str, Any]:
        return {
            "index": choice,
            "text": text,
            "logprobs": self._logprobs(scores) if self.with_logprobs else None,
            "finish_reason": reason,
        }

    def _logprobs(self, scores: list[TokenScore]) -> dict[str, Any]:
        text_of = self.tokenizer.text_of
        return {
            "tokens": [text_of(score.token) for score in scores],
            "token_logprobs": [score.logprob for score in scores],
            "top_logprobs": [
                {text_of(token): logprob for token, logprob in score.top} or None
                for score in scores
            ],
            "text_offset": [score.offset for score in scores],
        }


def _by_choice(
    pieces: Iterable[Piece], choices: int
) -> list[tuple[int, str, list[TokenScore], str | None]]:
    """Each choice with its joined text and scores, and the reason of its last piece."""
    texts: list[list[str]] = [[] for _ in range(choices)]
    scores: list[list[TokenScore]] = [[] for _ in range(choices)]
    reasons: list[str | None] = [None] * choices
    for piece in pieces:
        texts[piece.choice].append(piece.text)
        scores[piece.choice].extend(piece.scores)
        reasons[piece.choice] = piece.finish_reason
    return [(i, "".join(texts[i]), scores[i], reasons[i]) for i in range(choices)]


def _usage(usage: TokenCounts) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
    }
