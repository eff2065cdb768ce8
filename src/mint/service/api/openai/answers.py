"""Responses of the OpenAI API, complete or in chunks: completions and chat completions."""

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, ClassVar

from mint.service.api.openai.inference import Piece, PreparedRequest
from mint.service.text.stream import TokenScore


@dataclass
class Form:
    """Converts pieces of text to the objects that a client expects."""

    job: PreparedRequest
    created: int = field(default_factory=lambda: int(time.time()))
    number: str = field(default_factory=lambda: uuid.uuid4().hex)
    prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def whole(self, pieces: Iterable[Piece]) -> dict[str, Any]:
        listed = []
        for choice, group in groupby(pieces, key=lambda piece: piece.choice):
            found = list(group)
            text = "".join(piece.text for piece in found)
            scores = [score for piece in found for score in piece.scores]
            listed.append(self._choice(Piece(choice, text, scores, found[-1].finish_reason)))
        return {**self._object(self.kind, listed), "usage": self.job.usage}

    def opening(self, choice: int) -> dict[str, Any] | None:
        return None

    def chunk(self, piece: Piece) -> dict[str, Any]:
        return self._object(self.chunk_kind, [self._part(piece)])

    def usage_chunk(self) -> dict[str, Any]:
        return {**self._object(self.chunk_kind, []), "usage": self.job.usage}

    def _choice(self, piece: Piece) -> dict[str, Any]:
        raise NotImplementedError

    def _part(self, piece: Piece) -> dict[str, Any]:
        return self._choice(piece)

    def _logprobs(self, scores: list[TokenScore]) -> dict[str, Any]:
        raise NotImplementedError

    def _entry(self, piece: Piece, **content: Any) -> dict[str, Any]:
        return {
            "index": piece.choice,
            **content,
            "logprobs": self._logprobs(piece.scores) if self.job.is_scored else None,
            "finish_reason": piece.finish_reason,
        }

    def _object(self, kind: str, choices: list[Any]) -> dict[str, Any]:
        return {
            "id": f"{self.prefix}-{self.number}",
            "object": kind,
            "created": self.created,
            "model": self.job.request.model,
            "choices": choices,
        }


class ChatForm(Form):
    """``chat.completion`` and ``chat.completion.chunk``."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self, choice: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        entry = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._object(self.chunk_kind, [entry])

    def _choice(self, piece: Piece) -> dict[str, Any]:
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return self._entry(piece, message=message)

    def _part(self, piece: Piece) -> dict[str, Any]:
        says_something = piece.text or piece.finish_reason is None
        return self._entry(piece, delta={"content": piece.text} if says_something else {})

    def _logprobs(self, scores: list[TokenScore]) -> dict[str, Any]:
        content = [
            {
                **self._token(score.token, score.logprob),
                "top_logprobs": [self._token(token, logprob) for token, logprob in score.top],
            }
            for score in scores
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float | None) -> dict[str, Any]:
        return {
            "token": self.job.tokenizer.decode_token(token),
            "bytes": self.job.tokenizer.decode_token_bytes(token),
            "logprob": logprob,
        }


class CompletionForm(Form):
    """``text_completion``, complete and in chunks."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def _choice(self, piece: Piece) -> dict[str, Any]:
        return self._entry(piece, text=piece.text)

    def _logprobs(self, scores: list[TokenScore]) -> dict[str, Any]:
        decode_token = self.job.tokenizer.decode_token
        return {
            "tokens": [decode_token(score.token) for score in scores],
            "token_logprobs": [score.logprob for score in scores],
            "top_logprobs": [
                {decode_token(token): logprob for token, logprob in score.top} or None
                for score in scores
            ],
            "text_offset": [score.offset for score in scores],
        }
