"""The task of ``make demo``, for both sides: the same problems, in the same order, scored alike.

Nothing here knows of mint's service or of TRL. The problems of a seed are those that
``quickstart/custom_reward.py`` draws with it.

>>> Task(Settings(steps=1, prompts=2), seed=0).prompt(Problem(3, 5))
'Q: What is 49 + 97?\\nA: 146\\nQ: What is 3 + 5?\\nA:'
"""

from __future__ import annotations

import argparse
import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import fmean, variance

from mint.rewards import RewardBreakdown, compute_reward_breakdown

MAX_OPERAND = 99
MAX_TOKENS = 8
TEMPERATURE = 1.0
STOP = "\n"

LORA_RANK = 16
LORA_ALPHA = 32  # mint's own, which a script does not set
LEARNING_RATE = 5e-4
BETAS = (0.9, 0.999)
EPSILON = 1e-8


@dataclass(frozen=True)
class Settings:
    """How much of the task to do. The defaults are the demo's."""

    steps: int = 30
    prompts: int = 16
    group: int = 16
    held_out: int = 64

    def __post_init__(self) -> None:
        for field in fields(self):
            if (value := getattr(self, field.name)) < 1:
                raise ValueError(f"{field.name} is {value}; try {field.default}")
        if self.group < 2:
            raise ValueError(f"group is {self.group}, and one answer has nothing to be better than")

    @property
    def answers(self) -> int:
        """Answers of a step."""
        return self.prompts * self.group

    def arguments(self) -> list[str]:
        """These settings as a command line."""
        pairs = [(f"--{f.name.replace('_', '-')}", getattr(self, f.name)) for f in fields(self)]
        return [str(part) for pair in pairs for part in pair]

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        for field in fields(Settings):
            parser.add_argument(
                f"--{field.name.replace('_', '-')}", type=int, default=field.default
            )

    @classmethod
    def of(cls, options: argparse.Namespace) -> Settings:
        return cls(**{field.name: getattr(options, field.name) for field in fields(cls)})


@dataclass(frozen=True)
class Problem:
    """An addition."""

    a: int
    b: int

    @property
    def question(self) -> str:
        return f"Q: What is {self.a} + {self.b}?\nA:"

    @property
    def answer(self) -> int:
        return self.a + self.b

    @property
    def operands(self) -> frozenset[int]:
        """What makes two problems the same: 3 + 5 is 5 + 3."""
        return frozenset((self.a, self.b))


class Task:
    """The problems of one seed: one solved in the prompt, some held out, some for every step."""

    def __init__(self, settings: Settings, seed: int) -> None:
        self._random = random.Random(seed)
        self._set_aside: set[frozenset[int]] = set()
        self.example = self._hold_out()
        self.held_out = [self._hold_out() for _ in range(settings.held_out)]
        self.steps = [
            [self._draw() for _ in range(settings.prompts)] for _ in range(settings.steps)
        ]

    def prompt(self, problem: Problem) -> str:
        """What the model continues."""
        return f"{self.example.question} {self.example.answer}\n{problem.question}"

    def _hold_out(self) -> Problem:
        problem = self._draw()
        self._set_aside.add(problem.operands)
        return problem

    def _draw(self) -> Problem:
        number = partial(self._random.randint, 0, MAX_OPERAND)
        while True:
            problem = Problem(number(), number())
            if problem.operands not in self._set_aside:
                return problem


@dataclass(frozen=True)
class Scores:
    """Averages over the answers to some prompts, a group of answers for each."""

    reward: float
    exact: float
    format: float
    reward_error: float
    """The standard error of ``reward``, the prompts being given; 0 for greedy answers."""

    @classmethod
    def of(cls, problems: Sequence[Problem], texts: Sequence[Sequence[str]]) -> Scores:
        groups = [
            [score(text, problem) for text in group]
            for problem, group in zip(problems, texts, strict=True)
        ]
        flat = [breakdown for group in groups for breakdown in group]
        rewards = [[breakdown.total for breakdown in group] for group in groups]
        errors = [variance(group) / len(group) for group in rewards if len(group) > 1]
        return cls(
            reward=fmean(b.total for b in flat),
            exact=fmean(b.exact_bonus > 0 for b in flat),
            format=fmean(b.format_reward > 0 for b in flat),
            reward_error=sqrt(sum(errors)) / len(groups),
        )


def score(text: str, problem: Problem) -> RewardBreakdown:
    """The reward of an answer, in its parts."""
    return compute_reward_breakdown(text, problem.answer)


def digest(prompts: Sequence[str]) -> str:
    """A short name of prompts in their order, to see that both sides had the same."""
    return hashlib.sha256("\0".join(prompts).encode()).hexdigest()[:16]


def side_parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments that both sides take."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True, help="the folder with the weights")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=Path, required=True, help="where to write what happened")
    Settings.add_arguments(parser)
    return parser
