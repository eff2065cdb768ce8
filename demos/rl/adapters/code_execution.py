"""Programs that pass tests.

    python demos/rl/adapters/code_execution.py

The model's program runs in the sandbox (no network, no files of this machine, limits on time and
memory), never in this process. The reward is the share of tests that pass: partial credit gives a
signal before any program is completely right.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

from mint.rewards import Task, code_tasks, program_tasks

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rl_core import RLAdapter, RLConfig, run_grpo

EXAMPLE = """Q: Write a Python function double(x) that returns twice a number.
A:
```python
def double(x):
    return 2 * x
```

"""
DATASETS = ("programs", "classics")


class CodeExecutionAdapter(RLAdapter):
    """Small programming problems with tests: hundreds of one-liners, or six classics."""

    def __init__(self, dataset: str = "programs") -> None:
        if dataset not in DATASETS:
            raise ValueError(f"There is no dataset {dataset!r}; choose from {', '.join(DATASETS)}.")
        self.dataset = dataset
        self.name = f"code-{dataset}"

    def build_dataset(self) -> list[Task]:
        if self.dataset == "classics":
            return code_tasks()
        return program_tasks(50, seed=random.getrandbits(31))

    def make_prompt(self, sample: Task, tokenizer: Any) -> list[int]:
        return list(tokenizer.encode(f"{EXAMPLE}Q: {sample.prompt}\nA:\n"))

    def identity(self, sample: Task) -> str:
        return sample.prompt

    async def compute_reward(self, response: str, sample: Task) -> Any:
        (outcome,) = await sample.reward.outcomes([sample.sample(response)])
        if hasattr(outcome, "error"):
            raise outcome.error
        return outcome.total  # its components count tests; they do not add up to the reward

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
        passed = sum(reward >= 1.0 for reward in rewards) / len(rewards) if rewards else 0.0
        mean = sum(rewards) / len(rewards) if rewards else 0.0
        print(
            f"Step {step}: solved={passed:.1%}, tests={mean:.1%}, datums={num_datums}", flush=True
        )


DEFAULTS = {"MINT_RL_MAX_TOKENS": "256", "MINT_RL_STOP": "\n```\n"}

if __name__ == "__main__":
    run_grpo(CodeExecutionAdapter(), RLConfig.from_env({**DEFAULTS, **os.environ}))
