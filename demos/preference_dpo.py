"""Learn from comparisons: DPO, with a loss defined in this script and trained on the service.

    python demos/preference_dpo.py

The model answers every question several times, and of each two answers one is preferred: here the
one in plainer words (fewer letters per word), because that makes success easy to measure. With
people or a judge to compare the answers, nothing else changes. DPO needs no reward: it makes the
chosen answer more likely than the rejected one, relative to the base model.

The service does not need to know DPO: `forward_backward_custom` fetches the logprobs, calls
`dpo_loss` in this process, and sends back the gradient of every logprob.

Without MINT_BASE_URL it starts a service on this machine. Settings are environment variables:

    MINT_BASE_MODEL   Qwen/Qwen3-0.6B
    MINT_LORA_RANK    16
    MINT_DPO_STEPS    8
    MINT_DPO_BATCH    12                pairs per step
    MINT_DPO_LR       5e-5
    MINT_DPO_BETA     0.1               lower values allow a larger distance from the base model

Names end in their dimensions: Q questions, G answers to one of them, N pairs.
"""

from __future__ import annotations

import os
import random
import re
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn.functional import logsigmoid

import mint
import mint.watch
from mint import types

BASE_MODEL = os.environ.get("MINT_BASE_MODEL", "Qwen/Qwen3-0.6B")
LORA_RANK = int(os.environ.get("MINT_LORA_RANK", "16"))
STEPS = int(os.environ.get("MINT_DPO_STEPS", "8"))
BATCH = int(os.environ.get("MINT_DPO_BATCH", "12"))
LEARNING_RATE = float(os.environ.get("MINT_DPO_LR", "5e-5"))
BETA = float(os.environ.get("MINT_DPO_BETA", "0.1"))

GROUP, HELD_OUT = 6, 10
SUBJECTS = (
    "bread rain bicycles money sleep music rivers libraries fire winter gardens football paper "
    "hearts computers salt dreams bridges coffee birds clocks glass letters schools wind trains "
    "milk friendship mountains paint ships honey doctors stars wool mirrors numbers markets tea art"
)


class Pair(NamedTuple):
    """Two answers, and how much more likely the chosen one is under the base model."""

    chosen: types.Datum
    rejected: types.Datum
    reference: float


def letters_per_word(text: str) -> float:
    words = re.findall(r"[A-Za-z]+", text)
    return sum(map(len, words)) / max(1, len(words))


def answers_to(client: mint.SamplingClient, prompts_Q: list[list[int]]) -> list[list[list[int]]]:
    """Sample several answers to every question, all in flight at once."""
    futures_Q = []
    for seed, prompt in enumerate(prompts_Q):
        params = types.SamplingParams(max_tokens=24, temperature=1.0, seed=seed)
        futures_Q.append(client.sample(types.ModelInput.from_ints(prompt), GROUP, params))
    return [[list(answer.tokens) for answer in f.result().sequences] for f in futures_Q]


def make_datum(prompt: list[int], answer: list[int]) -> types.Datum:
    full, prefix = prompt + answer, len(prompt) - 1
    weights = [0.0] * prefix + [1.0] * len(answer)
    return types.Datum(
        model_input=types.ModelInput.from_ints(full[:-1]),
        loss_fn_inputs={"target_tokens": full[1:], "weights": weights},
    )


def make_pairs(base: mint.SamplingClient, prompts_Q: list[list[int]], decode: Any) -> list[Pair]:
    """Pair the two plainest answers to each question with the two least plain ones."""
    compared_N = []
    for prompt, answers_G in zip(prompts_Q, answers_to(base, prompts_Q), strict=True):
        ranked = sorted(answers_G, key=lambda tokens: letters_per_word(decode(tokens)))
        compared_N += [(prompt, ranked[0], ranked[-1]), (prompt, ranked[1], ranked[-2])]
    futures_N = [
        [base.compute_logprobs(types.ModelInput.from_ints(prompt + a)) for a in answers]
        for prompt, *answers in compared_N
    ]
    pairs_N = []
    for (prompt, chosen, rejected), (better, worse) in zip(compared_N, futures_N, strict=True):
        reference = sum(better.result()[-len(chosen) :]) - sum(worse.result()[-len(rejected) :])
        pairs_N.append(Pair(make_datum(prompt, chosen), make_datum(prompt, rejected), reference))
    return pairs_N


def flatten(pairs_N: list[Pair]) -> list[types.Datum]:
    return [datum for pair in pairs_N for datum in (pair.chosen, pair.rejected)]


def margins(pairs_N: list[Pair], logprobs: list[torch.Tensor]) -> torch.Tensor:
    """Return how much more the policy prefers each chosen answer than the base model does."""
    weights = [datum.loss_fn_inputs["weights"].to_torch() for datum in flatten(pairs_N)]
    totals = torch.stack([(w * lp).sum() for w, lp in zip(weights, logprobs, strict=True)])
    return totals[0::2] - totals[1::2] - torch.tensor([pair.reference for pair in pairs_N])


def dpo_loss(pairs_N: list[Pair], data: Any, logprobs: list[torch.Tensor]) -> tuple[Any, Any]:
    """Return -log sigmoid(beta * margin), and the mean margin as a metric."""
    margins_N = margins(pairs_N, logprobs)
    return -logsigmoid(BETA * margins_N).mean(), {"margin": margins_N.mean().item()}


def describe(when: str, client: mint.SamplingClient, prompts_Q: list[list[int]]) -> None:
    """Print the mean letters per word of new answers to the held-out questions."""
    decode = client.get_tokenizer().decode
    texts = [decode(answer) for answers_G in answers_to(client, prompts_Q) for answer in answers_G]
    mean = sum(map(letters_per_word, texts)) / len(texts)
    print(f"{when}: {mean:.2f} letters per word, for example {texts[0]!r}", flush=True)


def main() -> None:
    service = mint.ServiceClient()
    client = service.create_lora_training_client(BASE_MODEL, rank=LORA_RANK, seed=0)
    base = service.create_sampling_client(base_model=BASE_MODEL)
    tokenizer = client.get_tokenizer()
    render = partial(tokenizer.apply_chat_template, add_generation_prompt=True, return_dict=False)
    questions = [f"Tell me about {subject}." for subject in SUBJECTS.split()]
    prompts = [render([{"role": "user", "content": question}]) for question in questions]
    pairs = make_pairs(base, prompts, tokenizer.decode)
    held_out, training = pairs[: 2 * HELD_OUT], pairs[2 * HELD_OUT :]
    describe("Before", base, prompts[:HELD_OUT])

    record = mint.watch.record("runs/dpo", config={"steps": STEPS})
    for step in range(1, STEPS + 1):
        pairs_N = random.Random(step).sample(training, BATCH)
        loss_fn = partial(dpo_loss, pairs_N)
        metrics = client.forward_backward_custom(flatten(pairs_N), loss_fn).result().metrics
        client.optim_step(types.AdamParams(learning_rate=LEARNING_RATE)).result()
        record.step({"loss": metrics["loss:sum"], "margin": metrics["margin"]})
        print(
            f"step {step}: loss={metrics['loss:sum']:.3f} margin={metrics['margin']:.2f}",
            flush=True,
        )

    outputs = client.forward(flatten(held_out), "cross_entropy").result().loss_fn_outputs
    new = margins(held_out, [output["logprobs"].to_torch() for output in outputs])
    right = (new > 0).float().mean()
    print(
        f"{len(held_out)} held-out pairs: margin={new.mean():.2f} accuracy={right:.1%}", flush=True
    )
    path = client.save_weights_for_sampler(name="dpo").result().path
    record.event("checkpoint", path=path)
    record.close()
    describe("After", service.create_sampling_client(path), prompts[:HELD_OUT])
    print(f"Saved: {path}")


if __name__ == "__main__":
    main()
