"""An environment of the `verifiers` package with one turn: additions."""

from __future__ import annotations

import re

import verifiers as vf
from datasets import Dataset


def right(completion: vf.Messages, answer: str) -> float:
    """Whether the last number is the answer."""
    return float(re.findall("[0-9]+", completion[-1].content)[-1:] == [answer])


def brief(completion: vf.Messages) -> float:
    """Whether there is nothing but a number."""
    return float(completion[-1].content.strip().isdigit())


def load_environment() -> vf.Environment:
    pairs = [(a, b) for a in range(2, 20) for b in range(2, 20)]
    rows = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in pairs]
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows),
        system_prompt="Answer with a number and nothing else.",
        rubric=vf.Rubric(funcs=[right, brief], weights=[1.0, 0.2]),
    )
