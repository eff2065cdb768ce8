"""RL from feedback: answers that a judge prefers, to questions without a right answer.

    python demos/train_judge.py
    MINT_JUDGE_MODEL=tinker://... python demos/rl/adapters/preference_chat.py

A judge decides which of two answers is better. It compares the answers of a group in pairs, in both
orders, together with a reference: the base model's answer before training. The wins give each
answer a Bradley-Terry strength, and the reward is the probability that it beats the reference.

The judge is a model on the same service, MINT_JUDGE_MODEL: the path of a trained judge, or the name
of a model (by default the base model of the run). It writes nothing: the probabilities of "A" and
"B" as its next token are enough, so even small models can judge. For a large judge that explains
its verdicts, see mint.rewards.PairwiseJudge.

A policy soon finds a judge's weaknesses. The holdout is therefore not scored by the judge, but by
the rule that the judge was trained on, `wanted`, which training never uses. If people had made the
comparisons, they would be asked again. When the judge's reward rises while the holdout falls,
`reward_hacking` is reported. At the end, the judge scores the holdout too.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import re
import sys
from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import mint
from mint import types
from mint.rewards import Score, bradley_terry
from mint.rl import Evaluator

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rl_core import RLAdapter, RLConfig, run_grpo

FILE = Path(__file__).resolve().parents[1] / "questions.jsonl"
VERDICT = "Question: {question}\nA: {a}\nB: {b}\nBetter:"


class Question(NamedTuple):
    """A question, words that a good answer contains one of, and answers by SmolLM2-135M-Instruct:
    the greedy one, which is the reference, and some that were sampled."""

    text: str
    about: tuple[str, ...]
    reference: str
    answers: tuple[str, ...]


def questions(held_out: bool) -> list[Question]:
    """Return the training questions, or those that neither the policy nor the judge trains on."""
    rows = [json.loads(line) for line in FILE.read_text().splitlines()]
    return [
        Question(row["question"], tuple(row["about"]), row["reference"], tuple(row["answers"]))
        for row in rows
        if row["held_out"] == held_out
    ]


def wanted(answer: str, question: Question) -> bool:
    """Return whether an answer is one short, complete sentence on the subject of the question."""
    words = re.findall(r"[\w']+", answer.lower())
    on_subject = not set(question.about).isdisjoint(words)
    return on_subject and 5 <= len(words) <= 12 and answer.endswith(".")


class Judge:
    """Estimates the probability that the first of two answers is the better one."""

    def __init__(self, model: str) -> None:
        self.model = model

    @cached_property
    def client(self) -> mint.SamplingClient:
        kind = "model_path" if "://" in self.model else "base_model"
        return mint.ServiceClient().create_sampling_client(**{kind: self.model})

    @cached_property
    def tokenizer(self) -> Any:
        return self.client.get_tokenizer()

    async def prefers(self, question: str, first: str, second: str) -> float:
        """Return that probability: 0.5 if the judge is undecided or always picks one position."""
        ways = await asyncio.gather(
            self._first_is_better(question, first, second),
            self._first_is_better(question, second, first),
        )
        return (ways[0] + 1 - ways[1]) / 2

    async def _first_is_better(self, question: str, a: str, b: str) -> float:
        says_a, says_b = verdicts(question, a, b, self.tokenizer)
        last = [says_a[-1], says_b[-1]]
        scored = await self.client.sample_async(
            types.ModelInput.from_ints(says_a),
            1,
            types.SamplingParams(max_tokens=1),
            target_prompt_logprobs=types.TensorData(
                data=[-1, -1] * (len(says_a) - 2) + last,  # -1: do not score
                dtype="int64",
                shape=[len(says_a) - 1, 2],
            ),
        )
        for_a, for_b = scored.target_prompt_logprobs.data[-2:]
        return 1 / (1 + math.exp(for_b - for_a))


def verdicts(question: str, a: str, b: str, tokenizer: Any) -> list[list[int]]:
    """Return the judge's prompt with each verdict. They differ in the last token."""
    text = VERDICT.format(question=question, a=a, b=b)
    return [tokenizer.encode(f"{text} {verdict}") for verdict in "AB"]


class PreferenceChatAdapter(RLAdapter):
    """Questions whose answers are compared by a judge: a model's name or a checkpoint's path."""

    def __init__(self, judge: str) -> None:
        self.judge = Judge(judge)
        self.name = f"preference-chat {judge}"

    def build_dataset(self) -> list[Question]:
        trained = questions(held_out=False)
        return random.sample(trained, len(trained))

    def build_holdout(self) -> list[Question]:
        return questions(held_out=True)

    def make_prompt(self, sample: Question, tokenizer: Any) -> list[int]:
        messages = [{"role": "user", "content": sample.text}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return list(tokenizer.encode(text, add_special_tokens=False))

    async def compute_rewards(self, responses: Sequence[str], sample: Question) -> list[Score]:
        players = [*responses, sample.reference]
        pairs = list(combinations(range(len(players)), 2))
        sure = await asyncio.gather(
            *(self.judge.prefers(sample.text, players[a], players[b]) for a, b in pairs)
        )
        wins = {}
        for (a, b), share in zip(pairs, sure, strict=True):
            wins[a, b], wins[b, a] = share, 1 - share
        *strengths, reference = bradley_terry(wins, len(players))
        return [
            Score(1 / (1 + math.exp(reference - s)), {"wanted": float(wanted(text, sample))})
            for text, s in zip(responses, strengths, strict=True)
        ]

    def compute_reward(self, response: str, sample: Question) -> Any:
        raise NotImplementedError("an answer is only better or worse than another")

    def holdout_reward(self, response: str, sample: Question) -> Any:
        return float(wanted(response, sample))

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
        mean = sum(rewards) / len(rewards) if rewards else 0.0
        print(f"Step {step}: beats the reference={mean:.1%}, datums={num_datums}", flush=True)


class JudgedChatAdapter(PreferenceChatAdapter):
    """The same task with the holdout scored by the judge: 1.0 if it prefers an answer to the
    reference."""

    async def holdout_reward(self, response: str, sample: Question) -> float:
        return float(await self.judge.prefers(sample.text, response, sample.reference) > 0.5)


DEFAULTS = {
    "MINT_RL_MAX_TOKENS": "32",
    "MINT_RL_STOP": ".",
    "MINT_RL_SUCCESS_THRESHOLD": "0.5",
}

if __name__ == "__main__":
    cfg = RLConfig.from_env({**DEFAULTS, **os.environ})
    judge = os.environ.get("MINT_JUDGE_MODEL", cfg.base_model)
    trained = run_grpo(PreferenceChatAdapter(judge), cfg)
    judged = Evaluator(JudgedChatAdapter(judge), cfg, mint.ServiceClient()).of(trained)
    print(f"By the judge: {judged}")
