"""Streams tokens as text, up to a stop string.

``DecodeStream`` of ``tokenizers`` is not used: it cannot be flushed, so an answer that ends within
a character would lose its last tokens, and it waits without limit for the rest of a character.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from mint.service.text.tokenizer import BROKEN, ModelTokenizer

_CONTEXT = 8  # prompt tokens that affect how the first new one is decoded
_MOST_UNDECIDED = 64  # the most tokens that wait for the rest of a character


@dataclass(frozen=True)
class TokenScore:
    """A token with its logprob, its most likely alternatives, and the offset of its text."""

    token: int
    logprob: float | None
    top: list[tuple[int, float]]
    offset: int = 0


@dataclass
class TextStream:
    """Returns the text of tokens as soon as it is certain.

    It holds back the bytes of incomplete characters and whatever may be the start of a stop string,
    so that text that was returned never changes.
    """

    tokenizer: ModelTokenizer
    stops: Sequence[str] = ()
    prompt: Sequence[int] = ()
    length: int = 0
    """The number of characters that were returned."""
    is_stopped: bool = False
    _held: str = ""
    _scores: deque[TokenScore] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._tokens = list(self.prompt[-_CONTEXT:])
        self._from, self._decided = 0, len(self._tokens)

    def feed(self, score: TokenScore) -> tuple[str, list[TokenScore]]:
        """Add a token; return the text and the tokens that are certain now."""
        if self.is_stopped:
            return "", []
        offset = self.length + len(self._held)
        self._scores.append(TokenScore(score.token, score.logprob, score.top, offset))
        self._tokens.append(score.token)
        self._held += self._new_text(is_last=False)
        return self._release(is_last=False)

    def finish(self) -> tuple[str, list[TokenScore]]:
        """Return the text that was held back, after the last token."""
        if not self.is_stopped:
            self._held += self._new_text(is_last=True)
        return self._release(is_last=True)

    def _new_text(self, is_last: bool) -> str:
        before = self.tokenizer.decode(self._tokens[self._from : self._decided])
        text = self.tokenizer.decode(self._tokens[self._from :])
        undecided = len(self._tokens) - self._decided
        if text.endswith(BROKEN) and not is_last and undecided < _MOST_UNDECIDED:
            return ""
        self._from, self._decided = self._decided, len(self._tokens)
        return text[len(before) :]

    def _release(self, is_last: bool) -> tuple[str, list[TokenScore]]:
        found = [at for stop in self.stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.is_stopped = True
            text, self._held = self._held[: min(found)], ""
        else:
            keep = 0 if is_last or self.is_stopped else self._possible_stop()
            text = self._held[: len(self._held) - keep]
            self._held = self._held[len(text) :]
        self.length += len(text)
        everything, given = is_last and not self.is_stopped, []
        while self._scores and (everything or self._scores[0].offset < self.length):
            given.append(self._scores.popleft())
        return text, given

    def _possible_stop(self) -> int:
        """Return how many characters at the end may be the start of a stop string."""
        longest = max((len(stop) for stop in self.stops), default=0) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self.stops):
                return size
        return 0
