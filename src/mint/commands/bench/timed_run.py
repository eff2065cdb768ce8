"""A LoRA run on a service, timed at the client: every figure includes HTTP and waiting.

Names end in their dimensions: P prompts, G answers of a group, T tokens of an answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mint
    from mint import types

LEARNING_RATE = 1e-5
QUESTIONS = (
    "Question: A baker fills {a} trays with {b} rolls each before sunrise. By noon {c} rolls are "
    "sold, and in the afternoon the baker gives a dozen of the others to a school nearby. How many "
    "rolls are left in the evening? Explain every step.\nAnswer:",
    "Question: A train leaves the harbour with {a} passengers. At the first stop {b} people get on "
    "and a few get off, so that {c} seats are taken when it reaches the mountains. How many people "
    "got off on the way? Explain every step.\nAnswer:",
    "Question: A library has {a} shelves. Each of them holds {b} novels and also {c} books about "
    "the history of science. How many books of both kinds does the library hold in all, and how "
    "many of them are novels? Explain every step.\nAnswer:",
    "Question: A farmer picks {a} baskets of apples in the morning and {b} in the afternoon. Each "
    "basket weighs {c} kilograms, and one in ten of them is kept for cider. How many kilograms "
    "does the farmer take to the market? Explain every step.\nAnswer:",
)


def write_questions(count: int) -> list[str]:
    """Return distinct questions of about 64 tokens, the same in every call.

    >>> len(set(write_questions(100)))
    100
    """
    texts = zip(range(count), cycle(QUESTIONS), strict=False)
    return [text.format(a=12 + n, b=7 + n * 3 % 50, c=21 + n * 7 % 90) for n, text in texts]


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one GRPO step: new weights to the sampler, the answers, the update."""

    handoff: float
    sample: float
    train: float

    @property
    def total(self) -> float:
        return self.handoff + self.sample + self.train


class TimedRun:
    """A training client and prompts, with calls that return how long they took."""

    def __init__(self, client: mint.TrainingClient, prompts_P: list[list[int]]) -> None:
        self.client = client
        self.prompts_P = prompts_P
        self._sampler: mint.SamplingClient

    def handoff(self) -> float:
        """Create a sampler of the current weights, without cached prompts."""
        start = time.perf_counter()
        self._sampler = self.client.save_weights_and_get_sampling_client()
        return time.perf_counter() - start

    def sample(
        self, prompts: int, group: int, tokens: int
    ) -> tuple[list[list[types.SampledSequence]], float]:
        """Sample a group of answers to each of the first prompts, all of full length."""
        from mint import types

        start = time.perf_counter()
        futures_P = [
            self._sampler.sample(
                prompt=types.ModelInput.from_ints(tokens=prompt),
                num_samples=group,
                sampling_params=types.SamplingParams(
                    max_tokens=tokens, temperature=1.0, stop=[], seed=number
                ),
            )
            for number, prompt in enumerate(islice(cycle(self.prompts_P), prompts))
        ]
        groups_P = [list(future.result().sequences) for future in futures_P]
        return groups_P, time.perf_counter() - start

    def datums(self, groups_P: Sequence[Sequence[types.SampledSequence]]) -> list[types.Datum]:
        """Return the answers as datums with alternating advantages."""
        from mint.rl.datums.datum import make_datum
        from mint.rl.rollouts.rollout import Segment

        return [
            make_datum(Segment.of(prompt, answer.tokens, answer.logprobs or []), (-1.0) ** number)
            for prompt, group_G in zip(cycle(self.prompts_P), groups_P, strict=False)
            for number, answer in enumerate(group_G)
        ]

    def forward_backward(self, data: list[types.Datum]) -> float:
        """Add the gradient of the answers."""
        start = time.perf_counter()
        self.client.forward_backward(data, loss_fn="importance_sampling").result()
        return time.perf_counter() - start

    def optim_step(self, learning_rate: float = LEARNING_RATE) -> float:
        """Apply the gradient."""
        from mint import types

        start = time.perf_counter()
        self.client.optim_step(types.AdamParams(learning_rate=learning_rate)).result()
        return time.perf_counter() - start

    def step(self, prompts: int, group: int, tokens: int) -> StepTimes:
        """Run one GRPO step: hand the weights to the sampler, sample, update."""
        handoff = self.handoff()
        groups_P, sample = self.sample(prompts, group, tokens)
        start = time.perf_counter()
        self.forward_backward(self.datums(groups_P))
        self.optim_step()
        return StepTimes(handoff, sample, time.perf_counter() - start)
