"""Countdown: reach a target with given numbers, as 9*(16 + 10) makes 234 from 16, 9 and 10.

    python demos/rl/adapters/countdown.py
    mint train +experiment=countdown model.start_from=tinker://...

The problems and the score are reasoning-gym's; the question is one line instead of its paragraph.
The experiment starts from a checkpoint of demos/cold_start.py, which was trained on a few hundred
solutions. docs/results.md shows what happens without it: most runs learn only to add.
"""

from __future__ import annotations

import math
import os
import re
import sys
from pathlib import Path
from typing import Any

from mint.rewards import Task
from mint.rl import RLConfig, run_grpo
from mint.rl.agents.tools import ToolError, calculate

sys.path.insert(0, str(Path(__file__).resolve().parent))
from verifiable_math import SEED_OF_EXAMPLES, VerifiableMathAdapter

USES_NUMBERS = 0.1
"""The least partial credit for an expression of the given numbers."""


class CountdownAdapter(VerifiableMathAdapter):
    """reasoning-gym's `countdown`.

    With `partial_credit`, an expression of the given numbers with a wrong result scores 0.1 to 0.5,
    depending on how close the result is to the target; reasoning-gym gives 0.05. The holdout is
    always scored by reasoning-gym.
    """

    kind = "countdown"

    def __init__(
        self,
        shots: int = 0,
        options: dict[str, Any] | None = None,
        examples_seed: int = SEED_OF_EXAMPLES,
        partial_credit: bool = False,
    ) -> None:
        super().__init__("gym:countdown", shots, options, examples_seed)
        self.partial_credit = partial_credit
        self.examples = "".join(
            f"{question(shown)} {shown.metadata['answer']}\n" for shown in self.shown
        )

    def make_prompt(self, sample: Task, tokenizer: Any) -> list[int]:
        return list(tokenizer.encode(self.examples + question(sample)))

    def compute_reward(self, response: str, sample: Task) -> float:
        score = sample.score(response).total
        if not self.partial_credit or score == 1.0:
            return score
        numbers, target = puzzle(sample)
        if sorted(int(used) for used in re.findall(r"\d+", response)) != sorted(numbers):
            return score
        try:
            result = float(calculate(response.strip()))
        except ToolError:
            return score
        return USES_NUMBERS + 0.4 * nearness(result, target)

    def holdout_reward(self, response: str, sample: Task) -> Any:
        return sample.score(response)

    def identity(self, sample: Task) -> str:
        """Treat the same numbers and target as one problem, whatever their order or wording."""
        numbers, target = puzzle(sample)
        return f"{sorted(numbers)} {target}"


def puzzle(sample: Task) -> tuple[list[int], int]:
    """Return the numbers and the target of a problem."""
    given = sample.metadata["entry"]["metadata"]
    return given["numbers"], given["target"]


def question(sample: Task) -> str:
    """Return the prompt: a problem in one line, to be continued with the expression."""
    numbers, target = puzzle(sample)
    return f"Numbers: {', '.join(map(str, numbers))}. Target: {target}. Expression:"


def nearness(result: float, target: int) -> float:
    """Return how close a result is to the target: 1 when equal, 0 beyond a factor of 10.

    >>> round(nearness(234, 230), 2), round(nearness(35, 230), 2), nearness(-3, 230)
    (0.99, 0.18, 0.0)
    """
    if result <= 0:
        return 0.0
    return max(0.0, 1.0 - abs(math.log10(result / target)))


if __name__ == "__main__":
    cfg = RLConfig.from_env({"MINT_RL_STOP": "\n", **os.environ})
    run_grpo(CountdownAdapter(shots=3), cfg)
