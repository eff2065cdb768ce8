"""mint's side: the SDK, an embedded service, its engine; every figure is what a script waits for.

Before anything is measured the run is trained a little, so that its adapter changes every product.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean
from typing import Any

import mint
from benchmarks import beside
from benchmarks.cpu.answering import Handler, serve, versions
from benchmarks.cpu.workload import SEED, Workload
from mint.commands.bench.measure import read_plan
from mint.commands.bench.timed_run import TimedRun
from mint.embedded import embedded_service
from mint.rl.datums.datum import make_datum
from mint.rl.rollouts.rollout import Segment

FIRST_LEARNING_RATE = 1e-3
ASSUMED_LOGPROB = -5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", type=Path, required=True)
    options = parser.parse_args()
    serve(lambda: prepare(Workload.load(options.workload)))


def prepare(work: Workload) -> tuple[dict[str, Handler], dict[str, Any]]:
    """Load the model, and run everything once."""
    client = mint.ServiceClient().create_lora_training_client(
        work.model, rank=work.rank, seed=SEED, train_unembed=False
    )
    run = TimedRun(client, work.prompts_P_T)
    prompts, group = len(work.prompts_P_T), work.group
    data = [
        make_datum(Segment.of(prompt, answer, [ASSUMED_LOGPROB] * len(answer)), (-1.0) ** number)
        for prompt, answers in zip(work.prompts_P_T, work.answers_P_G_T, strict=True)
        for number, answer in enumerate(answers)
    ]
    run.forward_backward(data)
    run.optim_step(FIRST_LEARNING_RATE)

    def sample(tokens: int) -> dict[str, Any]:
        run.handoff()  # a sampler that has not seen the prompts, as every step of RL has
        groups_P, seconds = run.sample(prompts, group, tokens)
        answers = [answer for group_G in groups_P for answer in group_G]
        _check(answers, tokens, work.answers)
        return {"seconds": seconds, "tokens": len(answers) * tokens}

    def train() -> dict[str, Any]:
        seconds = run.forward_backward(data)
        run.optim_step()
        return {"seconds": seconds, "tokens": work.train_tokens}

    def step(tokens: int) -> dict[str, Any]:
        times = run.step(prompts, group, tokens)
        return {"seconds": times.total, **vars(times), "tokens": work.answers * tokens}

    def gap(tokens: int) -> dict[str, Any]:
        run.handoff()
        groups_P, _ = run.sample(prompts, group, tokens)
        return measure_gap(run, groups_P)

    def wait(tokens: int) -> dict[str, Any]:
        run.handoff()
        return beside.measure(run, data, tokens)

    step(2)
    precision, reason = read_plan(embedded_service().log.read_text(errors="replace"))
    facts = {"precision": precision, "reason": reason, **versions("mint", "torch", "transformers")}
    handlers = {"sample": sample, "train": train, "step": step, "gap": gap, "beside": wait}
    return handlers, facts


def measure_gap(run: TimedRun, groups_P: list[list[Any]]) -> dict[str, Any]:
    """Return how far the trainer's logprobs of some answers are from those the sampler gave."""
    output = run.client.forward(run.datums(groups_P), "importance_sampling").result()
    answers = [answer for group_G in groups_P for answer in group_G]
    gaps = [
        abs(float(mine) - float(theirs))
        for answer, trained in zip(answers, output.loss_fn_outputs, strict=True)
        for mine, theirs in zip(
            answer.logprobs, list(trained["logprobs"].data)[-len(answer.tokens) :], strict=True
        )
    ]
    return {"mean": fmean(gaps), "largest": max(gaps), "tokens": len(gaps)}


def _check(answers: list[Any], tokens: int, count: int) -> None:
    short = [a for a in answers if len(a.tokens) != tokens or len(a.logprobs or []) != tokens]
    if len(answers) != count or short:
        raise RuntimeError(f"wanted {count} answers of {tokens} tokens with logprobs")


if __name__ == "__main__":
    main()
