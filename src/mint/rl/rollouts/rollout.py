"""Rollouts in groups, token by token as they were sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import compress
from typing import Any

from mint.rl.algorithms.advantage import by_turn, has_signal, returns_to_go
from mint.rl.rollouts.failures import CodeFailure

Kept = tuple[int, ...]  # the tokens that one was sampled from; none means all


class MissingLogprobs(RuntimeError):
    """The service sent tokens without logprobs: the importance ratio is unknown."""


@dataclass
class Segment:
    """Tokens in one context. Those that the policy sampled have logprobs; the rest is given.

    Sampled tokens also have the version of their weights and the tokens they were chosen from.

    >>> segment = Segment.of([5, 6], [7], [-0.5], version=3)
    >>> segment.tokens, segment.sampled, segment.logprobs, segment.versions
    ([5, 6, 7], [False, False, True], [0.0, 0.0, -0.5], [None, None, 3])
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    versions: list[int | None] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        prompt: Sequence[int],
        answer: Sequence[int],
        logprobs: Sequence[float] | None,
        version: int = 0,
        kept: Sequence[Kept] | None = None,
    ) -> Segment:
        """Return the segment of a prompt and one answer to it with its logprobs."""
        given, count = len(prompt), len(answer)
        if logprobs is None or len(logprobs) != count:
            got = "no" if logprobs is None else str(len(logprobs))
            raise MissingLogprobs(
                f"The service sent {got} logprobs for {count} tokens. The importance ratio "
                "needs them; use a service that returns logprobs."
            )
        return cls(
            [*prompt, *answer],
            [*[0.0] * given, *logprobs],
            [*[False] * given, *[True] * count],
            [*[None] * given, *[version] * count],
            [*[()] * given, *([()] * count if kept is None else kept)],
        )

    def extend(self, more: Segment) -> None:
        for part in fields(self):
            getattr(self, part.name).extend(getattr(more, part.name))

    @property
    def sampled_count(self) -> int:
        return sum(self.sampled)

    def trimmed(self) -> Segment:
        """Return a copy without the tokens after the last sampled one: nothing is learned there."""
        if True not in self.sampled:
            return Segment()
        end = len(self.sampled) - self.sampled[::-1].index(True)
        return Segment(*(getattr(self, part.name)[:end] for part in fields(self)))


@dataclass(frozen=True)
class Turn:
    """The tokens of one reply: in a segment, from ``begin`` up to ``end``."""

    segment: int
    begin: int
    end: int


@dataclass
class Rollout:
    """One answer, or one conversation. Without a reward it is left out of training."""

    segments: list[Segment]
    text: str
    reward: float | None = None
    components: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # why a component has its value
    truncated: bool = False
    error: str | None = None
    failures: list[CodeFailure] = field(default_factory=list)  # failures of the reward and of tools
    trace: list[dict[str, Any]] = field(default_factory=list)
    prompt: str = ""  # for a conversation: the last message before the first reply
    penalty: float = 0.0  # for length and KL; added to the reward before advantages
    masked: bool = False  # left out of training, though it has a reward
    advantage: float = 0.0
    sampled_at: float | None = None  # seconds since the epoch
    turns: list[Turn] = field(default_factory=list)  # for a conversation: its replies
    turn_rewards: list[float] | None = None  # one for each reply; their sum is the reward
    discount: float = 1.0  # factor for the rewards of later turns
    turn_advantages: list[float] | None = None  # one for each reply; replaces ``advantage``

    @property
    def returns(self) -> list[float]:
        """The return of every turn, with the penalty at the last; or the single reward."""
        if not self.turn_rewards:
            return [self.total]
        *before, last = self.turn_rewards
        return returns_to_go([*before, last + self.penalty], self.discount)

    @property
    def has_advantage(self) -> bool:
        """Whether any advantage is not zero."""
        return any(self.turn_advantages or []) or self.advantage != 0.0

    def token_advantages(self, index: int) -> list[float]:
        """Return the advantage of every token of a segment; given tokens have none."""
        segment = self.segments[index]
        if self.turn_advantages is None:
            return [self.advantage if sampled else 0.0 for sampled in segment.sampled]
        found = [0.0] * len(segment.tokens)
        for turn, advantage in zip(self.turns, self.turn_advantages, strict=True):
            if turn.segment == index:
                found[turn.begin : turn.end] = [advantage] * (turn.end - turn.begin)
        return found

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation, as ``role``, ``content`` and ``tool_calls``. Empty for a plain prompt.

        An assistant's message without ``example`` or ``repeated`` was sampled and is trained on.
        """
        return self.trace

    @property
    def traceback(self) -> str | None:
        """The tracebacks of this rollout's reward and tools, where they failed."""
        return "\n".join(f.traceback or f.error for f in self.failures) or None

    @property
    def applies(self) -> bool:
        """Whether the reward applies to this rollout: it has one, or computing it failed."""
        return self.reward is not None or self.error is not None

    @property
    def counts(self) -> bool:
        """Whether this rollout takes part in training."""
        return self.reward is not None and not self.masked

    @property
    def total(self) -> float:
        """The reward that advantages are computed from."""
        assert self.reward is not None
        return self.reward + self.penalty

    @property
    def length(self) -> int:
        return sum(segment.sampled_count for segment in self.segments)

    @property
    def versions(self) -> list[int]:
        """The version of the weights for each sampled token."""
        return [v for segment in self.segments for v in segment.versions if v is not None]

    @property
    def sampled_logprobs(self) -> list[float]:
        return [x for segment in self.segments for x in compress(segment.logprobs, segment.sampled)]


@dataclass
class Group:
    """The rollouts of one prompt."""

    sample: Any
    identity: str
    prompt: str
    rollouts: list[Rollout]
    version: int = 0  # the oldest weights that sampled a token of it

    @property
    def counted(self) -> list[Rollout]:
        return [rollout for rollout in self.rollouts if rollout.counts]

    @property
    def rewards(self) -> list[float]:
        """The rewards that could be computed."""
        return [rollout.reward for rollout in self.rollouts if rollout.reward is not None]

    @property
    def returns_by_turn(self) -> list[list[float]]:
        """The returns that rollouts are compared by, for every turn or for the one reward."""
        return by_turn([rollout.returns for rollout in self.counted])

    def kind(self, threshold: float) -> str:
        """Return "signal", or else "all_right" (``threshold`` or more), "all_wrong" (0 or less),
        "all_equal" between the two, or "unscored" when no answer counts."""
        if any(has_signal(returns_G) for returns_G in self.returns_by_turn):
            return "signal"
        if not self.counted:
            return "unscored"
        rewards = [rollout.reward or 0.0 for rollout in self.counted]
        if min(rewards) >= threshold:
            return "all_right"
        return "all_wrong" if max(rewards) <= 0.0 else "all_equal"

    def success(self, threshold: float) -> float:
        """Return the share of right answers among those that were scored."""
        rewards = self.rewards
        return sum(reward >= threshold for reward in rewards) / len(rewards) if rewards else 0.0
