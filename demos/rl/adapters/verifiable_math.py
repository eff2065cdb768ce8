"""Math with answers that can be checked.

    python demos/rl/adapters/verifiable_math.py

The task is MINT_MATH_TASK: `arithmetic` (the default), a JSON-lines file with `question` and
`answer` in each row, as GSM8K has them, or `gym:NAME` for any task of reasoning-gym. Other settings
are those of rl_core.py.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from mint.rewards import arithmetic_tasks, check_answer, reasoning_gym

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rl_core import RLAdapter, RLConfig, run_grpo

EXAMPLE = "Q: What is 4 + 5?\nA: 9\n\n"


class VerifiableMathAdapter(RLAdapter):
    """Questions and answers. A reward is 1.0 for the right number, 0.5 within 10%."""

    def __init__(self, task: str = "arithmetic") -> None:
        self.task = task
        self.fixed = self._read(Path(task)) if task.endswith(".jsonl") else []

    def _read(self, file: Path) -> list[tuple[str, Any]]:
        rows = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
        return [(row["question"], row["answer"].split("####")[-1].strip()) for row in rows]

    def build_dataset(self) -> list[Any]:
        if self.fixed:
            return random.sample(self.fixed, len(self.fixed))
        seed = random.getrandbits(31)
        if self.task.startswith("gym:"):
            return list(reasoning_gym(self.task.removeprefix("gym:"), count=50, seed=seed))
        tasks = arithmetic_tasks(50, seed=seed, operations="+")
        return [(task.prompt, task.metadata["answer"]) for task in tasks]

    def make_prompt(self, sample: Any, tokenizer: Any) -> list[int]:
        question = sample[0] if isinstance(sample, tuple) else sample.prompt
        return list(tokenizer.encode(f"{EXAMPLE}Q: {question}\nA:"))

    def compute_reward(self, response: str, sample: Any) -> Any:
        if isinstance(sample, tuple):
            return check_answer(response, sample[1])
        return sample.score(response)

    def identity(self, sample: Any) -> str:
        return str(sample[0] if isinstance(sample, tuple) else sample.prompt)

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
        right = sum(reward >= 1.0 for reward in rewards) / len(rewards) if rewards else 0.0
        print(f"Step {step}: accuracy={right:.1%}, datums={num_datums}", flush=True)


if __name__ == "__main__":
    cfg = RLConfig.from_env()
    cfg.stop = ("\n",)
    run_grpo(VerifiableMathAdapter(os.environ.get("MINT_MATH_TASK", "arithmetic")), cfg)
