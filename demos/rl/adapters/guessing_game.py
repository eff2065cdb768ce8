"""A small text game: guess a number from the hints "higher" and "lower".

    python demos/rl/adapters/guessing_game.py

The fewer guesses are needed, the higher the reward.
"""

from __future__ import annotations

import os
import random
import re
import sys
from pathlib import Path

from mint.rewards import Score
from mint.rl import Chat

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rl_core import RLConfig, run_grpo

FOUND = 0.6
"""Only games in which the number was found score this much."""


class GuessingGameEnvironment:
    """The host of the game, who thinks of a number from 1 to ``highest``."""

    def __init__(self, highest: int = 15) -> None:
        self.highest = highest

    def build_dataset(self) -> list[int]:
        return [random.randint(1, self.highest) for _ in range(50)]

    async def rollout(self, task: int, chat: Chat) -> Score:
        chat.user(f"I think of a number from 1 to {self.highest}. Guess it. Write only a number.")
        nearest = self.highest
        while chat.turns_left:
            reply = await chat.reply()
            found = re.search(r"\d{1,6}", reply.text)
            if not found:
                chat.user("Write a number.")
                continue
            guess = int(found[0])
            nearest = min(nearest, abs(guess - task))
            if guess == task:
                break
            chat.user("Higher." if guess < task else "Lower.")
        solved = float(nearest == 0)
        speed = (1 - (chat.turns - 1) / chat.max_turns) * solved
        close = 0.2 * (1 - nearest / self.highest)
        return Score(0.4 * solved + 0.4 * speed + close, {"solved": solved, "speed": speed})

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
        found = sum(reward >= FOUND for reward in rewards) / max(1, len(rewards))
        mean = sum(rewards) / max(1, len(rewards))
        print(f"Step {step}: found={found:.1%}, reward={mean:.3f}, datums={num_datums}", flush=True)


DEFAULTS = {
    "MINT_RL_MAX_TOKENS": "8",
    "MINT_RL_MAX_TURNS": "5",
    "MINT_RL_SUCCESS_THRESHOLD": str(FOUND),
}

if __name__ == "__main__":
    run_grpo(GuessingGameEnvironment(), RLConfig.from_env({**DEFAULTS, **os.environ}))
