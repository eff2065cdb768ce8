"""Answers that a judge prefers: RL from feedback, where there is no right answer.

    python demos/train_judge.py
    MINT_JUDGE_MODEL=tinker://... python demos/rl/adapters/preference_chat.py

Of two answers a judge can say which is better. The answers of a group are compared in pairs, both
ways round, and so is a reference, which the base model gave before training. The wins become a
strength for each (Bradley-Terry), and the reward is how likely an answer is to beat the reference.

The judge is a model on the same service, MINT_JUDGE_MODEL: the path of one that was trained to
judge, or a model's name (by default the one that is trained, before training). It is not asked to
write: how likely it finds "A" and "B" as its verdict is enough, so that small models can judge. For
a large judge that explains itself, see mint.rewards.PairwiseJudge.

A policy soon knows a judge's weak spots. So the holdout is not scored by the judge but by what the
judge was taught, `wanted`, which training never sees; with people as teachers, that would be asking
them again. When the judge's reward rises and the holdout falls, `reward_hacking` says so. At the
end the judge has its say about the holdout too.
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
    """A question, words of which an answer to it has one, and what SmolLM2-135M-Instruct answered:
    its most likely answer, the reference, and some that were sampled."""

    text: str
    about: tuple[str, ...]
    reference: str
    answers: tuple[str, ...]


def questions(held_out: bool) -> list[Question]:
    """The questions to train on, or those that neither the policy nor the judge ever trains on."""
    rows = [json.loads(line) for line in FILE.read_text().splitlines()]
    return [
        Question(row["question"], tuple(row["about"]), row["reference"], tuple(row["answers"]))
        for row in rows
        if row["held_out"] == held_out
    ]


def wanted(answer: str, question: Question) -> bool:
    """What the judge is taught: one short sentence, finished, on the subject of the question."""
    words = re.findall(r"[\w']+", answer.lower())
    on_subject = not set(question.about).isdisjoint(words)
    return on_subject and 5 <= len(words) <= 12 and answer.endswith(".")


class Judge:
    """Says how sure a model is that the first of two answers is the better one."""

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
        """From 0 to 1; 0.5 when it cannot tell, or says the same whichever comes first."""
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
                data=[-1, -1] * (len(says_a) - 2) + last,  # -1: not to be scored
                dtype="int64",
                shape=[len(says_a) - 1, 2],
            ),
        )
        for_a, for_b = scored.target_prompt_logprobs.data[-2:]
        return 1 / (1 + math.exp(for_b - for_a))


def verdicts(question: str, a: str, b: str, tokenizer: Any) -> list[list[int]]:
    """The judge's prompt with either verdict. They differ in the last token."""
    text = VERDICT.format(question=question, a=a, b=b)
    return [tokenizer.encode(f"{text} {verdict}") for verdict in "AB"]


class PreferenceChatAdapter(RLAdapter):
    """Questions, and answers compared with each other by a judge: a model's name or its path."""

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
    """The same with a holdout that the judge scores: 1.0 where it prefers an answer to the
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
