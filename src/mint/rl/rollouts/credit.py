"""Credit: rewards of single turns or tokens, and advantages of rollouts and of their turns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mint.rewards import Score
from mint.rl.algorithms.advantage import advantages
from mint.rl.rollouts.rollout import Group, Rollout, Turn


@dataclass(frozen=True)
class TurnScore(Score):
    """A score whose total is the sum of one reward for each reply of the model."""

    turns: tuple[float, ...] = ()
    tokens: tuple[tuple[float, ...], ...] | None = None  # by reply, if tokens have rewards


def per_turn(rewards: Sequence[float], components: Mapping[str, float] | None = None) -> TurnScore:
    """Return the score of a rollout from one reward for each reply, in their order.

    >>> per_turn([0.0, 0.25, 1.0]).total
    1.25
    """
    paid = tuple(float(reward) for reward in rewards)
    return TurnScore(sum(paid), dict(components or {}), turns=paid)


def per_token(
    rewards: Sequence[Sequence[float]], components: Mapping[str, float] | None = None
) -> TurnScore:
    """Return the score of a rollout from one reward for each of ``reply.tokens`` of each reply.

    >>> per_token([[0.0, 0.25], [1.0]]).turns
    (0.25, 1.0)
    """
    paid = tuple(tuple(float(reward) for reward in reply) for reply in rewards)
    return replace(per_turn([sum(reply) for reply in paid], components), tokens=paid)


def keep_turn_rewards(rollout: Rollout, value: Any, discount: float, weighed: bool) -> None:
    """Keep the rewards of single turns, where an environment gives them."""
    if not isinstance(value, TurnScore):
        return
    if weighed:
        raise ValueError(
            "reward_weights applies to the components of a single reward, but this environment "
            "returns a reward per turn. Leave out reward_weights, and weight the rewards in the "
            "environment."
        )
    if len(value.turns) != len(rollout.turns):
        raise ValueError(
            f"{'per_turn' if value.tokens is None else 'per_token'} got {len(value.turns)} "
            f"rewards, but the model has replied {len(rollout.turns)} times. Pass one reward, or "
            "one list of them, for each chat.reply()."
        )
    rollout.turn_rewards, rollout.discount = list(value.turns), discount
    answers = (message for message in rollout.trace if message["role"] == "assistant")
    said = [message for message in answers if not {"example", "repeated"} & message.keys()]
    for message, reward in zip(said, value.turns, strict=True):
        message["reward"] = reward
    if value.tokens is not None:
        _split_turns(rollout, value.tokens)


def _split_turns(rollout: Rollout, rewards: Sequence[Sequence[float]]) -> None:
    """Make a turn of every token, with its own reward."""
    for turn, paid in zip(rollout.turns, rewards, strict=True):
        if len(paid) != turn.end - turn.begin:
            raise ValueError(
                f"per_token got {len(paid)} rewards for a reply of {turn.end - turn.begin} tokens. "
                "Pass one for each of reply.tokens."
            )
    places = [(turn.segment, at) for turn in rollout.turns for at in range(turn.begin, turn.end)]
    rollout.turns = [Turn(segment, at, at + 1) for segment, at in places]
    rollout.turn_rewards = [reward for paid in rewards for reward in paid]


def assign_advantages(groups: Sequence[Group], kind: str = "centre") -> None:
    """Give every rollout that counts its advantage, or one for each of its turns.

    In a group with rewards per turn, the returns of the same turn are compared. Means over a step
    count all rollouts equally: those with fewer turns than others repeat their last one.
    """
    columns = [group.returns_by_turn for group in groups]
    longest = max(map(len, columns), default=0)
    alike = [[*of_group, *of_group[-1:] * (longest - len(of_group))] for of_group in columns]
    found = iter(advantages([column for of_group in alike for column in of_group], kind))
    for group, of_group, all_of_group in zip(groups, columns, alike, strict=True):
        by_turn_G = [next(found) for _ in all_of_group][: len(of_group)]
        for index, rollout in enumerate(group.counted):
            advantages_T = [column[index] for column in by_turn_G]
            rollout.advantage, rollout.turn_advantages = advantages_T[0], None
            if len(advantages_T) > 1 and rollout.turns:  # one that ended before keeps its last
                last, turns = len(advantages_T) - 1, range(len(rollout.turns))
                rollout.turn_advantages = [advantages_T[min(t, last)] for t in turns]
