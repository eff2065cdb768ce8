"""Teach the format of an answer with SFT, then improve the answers with RL.

    python demos/sft_then_rl.py

RL can only reinforce what the model already does now and then. Here an answer counts only in
brackets, as in [12], which the base model never writes: every reward is 0, all answers of a group
are equal, and there is nothing to learn from. A few demonstrations teach the format. From that
checkpoint on, some answers are better than others, and GRPO has a signal.

Without MINT_BASE_URL it starts a service on this machine. Settings are environment variables: those
of RL are in docs/rl.md (MINT_BASE_MODEL, MINT_LORA_RANK, MINT_RL_STEPS, ...), and

    MINT_SFT_STEPS   8      passes over the demonstrations
    MINT_SFT_DEMOS   16     demonstrations
    MINT_SFT_LR      1e-4
    MINT_SFT_EVAL    64     held-out problems, evaluated before, after SFT, and after RL

Names end in their dimensions: P problems.
"""

from __future__ import annotations

import os
import random
import re
from typing import Any

import mint
from mint import types
from mint.rewards import compute_reward_breakdown
from mint.rl import RLAdapter, RLConfig, run_grpo

SFT_STEPS = int(os.environ.get("MINT_SFT_STEPS", "8"))
SFT_DEMOS = int(os.environ.get("MINT_SFT_DEMOS", "16"))
SFT_LR = float(os.environ.get("MINT_SFT_LR", "1e-4"))
EVAL = int(os.environ.get("MINT_SFT_EVAL", "64"))

Problem = tuple[int, int]


class SumsAdapter(RLAdapter):
    """Sums, with a reward for the right number in the right format."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems

    def build_dataset(self) -> list[Problem]:
        return random.sample(self.problems, len(self.problems))

    def make_prompt(self, sample: Problem, tokenizer: Any) -> list[int]:
        a, b = sample
        return list(tokenizer.encode(f"What is {a} + {b}? Reply with the number in brackets.\n"))

    def compute_reward(self, response: str, sample: Problem) -> float:
        found = re.fullmatch(r"\[(\d+)\]", response.strip())
        return compute_reward_breakdown(found[1], sum(sample)).total if found else 0.0

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
        print(f"RL step {step}: {rates(rewards)} datums={num_datums}", flush=True)


def rates(rewards: list[float]) -> str:
    form = sum(reward > 0 for reward in rewards) / len(rewards)
    right = sum(reward == 1 for reward in rewards) / len(rewards)
    return f"form={form:.1%} accuracy={right:.1%}"


def demonstration(task: SumsAdapter, problem: Problem, tokenizer: Any) -> types.Datum:
    """Return a datum of a problem and its answer. The question's tokens have weight 0."""
    prompt = task.make_prompt(problem, tokenizer)
    answer = tokenizer.encode(f"[{sum(problem)}]", add_special_tokens=False)
    full, prefix = prompt + answer, len(prompt) - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(full[:-1]),
        loss_fn_inputs={
            "target_tokens": full[1:],
            "weights": [0.0] * prefix + [1.0] * len(answer),
        },
    )


def train_supervised(client: mint.TrainingClient, task: SumsAdapter, demos: list[Problem]) -> None:
    tokenizer = client.get_tokenizer()
    datums = [demonstration(task, problem, tokenizer) for problem in demos]
    tokens = sum(sum(datum.loss_fn_inputs["weights"].data) for datum in datums)
    for step in range(1, SFT_STEPS + 1):
        result = client.forward_backward(datums, "cross_entropy")
        client.optim_step(types.AdamParams(learning_rate=SFT_LR)).result()
        loss = result.result().metrics["loss:sum"] / tokens
        print(f"SFT step {step}: loss per token={loss:.3f}", flush=True)


def evaluate(
    when: str,
    client: mint.SamplingClient,
    task: SumsAdapter,
    problems_P: list[Problem],
    cfg: RLConfig,
) -> None:
    """Evaluate the greedy answers to the held-out problems."""
    tokenizer = client.get_tokenizer()
    greedy = types.SamplingParams(max_tokens=cfg.max_tokens, temperature=0.0, stop=list(cfg.stop))
    futures_P = [
        client.sample(types.ModelInput.from_ints(task.make_prompt(p, tokenizer)), 1, greedy)
        for p in problems_P
    ]
    answers_P = [tokenizer.decode(future.result().sequences[0].tokens) for future in futures_P]
    rewards_P = [task.compute_reward(a, p) for a, p in zip(answers_P, problems_P, strict=True)]
    print(f"{when}: {rates(rewards_P)}, for example {answers_P[0]!r}", flush=True)


def main() -> None:
    cfg = RLConfig.from_env({"MINT_RL_STOP": "]", **os.environ})
    problems = [(a, b) for a in range(21) for b in range(a, 21)]
    random.Random(0).shuffle(problems)
    held_out, training = problems[:EVAL], SumsAdapter(problems[EVAL:])

    service = mint.ServiceClient()
    base = service.create_sampling_client(base_model=cfg.base_model)
    evaluate("Before", base, training, held_out, cfg)

    client = service.create_lora_training_client(cfg.base_model, rank=cfg.rank, seed=cfg.seed)
    train_supervised(client, training, training.problems[:SFT_DEMOS])
    cfg.start_from = client.save_state(name="sft").result().path
    print(f"Saved: {cfg.start_from}", flush=True)
    evaluate("After SFT", client.save_weights_and_get_sampling_client(), training, held_out, cfg)

    trained = run_grpo(training, cfg, service=service)
    evaluate("After RL", service.create_sampling_client(trained), training, held_out, cfg)


if __name__ == "__main__":
    main()
