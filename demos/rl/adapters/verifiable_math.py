"""Math with answers that can be checked.

    python demos/rl/adapters/verifiable_math.py

The task is MINT_MATH_TASK: `arithmetic` (the default), a file (JSONL, JSON, CSV, Parquet) with
`question` and `answer` in each row, as GSM8K has them, or `gym:NAME` for any task of reasoning-gym.
Other settings are those of rl_core.py. For data with other columns see docs/data.md.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

from mint.rewards import Task, arithmetic_tasks, as_reward, check_answer, reasoning_gym
from mint.rl import ConfigError, DataError
from mint.rl.data.file_formats import READERS, Row, read_rows

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rl_core import RLAdapter, RLConfig, run_grpo

ARITHMETIC = "arithmetic"
EXAMPLE = "Q: What is 4 + 5?\nA: 9\n\n"
SEED_OF_EXAMPLES = 2**31


class VerifiableMathAdapter(RLAdapter):
    """Questions with answers. The reward is 1.0 for the right number, 0.5 within 10%.

    Tasks of reasoning-gym score answers themselves. Every prompt begins with `shots` solved
    examples, drawn with `examples_seed`. `options` are those of the reasoning-gym task, such as
    {"max_numbers": 3}.
    """

    kind = "math"

    def __init__(
        self,
        task: str = ARITHMETIC,
        shots: int = 1,
        options: dict[str, Any] | None = None,
        examples_seed: int = SEED_OF_EXAMPLES,
    ) -> None:
        self.task = task
        self.options = dict(options or {})
        self.name = " ".join(
            [f"{self.kind}-{task}", *(f"{key}={value}" for key, value in self.options.items())]
        )
        self._check(shots)
        drawn = task == ARITHMETIC or task.startswith("gym:")
        self.fixed = [] if drawn else [_as_task(row) for row in read_rows(task, argument="task")]
        self.shown = self._tasks(shots, examples_seed) if task.startswith("gym:") else []
        self.examples = "".join(
            f"Q: {shown.prompt.strip()}\nA: {shown.metadata['answer']}\n\n" for shown in self.shown
        )

    def _check(self, shots: int) -> None:
        """Reject arguments that would silently select another task than intended."""
        task = self.task
        if task.startswith("gym:"):
            return
        is_file = Path(task).suffix.lower() in READERS or "/" in task or Path(task).exists()
        if task != ARITHMETIC and not is_file:
            raise ConfigError(
                f"There is no task {task!r}. Use {ARITHMETIC}, gym:NAME for a task of "
                "reasoning-gym, or a file with `question` and `answer` in each row, as in "
                "task.arguments.task=questions.jsonl."
            )
        if self.options or shots != 1:
            raise ConfigError(
                f"shots and options apply to reasoning-gym tasks, but the task is {task!r}. "
                "Leave them out."
            )

    def _tasks(self, count: int, seed: int) -> list[Task]:
        if self.task.startswith("gym:"):
            name = self.task.removeprefix("gym:")
            return list(reasoning_gym(name, count=count, seed=seed, **self.options))
        return arithmetic_tasks(count, seed=seed, operations="+")

    def build_dataset(self) -> list[Task]:
        if self.fixed:
            return random.sample(self.fixed, len(self.fixed))
        shown = {task.prompt for task in self.shown}
        drawn = self._tasks(50, random.getrandbits(31))
        return [task for task in drawn if task.prompt not in shown]

    def make_prompt(self, sample: Task, tokenizer: Any) -> list[int]:
        examples = self.examples or EXAMPLE
        return list(tokenizer.encode(f"{examples}Q: {sample.prompt.strip()}\nA:"))

    def compute_reward(self, response: str, sample: Task) -> Any:
        return sample.score(response)

    def identity(self, sample: Task) -> str:
        return sample.prompt


def _as_task(row: Row) -> Task:
    """A row of a file, whose answer may be a worked solution that ends in `#### 42`."""
    question, answer = row.fields.get("question"), row.fields.get("answer")
    for name, value in {"question": question, "answer": answer}.items():
        if not isinstance(value, str | int | float) or not str(value).strip():
            raise DataError(
                f"{row.place}: the field {name!r} is {value!r}, but it must be a string. The row "
                f"has {', '.join(row.fields)}. For data with other columns, use task=jsonl "
                "(docs/data.md)."
            )
    gold = str(answer).split("####")[-1].strip()
    return Task(str(question), as_reward(check_answer), {"answer": gold})


if __name__ == "__main__":
    cfg = RLConfig.from_env({"MINT_RL_STOP": "\n", **os.environ})
    run_grpo(VerifiableMathAdapter(os.environ.get("MINT_MATH_TASK", ARITHMETIC)), cfg)
