"""Scores from comparisons: Bradley and Terry's model."""

import math
from collections.abc import Mapping

_ROUNDS = 10_000
_CLOSE = 1e-10


def bradley_terry(
    wins: Mapping[tuple[int, int], float], players: int, prior: float = 0.1
) -> list[float]:
    """The log-strength of each player, mean zero, from ``wins[winner, loser]`` (a tie is a half).

    ``prior`` adds that many ties between every two players, which keeps scores finite when one
    wins everything.

    >>> [round(score, 2) for score in bradley_terry({(0, 1): 3, (1, 0): 1}, players=2, prior=0.0)]
    [0.55, -0.55]
    """
    if players < 1 or prior < 0:
        raise ValueError("bradley_terry() needs players >= 1 and prior >= 0.")
    won = [[prior / 2 if a != b else 0.0 for b in range(players)] for a in range(players)]
    for (winner, loser), count in wins.items():
        if winner == loser or count < 0:
            raise ValueError(f"Player {winner} cannot beat {loser} {count} times.")
        won[winner][loser] += count
    strengths = [1.0] * players
    for _ in range(_ROUNDS):
        new = _normal([_improved(player, won, strengths) for player in range(players)])
        moved = max(abs(a - b) / b for a, b in zip(new, strengths, strict=True))
        strengths = new
        if moved < _CLOSE:
            break
    return [math.log(strength) for strength in strengths]


def _improved(player: int, won: list[list[float]], strengths: list[float]) -> float:
    """One step of minorisation and maximisation."""
    wins = sum(won[player])
    games = sum(
        (won[player][other] + won[other][player]) / (strengths[player] + strengths[other])
        for other in range(len(strengths))
        if other != player
    )
    return max(wins / games, 1e-12) if games else strengths[player]


def _normal(strengths: list[float]) -> list[float]:
    mean = sum(map(math.log, strengths)) / len(strengths)
    return [strength / math.exp(mean) for strength in strengths]
