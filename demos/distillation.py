"""On-policy distillation: the student samples, and the teacher scores every token.

    python demos/distillation.py

Asked to complete "The capital of Peru is", the base model names the city and keeps writing. With
three examples in its prompt, the same model names the city and stops. The student learns to do so
without the examples: this is context distillation, which moves a prompt into the weights. The
student samples, both models score the sampled tokens, and log p_teacher - log p_student is the
advantage of a token. Its mean is minus the reverse KL. So this is RL with a reward for every token,
on texts that the student itself writes. It needs no gold answers; here they only measure progress.

Any model on the service with the student's tokenizer can be the teacher: make `teacher` a sampling
client of a larger model or of a trained checkpoint, with the prompt that it needs.

Without MINT_BASE_URL it starts a service on this machine. Settings are environment variables:

    MINT_BASE_MODEL      Qwen/Qwen3-0.6B   teacher and student
    MINT_LORA_RANK       16
    MINT_DISTILL_STEPS   10
    MINT_DISTILL_BATCH   16                countries per step
    MINT_DISTILL_GROUP   4                 answers to each
    MINT_DISTILL_LR      1e-4
    MINT_DISTILL_EVAL    20                held-out countries, evaluated before and after

Names end in their dimensions: P prompts of a step, D sampled answers, T tokens of an answer.
"""

from __future__ import annotations

import os
import random
from typing import NamedTuple

import mint
import mint.watch
from mint import types

BASE_MODEL = os.environ.get("MINT_BASE_MODEL", "Qwen/Qwen3-0.6B")
LORA_RANK = int(os.environ.get("MINT_LORA_RANK", "16"))
STEPS = int(os.environ.get("MINT_DISTILL_STEPS", "10"))
BATCH = int(os.environ.get("MINT_DISTILL_BATCH", "16"))
GROUP = int(os.environ.get("MINT_DISTILL_GROUP", "4"))
LEARNING_RATE = float(os.environ.get("MINT_DISTILL_LR", "1e-4"))
EVAL = int(os.environ.get("MINT_DISTILL_EVAL", "20"))

CAPITALS = """France Paris, Spain Madrid, Italy Rome, Germany Berlin, Japan Tokyo, China Beijing,
Russia Moscow, Greece Athens, Egypt Cairo, Peru Lima, Cuba Havana, Kenya Nairobi, Norway Oslo,
Sweden Stockholm, Poland Warsaw, Austria Vienna, Portugal Lisbon, Ireland Dublin, Hungary Budapest,
Turkey Ankara, Iran Tehran, Iraq Baghdad, Thailand Bangkok, Denmark Copenhagen, Belgium Brussels,
Chile Santiago, Lebanon Beirut, Syria Damascus, Jordan Amman, Serbia Belgrade, Bulgaria Sofia,
Romania Bucharest, Croatia Zagreb, Iceland Reykjavik, Vietnam Hanoi, Taiwan Taipei, Ghana Accra,
Nepal Kathmandu, Afghanistan Kabul, Senegal Dakar, Uganda Kampala, Venezuela Caracas,
Ecuador Quito"""
QUESTION = "The capital of {} is"
EXAMPLES = (
    "The capital of England is London\nThe capital of Canada is Ottawa\n"
    "The capital of Finland is Helsinki\n"
)
SEEDS = random.Random(0)


class Problem(NamedTuple):
    """A sentence to complete: the answer, and the prompts of the student and the teacher."""

    answer: str
    student: list[int]
    teacher: list[int]


Answer = tuple[Problem, types.SampledSequence]


def sample(
    client: mint.SamplingClient, prompts_P: list[list[int]], count: int, temperature: float
) -> list[list[types.SampledSequence]]:
    """Sample answers to every prompt, all in flight at once."""
    futures_P = []
    for prompt in prompts_P:
        seed = SEEDS.getrandbits(31)
        params = types.SamplingParams(max_tokens=6, temperature=temperature, stop=["\n"], seed=seed)
        futures_P.append(client.sample(types.ModelInput.from_ints(prompt), count, params))
    return [list(future.result().sequences) for future in futures_P]


def accuracy(client: mint.SamplingClient, prompts: list[list[int]], answers: list[str]) -> str:
    """Report how often the greedy answer is the city and nothing else."""
    decode = client.get_tokenizer().decode
    texts = [decode(group[0].tokens) for group in sample(client, prompts, 1, 0.0)]
    right = sum(text == answer for text, answer in zip(texts, answers, strict=True))
    return f"accuracy={right / len(texts):.1%} on {len(texts)} held-out countries"


def train(
    student: mint.TrainingClient, teacher: mint.SamplingClient, answers_D: list[Answer]
) -> float:
    """Compute gradients with log p_teacher - log p_student as the advantage. Return the KL."""
    scored_D = [
        teacher.compute_logprobs(types.ModelInput.from_ints([*problem.teacher, *answer.tokens]))
        for problem, answer in answers_D
    ]
    gains_D = []
    for (_, answer), scored in zip(answers_D, scored_D, strict=True):
        teacher_T = scored.result()[-len(answer.tokens) :]
        gains_D.append([t - s for t, s in zip(teacher_T, answer.logprobs, strict=True)])
    baseline = sum(map(sum, gains_D)) / sum(map(len, gains_D))  # less noise, the same mean
    datums_D = []
    for (problem, answer), gains_T in zip(answers_D, gains_D, strict=True):
        full, prefix = [*problem.student, *answer.tokens], [0.0] * (len(problem.student) - 1)
        inputs = {
            "target_tokens": full[1:],
            "logprobs": prefix + answer.logprobs,
            "advantages": prefix + [gain - baseline for gain in gains_T],
        }
        prompt = types.ModelInput.from_ints(full[:-1])
        datums_D.append(types.Datum(model_input=prompt, loss_fn_inputs=inputs))
    student.forward_backward(datums_D, "importance_sampling").result()
    return -sum(map(sum, gains_D))


def main() -> None:
    service = mint.ServiceClient()
    student = service.create_lora_training_client(BASE_MODEL, rank=LORA_RANK, seed=0)
    teacher = service.create_sampling_client(base_model=BASE_MODEL)
    encode = student.get_tokenizer().encode
    problems = []
    for country, capital in (pair.split() for pair in CAPITALS.split(",")):
        question = QUESTION.format(country)
        problems.append(Problem(f" {capital}\n", encode(question), encode(f"{EXAMPLES}{question}")))
    random.Random(0).shuffle(problems)
    held_out, training = problems[:EVAL], problems[EVAL:]
    answers, unaided, aided = ([p[i] for p in held_out] for i in range(3))
    print(f"Teacher: {accuracy(teacher, aided, answers)}", flush=True)
    print(f"Student before: {accuracy(teacher, unaided, answers)}", flush=True)

    record = mint.watch.record("runs/distillation", config={"steps": STEPS})
    for step in range(1, STEPS + 1):
        policy = student.save_weights_and_get_sampling_client(name=f"step-{step}")
        problems_P = random.Random(step).sample(training, BATCH)
        groups_P = sample(policy, [p.student for p in problems_P], GROUP, 1.0)
        answers_D = [(p, a) for p, group in zip(problems_P, groups_P, strict=True) for a in group]
        kl = train(student, teacher, answers_D)
        student.optim_step(types.AdamParams(learning_rate=LEARNING_RATE)).result()
        record.step({"loss": kl / len(answers_D)})
        print(f"step {step}: KL per answer={kl / len(answers_D):.3f}", flush=True)

    path = student.save_weights_for_sampler(name="distilled").result().path
    record.event("checkpoint", path=path)
    record.close()
    print(f"Student after: {accuracy(service.create_sampling_client(path), unaided, answers)}")
    print(f"Saved: {path}")


if __name__ == "__main__":
    main()
