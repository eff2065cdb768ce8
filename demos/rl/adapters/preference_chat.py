"""Chat answers that a judge prefers.

    python demos/rl/adapters/preference_chat.py

There is no right answer, but of two answers a judge can say which is better. The answers of a group
are compared in pairs, both ways round, and the wins become a score for each (Bradley-Terry). The
judge is a model on the same service, MINT_JUDGE_MODEL (by default the one that is trained, before
training). It is not asked to write: how likely it finds "A" and "B" as the verdict is enough, so
that small models can judge. For a large judge that explains itself, see mint.rewards.PairwiseJudge.

Scores inside a group always centre on the same value. What shows progress is the holdout: how much
the judge prefers answers to other questions over those that the judge itself gives. It is 0.5
before training.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import mint
from mint import types
from mint.rewards import Score, bradley_terry

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rl_core import RLAdapter, RLConfig, run_grpo

QUESTIONS = [
    "Explain what a variable is in programming.",
    "Write two lines about the sea.",
    "Name three reasons to walk every day.",
    "How do I make a cup of tea?",
    "Why is the sky blue?",
    "How can I sleep better?",
    "What does it mean that a model learns?",
    "How does a plant feed itself?",
]
HELD_OUT = [
    "What is a good way to learn a language?",
    "Why do we have seasons?",
    "How do I clean a keyboard?",
    "What makes a good friend?",
]
VERDICT = (
    "Question: {question}\n\nAnswer A: {a}\n\nAnswer B: {b}\n\n"
    "Which answer is more helpful, correct and clear? The better answer is"
)


class Judge:
    """Says how sure a model is that the first of two answers is the better one."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.answers: dict[str, str] = {}

    @cached_property
    def client(self) -> mint.SamplingClient:
        return mint.ServiceClient().create_sampling_client(base_model=self.model)

    @cached_property
    def tokenizer(self) -> Any:
        return self.client.get_tokenizer()

    async def prefers(self, question: str, first: str, second: str) -> float:
        """From 0 to 1; 0.5 when it cannot tell, or says the same whichever comes first."""
        ways = await asyncio.gather(
            self._first_is_better(question, first, second),
            self._first_is_better(question, second, first),
        )
        return (ways[0] + 1 - ways[1]) / 2

    async def answer(self, question: str) -> str:
        """What the judge would say itself, most likely. It is asked once."""
        if question not in self.answers:
            prompt = types.ModelInput.from_ints(chat_prompt(question, self.tokenizer))
            params = types.SamplingParams(max_tokens=128, temperature=0.0)
            sampled = await self.client.sample_async(prompt, 1, params)
            self.answers[question] = self.tokenizer.decode(sampled.sequences[0].tokens)
        return self.answers[question]

    async def _first_is_better(self, question: str, a: str, b: str) -> float:
        text = VERDICT.format(question=question, a=a, b=b)
        prompts = [self.tokenizer.encode(f"{text} {verdict}") for verdict in "AB"]
        scored = await asyncio.gather(
            *(self.client.compute_logprobs_async(types.ModelInput.from_ints(p)) for p in prompts)
        )
        for_a, for_b = (logprobs[-1] or 0.0 for logprobs in scored)
        return 1 / (1 + math.exp(for_b - for_a))


def chat_prompt(question: str, tokenizer: Any) -> list[int]:
    """A question in the model's chat template."""
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(text, add_special_tokens=False))


class PreferenceChatAdapter(RLAdapter):
    """Questions, and answers compared with each other by a judge, which is a model's name."""

    def __init__(self, judge: str) -> None:
        self.judge = Judge(judge)
        self.name = f"preference-chat-{judge}"

    def build_dataset(self) -> list[str]:
        return random.sample(QUESTIONS, len(QUESTIONS))

    def build_holdout(self) -> list[str]:
        return HELD_OUT

    def make_prompt(self, sample: str, tokenizer: Any) -> list[int]:
        return chat_prompt(sample, tokenizer)

    async def compute_rewards(self, responses: Sequence[str], sample: str) -> list[Score]:
        pairs = list(combinations(range(len(responses)), 2))
        sure = await asyncio.gather(
            *(self.judge.prefers(sample, responses[a], responses[b]) for a, b in pairs)
        )
        wins: dict[tuple[int, int], float] = defaultdict(float)
        for (a, b), share in zip(pairs, sure, strict=True):
            wins[a, b], wins[b, a] = share, 1 - share
        strengths = bradley_terry(wins, len(responses))
        return [Score(1 / (1 + math.exp(-s)), {"strength": s}) for s in strengths]

    def compute_reward(self, response: str, sample: str) -> Any:
        raise NotImplementedError("an answer is only better or worse than another")

    async def holdout_reward(self, response: str, sample: str) -> float:
        return await self.judge.prefers(sample, response, await self.judge.answer(sample))

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
        spread = max(rewards, default=0.0) - min(rewards, default=0.0)
        print(f"Step {step}: spread of scores={spread:.3f}, datums={num_datums}", flush=True)


if __name__ == "__main__":
    cfg = RLConfig.from_env()
    cfg.max_tokens = int(os.environ.get("MINT_RL_MAX_TOKENS", "128"))
    cfg.success_threshold = 0.501  # more than a draw
    run_grpo(PreferenceChatAdapter(os.environ.get("MINT_JUDGE_MODEL", cfg.base_model)), cfg)
