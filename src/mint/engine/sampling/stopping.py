"""Detect the end of a continuation: a token, or a string in its text."""

from dataclasses import dataclass
from typing import Any, Self

from mint.engine.messages import ModelInfo, SampleRequest

_MARGIN = 8  # tokens decoded before the part that could hold a stop string


@dataclass(frozen=True)
class StopRule:
    """The stops of one request."""

    tokens: frozenset[int]
    strings: tuple[str, ...]
    tokenizer: Any

    @classmethod
    def of(cls, request: SampleRequest, info: ModelInfo, tokenizer: Any) -> Self:
        """Add the model's end tokens to a request's stops, unless nothing is to stop it."""
        stops = request.stop or []
        ids = {stop for stop in stops if isinstance(stop, int)}
        if request.stop != []:
            ids.update(info.eos_token_ids)
        strings = tuple(stop for stop in stops if isinstance(stop, str))
        return cls(frozenset(ids), strings, tokenizer)

    def reached(self, tokens: list[int]) -> bool:
        """Return whether the newest token ends the continuation."""
        if tokens[-1] in self.tokens:
            return True
        if not self.strings:
            return False
        # A token is at least a byte, so a stop string lies within as many tokens as it has bytes.
        window = max(len(string.encode()) for string in self.strings) + _MARGIN
        text = self.tokenizer.decode(tokens[-window:], skip_special_tokens=False)
        return any(string in text for string in self.strings)
