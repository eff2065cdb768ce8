"""mint's side: the loop of ``quickstart/custom_reward.py`` through the SDK.

    python -m benchmarks.trl.run_mint --model FOLDER --rows FILE

It starts a service for itself, or uses the one at MINT_BASE_URL.
"""

from __future__ import annotations

import random
from importlib.metadata import version
from statistics import fmean
from typing import Any

import mint
from benchmarks.trl import task as the
from benchmarks.trl.record import Record
from benchmarks.trl.task import Problem, Settings, Task, score, side_parser
from mint import types

Groups = list[list[types.SampledSequence]]


class Side:
    """A LoRA run on a service, with the tokenizer of its model."""

    def __init__(self, model: str, seed: int) -> None:
        self.client = mint.ServiceClient().create_lora_training_client(
            base_model=model,
            rank=the.LORA_RANK,
            seed=seed,
            train_attn=True,
            train_mlp=True,
            train_unembed=False,
        )
        self.tokenizer: Any = self.client.get_tokenizer()
        self._seeds = random.Random(seed)

    def ask(self, prompts: list[str], group: int, temperature: float) -> Groups:
        """Answers to every prompt, sampled with the weights as they are now."""
        sampler = self.client.save_weights_and_get_sampling_client()
        futures = [
            sampler.sample(
                prompt=types.ModelInput.from_ints(tokens=self.tokenizer.encode(prompt)),
                num_samples=group,
                sampling_params=types.SamplingParams(
                    max_tokens=the.MAX_TOKENS,
                    temperature=temperature,
                    stop=[the.STOP],
                    seed=self._seeds.getrandbits(31),
                ),
            )
            for prompt in prompts
        ]
        return [list(future.result().sequences) for future in futures]

    def texts(self, groups: Groups) -> list[list[str]]:
        return [[self.tokenizer.decode(answer.tokens) for answer in group] for group in groups]

    def train(self, data: list[types.Datum]) -> None:
        """One step of Adam on the answers."""
        adam = types.AdamParams(learning_rate=the.LEARNING_RATE, betas=the.BETAS, eps=the.EPSILON)
        gradients = self.client.forward_backward(data, loss_fn="importance_sampling")
        update = self.client.optim_step(adam)
        gradients.result()
        update.result()

    def data(
        self, problems: list[Problem], prompts: list[str], groups: Groups, texts: list[list[str]]
    ) -> list[types.Datum]:
        """Every answer with its reward above its group's mean; groups that agree are left out."""
        data = []
        for problem, prompt, group, texts_G in zip(problems, prompts, groups, texts, strict=True):
            rewards_G = [score(text, problem).total for text in texts_G]
            if min(rewards_G) == max(rewards_G):
                continue
            tokens, mean = self.tokenizer.encode(prompt), fmean(rewards_G)
            data += [
                datum(tokens, answer, reward - mean)
                for answer, reward in zip(group, rewards_G, strict=True)
            ]
        return data


def datum(prompt: list[int], answer: types.SampledSequence, advantage: float) -> types.Datum:
    """One answer to train on."""
    tokens_T, logprobs_T = list(answer.tokens), list(answer.logprobs or [])
    full, prefix = prompt + tokens_T, [0.0] * (len(prompt) - 1)
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens=full[:-1]),
        loss_fn_inputs={
            "target_tokens": full[1:],
            "weights": prefix + [1.0] * len(tokens_T),
            "logprobs": prefix + logprobs_T,
            "advantages": prefix + [advantage] * len(tokens_T),
        },
    )


def main() -> None:
    options = side_parser(__doc__).parse_args()
    settings = Settings.of(options)
    task = Task(settings, options.seed)
    record = Record(options.rows, task)
    side = Side(options.model, options.seed)
    record.ready(mint=mint.__version__, torch=version("torch"))

    def evaluate(when: str) -> None:
        groups = side.ask([task.prompt(problem) for problem in task.held_out], 1, 0.0)
        record.evaluated(when, [text for [text] in side.texts(groups)])

    evaluate("before")
    for step, problems in enumerate(task.steps, 1):
        record.begin()
        prompts = [task.prompt(problem) for problem in problems]
        groups = side.ask(prompts, settings.group, the.TEMPERATURE)
        texts = side.texts(groups)
        tokens = sum(len(answer.tokens) for group in groups for answer in group)
        record.sampled(problems, prompts, texts, tokens)
        if data := side.data(problems, prompts, groups, texts):
            side.train(data)
        record.end(step)
    evaluate("after")


if __name__ == "__main__":
    main()
