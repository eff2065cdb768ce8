"""An engine with a run whose adapter does something, and the few calls that sections time.

Names end in their dimensions: P prompts, D datums, T tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mint.engine.engine import Engine
from mint.engine.messages import (
    AdamSettings,
    Datum,
    ForwardBackward,
    ForwardBackwardResult,
    LoraSpec,
    SampleRequest,
    SampleResult,
)

RANK = 16
RUN = "run"
SAMPLER = "now"
ACTIVATING_RATE = 5e-3  # of the one step that moves B from zero
ASSUMED_LOGPROB = -10.0
WARM_UPS = 2  # the first round compiles, the second records what is replayed from then on
Tokens = NDArray[np.int64]


class Driver:
    """Calls the engine as the service does, and waits for the device."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.vocabulary = engine.model.info.vocab_size
        self.device = engine.model.device.type
        self.create_run(RUN, seed=0)

    def create_run(self, run_id: str, seed: int) -> None:
        """Create a run and train it for one step: B is not zero then, so its adapter is active."""
        self.engine.create_run(run_id, LoraSpec(rank=RANK, seed=seed, train_unembed=False))
        [tokens] = self.prompts(1, 32, seed)
        data = [Datum(tokens[:-1], {"target_tokens": tokens[1:]})]
        self.engine.forward_backward(run_id, [ForwardBackward(data, "cross_entropy")])
        self.engine.optim_step(run_id, AdamSettings(learning_rate=ACTIVATING_RATE))

    def prompts(self, count: int, length: int, seed: int = 0) -> list[Tokens]:
        """Return random prompts that differ from their first token on."""
        rng = np.random.default_rng(seed)
        rows = rng.integers(0, self.vocabulary, (count, length))
        rows[:, 0] = np.arange(count) % self.vocabulary
        return list(rows)

    # ---- sampling --------------------------------------------------------------------------------

    def renew_sampler(self, sampler: str = SAMPLER, run_id: str = RUN) -> None:
        """Make a sampler of a run as it is, which has seen no prompt yet."""
        self.engine.drop_sampler(sampler)
        self.engine.create_sampler(sampler, run_id=run_id)

    def submit(self, ticket: int, prompt: Tokens, group: int, new: int, sampler: str) -> None:
        """Queue a request whose answers nothing ends early."""
        request = SampleRequest(prompt, group, new, seed=ticket, stop=[])
        self.engine.sample(ticket, sampler, request)

    def drain(self) -> dict[int, SampleResult]:
        """Step until nothing is left to do."""
        results = {}
        while not self.engine.sampling.is_idle:
            results |= {job.ticket: job.result() for job in self.engine.sampling.step()}
        return results

    def sample(
        self,
        prompts_P: Sequence[Tokens],
        group: int,
        new: int,
        samplers: Sequence[str] = (SAMPLER,),
    ) -> list[SampleResult]:
        """Answer every prompt with a group, the samplers in turn."""
        for ticket, prompt in enumerate(prompts_P):
            self.submit(ticket, prompt, group, new, samplers[ticket % len(samplers)])
        results = self.drain()
        return [results[ticket] for ticket in range(len(prompts_P))]

    # ---- training --------------------------------------------------------------------------------

    def forward_backward(
        self, data_D: list[Datum], loss: str, forward_only: bool = False
    ) -> ForwardBackwardResult:
        operation = ForwardBackward(data_D, loss, forward_only=forward_only)
        [result] = self.engine.forward_backward(RUN, [operation])
        return result

    def optim_step(self, learning_rate: float = 0.0) -> None:
        self.engine.optim_step(RUN, AdamSettings(learning_rate=learning_rate))

    def train(self, data_D: list[Datum], loss: str) -> None:
        """Run one training step that changes nothing, so that all rounds do the same."""
        self.forward_backward(data_D, loss)
        self.optim_step()

    # ---- time ------------------------------------------------------------------------------------

    def seconds(self, work: Callable[[], Any]) -> float:
        """Time a piece of work to its end on the device."""
        self.synchronize()
        start = time.perf_counter()
        work()
        self.synchronize()
        return time.perf_counter() - start

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def rounds(
        self, work: Callable[[], Any], repeats: int = 3, before: Callable[[], Any] | None = None
    ) -> dict[str, Any]:
        """Time some rounds after those that warm up; ``before`` is done ahead of each, untimed."""
        times = []
        for _ in range(WARM_UPS + repeats):
            if before is not None:
                before()
            times.append(self.seconds(work))
        rounds = times[WARM_UPS:]
        return {"seconds": median(rounds), "rounds": rounds, "first": times[0]}


def weighted_datum(tokens: Tokens) -> Datum:
    """Return a datum whose every token counts, for cross_entropy."""
    inputs = {"target_tokens": tokens[1:], "weights": np.ones(len(tokens) - 1, np.float32)}
    return Datum(tokens[:-1], inputs)


def answer_datum(prompt: Tokens, answer: Tokens, logprobs: Any, advantage: float) -> Datum:
    """Return an answer for importance_sampling; the prompt counts for nothing."""
    full = np.concatenate([prompt, answer])
    given = np.zeros(len(prompt) - 1, np.float32)
    inputs = {
        "target_tokens": full[1:],
        "logprobs": np.concatenate([given, np.asarray(logprobs, np.float32)]),
        "advantages": np.concatenate([given, np.full(len(answer), advantage, np.float32)]),
    }
    return Datum(full[:-1], inputs)
