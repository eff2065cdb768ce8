"""Train a judge from comparisons, for RL from feedback.

    python demos/train_judge.py
    MINT_JUDGE_MODEL=tinker://... python demos/rl/adapters/preference_chat.py

A model that was not trained to judge is poor at comparing answers, and a small one is useless. Here
it is trained: it reads a question with two answers, and learns the verdict "A" or "B" with
cross-entropy, in both orders, so that the position of an answer carries no information. The judge
is a LoRA adapter on the service like any other, and `preference_chat.py` uses the same prompt.

In practice, people would make the comparisons. Here answers of a small model, in
rl/questions.jsonl, are compared by a rule, `wanted` in preference_chat.py: a short, complete
sentence on the subject is better than any other answer, than a good answer to another question, and
than its own first words. Because the rule is known, we can measure whether the judge has learned
it, and later whether the policy has. To use your own comparisons, replace `comparisons`.

Without MINT_BASE_URL it starts a service on this machine. Settings are environment variables:

    MINT_BASE_MODEL    Qwen/Qwen3-0.6B
    MINT_LORA_RANK     16
    MINT_JUDGE_STEPS   45
    MINT_JUDGE_BATCH   8                pairs per step
    MINT_JUDGE_LR      1e-4
    MINT_JUDGE_EVAL    48               held-out pairs, judged before and after

Names end in their dimensions: N pairs, D datums.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import Any, NamedTuple

import mint
import mint.watch
from mint import types

sys.path.insert(0, str(Path(__file__).resolve().parent / "rl" / "adapters"))
from preference_chat import Judge, Question, questions, verdicts, wanted

BASE_MODEL = os.environ.get("MINT_BASE_MODEL", "Qwen/Qwen3-0.6B")
LORA_RANK = int(os.environ.get("MINT_LORA_RANK", "16"))
STEPS = int(os.environ.get("MINT_JUDGE_STEPS", "45"))
BATCH = int(os.environ.get("MINT_JUDGE_BATCH", "8"))
LEARNING_RATE = float(os.environ.get("MINT_JUDGE_LR", "1e-4"))
EVAL = int(os.environ.get("MINT_JUDGE_EVAL", "48"))


class Pair(NamedTuple):
    """A better and a worse answer to one question."""

    question: str
    better: str
    worse: str


def comparisons(asked: list[Question]) -> list[Pair]:
    """Pair good answers with bad ones, with good ones to other questions, and with stubs."""
    draw, pairs = random.Random(0), []
    good = {question: [a for a in question.answers if wanted(a, question)] for question in asked}
    for question in asked:
        bad = [a for a in question.answers if a not in good[question]]
        beside = [a for other in asked for a in good[other] if not wanted(a, question)]
        for answer in good[question]:
            words = answer.split()
            stubs = [" ".join(words[:count]) + "." for count in draw.sample(range(1, 5), 2)]
            losers = [*bad, *draw.sample(beside, 2), *stubs]
            pairs += [Pair(question.text, answer, loser) for loser in losers]
    return draw.sample(pairs, len(pairs))


def make_datums(pair: Pair, tokenizer: Any) -> list[types.Datum]:
    """Return datums of the right verdict in both orders. Only the verdict has a weight."""
    first, _ = verdicts(pair.question, pair.better, pair.worse, tokenizer)
    _, second = verdicts(pair.question, pair.worse, pair.better, tokenizer)
    return [
        types.Datum(
            model_input=types.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={
                "target_tokens": tokens[1:],
                "weights": [0.0] * (len(tokens) - 2) + [1.0],
            },
        )
        for tokens in (first, second)
    ]


async def accuracy(judge: Judge, pairs_N: list[Pair]) -> str:
    """Report how often the judge prefers the better answer, and with what confidence."""
    sure_N = await asyncio.gather(*(judge.prefers(*pair) for pair in pairs_N))
    right = sum(sure > 0.5 for sure in sure_N) / len(pairs_N)
    mean = sum(sure_N) / len(pairs_N)
    return f"accuracy={right:.1%}, confidence={mean:.1%} on {len(pairs_N)} held-out pairs"


def main() -> None:
    service = mint.ServiceClient()
    client = service.create_lora_training_client(BASE_MODEL, rank=LORA_RANK, seed=0)
    tokenizer = client.get_tokenizer()
    training = comparisons(questions(held_out=False))
    held_out = comparisons(questions(held_out=True))[:EVAL]
    print(f"Before: {asyncio.run(accuracy(Judge(BASE_MODEL), held_out))}", flush=True)

    record = mint.watch.record("runs/judge", config={"steps": STEPS})
    for step in range(1, STEPS + 1):
        pairs_N = random.Random(step).sample(training, BATCH)
        datums_D = [datum for pair in pairs_N for datum in make_datums(pair, tokenizer)]
        trained = client.forward_backward(datums_D, "cross_entropy")
        client.optim_step(types.AdamParams(learning_rate=LEARNING_RATE)).result()
        loss = trained.result().metrics["loss:sum"] / len(datums_D)
        record.step({"loss": loss})
        print(f"step {step}: loss per verdict={loss:.3f}", flush=True)

    path = client.save_weights_for_sampler(name="judge").result().path
    record.event("checkpoint", path=path)
    record.close()
    print(f"After: {asyncio.run(accuracy(Judge(path), held_out))}")
    print(f"Saved: {path}")


if __name__ == "__main__":
    main()
