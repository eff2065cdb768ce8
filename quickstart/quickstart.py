"""Supervised fine-tuning, then reinforcement learning, in one script.

SFT on a few additions teaches the model the form of an answer. RL then uses the simplest reward: 1
for a right answer, 0 for a wrong one. (`custom_reward.py` shows a reward with partial credit.)

    python quickstart/quickstart.py

Without MINT_BASE_URL it starts a service on this machine. Settings are environment variables:

    MINT_BASE_MODEL       Qwen/Qwen3-0.6B   model to train
    MINT_LORA_RANK        16
    MINT_MAX_OPERAND      99                the largest number to add
    MINT_SEED             0                 seed of the questions
    MINT_SFT_STEPS        6
    MINT_SFT_BATCH        16                examples per step
    MINT_SFT_LR           1e-4
    MINT_RL_STEPS         6
    MINT_RL_BATCH         8                 questions per step
    MINT_RL_GROUP         4                 answers per question
    MINT_RL_LR            2e-5
    MINT_RL_MAX_TOKENS    16                maximum length of an answer
    MINT_RL_TEMPERATURE   0.8

Samples and metrics are recorded in runs/quickstart; see `mint report runs/quickstart`.

Names end in their dimensions: P prompts of a step; names with g_ are lists over a prompt's group.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console

import mint
import mint.watch
from mint import types

Setting = TypeVar("Setting", int, float, str)


def setting(name: str, default: Setting) -> Setting:
    """Read an environment variable, converted to the type of its default."""
    text = os.environ.get(name) or str(default)
    try:
        return type(default)(text)
    except ValueError:
        sys.exit(f"{name}={text!r} is not {type(default).__name__}; try {name}={default}")


BASE_MODEL = setting("MINT_BASE_MODEL", "Qwen/Qwen3-0.6B")
LORA_RANK = setting("MINT_LORA_RANK", 16)
MAX_OPERAND = setting("MINT_MAX_OPERAND", 99)
SEED = setting("MINT_SEED", 0)
SFT_STEPS = setting("MINT_SFT_STEPS", 6)
SFT_BATCH = setting("MINT_SFT_BATCH", 16)
SFT_LR = setting("MINT_SFT_LR", 1e-4)
RL_STEPS = setting("MINT_RL_STEPS", 6)
RL_BATCH = setting("MINT_RL_BATCH", 8)
RL_GROUP = setting("MINT_RL_GROUP", 4)
RL_LR = setting("MINT_RL_LR", 2e-5)
RL_MAX_TOKENS = setting("MINT_RL_MAX_TOKENS", 16)
RL_TEMPERATURE = setting("MINT_RL_TEMPERATURE", 0.8)

console = Console()


@contextmanager
def working(label: str) -> Iterator[None]:
    """Show a label while some work is in progress."""
    if not console.is_terminal:
        print(label, flush=True)
    with console.status(label):
        yield


def draw_problem(rng: random.Random) -> tuple[str, int]:
    """Draw a question and its answer."""
    a, b = rng.randint(0, MAX_OPERAND), rng.randint(0, MAX_OPERAND)
    return f"Q: What is {a} + {b}?\nA:", a + b


def extract_answer(text: str) -> int | None:
    """Return the first integer of an answer, or None."""
    match = re.search(r"-?\d+", text)
    return int(match.group()) if match else None


# ---- 1. Supervised: make the right answer more likely ----


def sft_datum(tokenizer: Any, question: str, answer: int) -> types.Datum:
    """Train on the answer only: the question's tokens have weight 0."""
    prompt_tokens = tokenizer.encode(question)
    answer_tokens = tokenizer.encode(f" {answer}\n", add_special_tokens=False)
    full = prompt_tokens + answer_tokens
    prefix = len(prompt_tokens) - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens=full[:-1]),
        loss_fn_inputs={
            "target_tokens": full[1:],
            "weights": [0.0] * prefix + [1.0] * len(answer_tokens),
        },
    )


def train_supervised(
    training_client: mint.TrainingClient,
    tokenizer: Any,
    rng: random.Random,
    record: mint.watch.Record,
) -> None:
    for step in range(1, SFT_STEPS + 1):
        label = f"sft step {step}/{SFT_STEPS}"
        datums = [sft_datum(tokenizer, *draw_problem(rng)) for _ in range(SFT_BATCH)]
        tokens = sum(sum(datum.loss_fn_inputs["weights"].data) for datum in datums)
        with working(f"{label}: training on {len(datums)} examples"):
            # Both are in flight at once: the service runs them in this order.
            result = training_client.forward_backward(datums, loss_fn="cross_entropy")
            update = training_client.optim_step(types.AdamParams(learning_rate=SFT_LR))
            loss = result.result().metrics["loss:sum"] / tokens
            update.result()
        record.step({"sft/loss_per_token": loss})
        print(f"{label} loss_per_token={loss:.3f}", flush=True)


# ---- 2. Reinforcement: make answers better than the mean of their group more likely ----


def train_reinforced(
    training_client: mint.TrainingClient,
    tokenizer: Any,
    rng: random.Random,
    record: mint.watch.Record,
) -> None:
    sampling_params = types.SamplingParams(
        max_tokens=RL_MAX_TOKENS, temperature=RL_TEMPERATURE, stop=["\n"]
    )
    for step in range(1, RL_STEPS + 1):
        label = f"rl step {step}/{RL_STEPS}"
        sampling_client = training_client.save_weights_and_get_sampling_client(
            name=f"rl-step-{step}"
        )
        problems_P = [draw_problem(rng) for _ in range(RL_BATCH)]
        prompts_P = [tokenizer.encode(question) for question, _ in problems_P]
        futures_P = [
            sampling_client.sample(
                prompt=types.ModelInput.from_ints(tokens=prompt_tokens),
                num_samples=RL_GROUP,
                sampling_params=sampling_params,
            )
            for prompt_tokens in prompts_P
        ]
        with working(f"{label}: sampling {RL_BATCH} x {RL_GROUP} answers"):
            results_P = [future.result() for future in futures_P]

        rewards: list[float] = []
        rollouts: list[dict[str, Any]] = []
        datums: list[types.Datum] = []
        for (question, gold_answer), prompt_tokens, res in zip(
            problems_P, prompts_P, results_P, strict=True
        ):
            g_rewards, g_responses, g_logprobs = [], [], []
            for seq in res.sequences:
                txt = tokenizer.decode(seq.tokens)
                reward = 1.0 if extract_answer(txt) == gold_answer else 0.0
                g_rewards.append(reward)
                g_responses.append(list(seq.tokens))
                g_logprobs.append(read_logprobs(seq))
                rollouts.append({"prompt": question, "response": txt, "reward": reward})
            rewards += g_rewards
            mean_r = sum(g_rewards) / len(g_rewards)
            advs = [r - mean_r for r in g_rewards]
            if not any(advs):
                continue  # all right or all wrong: no signal
            for resp_tok, lp, adv in zip(g_responses, g_logprobs, advs, strict=True):
                full = prompt_tokens + resp_tok
                prefix = len(prompt_tokens) - 1
                datums.append(
                    types.Datum(
                        model_input=types.ModelInput.from_ints(tokens=full[:-1]),
                        loss_fn_inputs={
                            "target_tokens": full[1:],
                            "weights": [0.0] * prefix + [1.0] * len(resp_tok),
                            "logprobs": [0.0] * prefix + lp,
                            "advantages": [0.0] * prefix + [adv] * len(resp_tok),
                        },
                    )
                )

        if datums:
            with working(f"{label}: training on {len(datums)} datums"):
                update = training_client.forward_backward(datums, loss_fn="importance_sampling")
                step_taken = training_client.optim_step(types.AdamParams(learning_rate=RL_LR))
                update.result()
                step_taken.result()
        accuracy = sum(rewards) / len(rewards)
        record.step({"reward/success": accuracy, "datums": len(datums)}, rollouts)
        print(f"{label} accuracy={accuracy:.1%} datums={len(datums)}", flush=True)


def read_logprobs(seq: types.SampledSequence) -> list[float]:
    """Return the sampling logprobs. Zeros in their place would train on noise."""
    if seq.logprobs is None or len(seq.logprobs) != len(seq.tokens):
        raise RuntimeError("The service sent an answer without a logprob for each of its tokens.")
    return list(seq.logprobs)


def main() -> None:
    rng = random.Random(SEED)
    service_client = mint.ServiceClient()
    with working(f"Loading {BASE_MODEL}"):
        training_client = service_client.create_lora_training_client(
            base_model=BASE_MODEL,
            rank=LORA_RANK,
            train_mlp=True,
            train_attn=True,
            train_unembed=True,
        )
        tokenizer = training_client.get_tokenizer()
    settings = {
        "base_model": BASE_MODEL,
        "steps": SFT_STEPS + RL_STEPS,
        "learning_rate": RL_LR,
        "max_tokens": RL_MAX_TOKENS,
        "stop": ["\n"],
    }
    with mint.watch.record("runs/quickstart", config=settings) as record:
        train_supervised(training_client, tokenizer, rng, record)
        train_reinforced(training_client, tokenizer, rng, record)
        with working("Saving"):
            saved = training_client.save_state(name="quickstart-final").result()
        record.event("checkpoint", path=saved.path)
    print(f"Saved: {saved.path}")
    print(f'Sample from it: mint sample -m {record.path} "Q: What is 12 + 7? A:"')


if __name__ == "__main__":
    main()
