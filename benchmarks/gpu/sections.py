"""What is measured of an engine, a function for each section of the result.

Rates count tokens as a user does: every new token of every answer, every token of every datum.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.ceilings import cache_bytes_per_token
from benchmarks.gpu.driver import ASSUMED_LOGPROB, RUN, SAMPLER, Driver, Tokens
from benchmarks.gpu.driver import answer_datum as make_answer
from benchmarks.gpu.driver import weighted_datum as make_weighted
from benchmarks.gpu.shapes import Shape
from mint.commands.bench.ceilings import find_products, flops_per_token
from mint.engine.messages import Datum, SampleResult

GIB = 2**30


@dataclass(frozen=True)
class Bench:
    """An engine under measurement, its shape, and the ceilings measured before it."""

    driver: Driver
    shape: Shape
    ceilings: dict[str, Any]


def sampling(bench: Bench) -> dict[str, Any]:
    """Measure tokens/s by the number of answers at once, beside what memory bandwidth allows."""
    sizes, report = bench.shape.sizes, {}
    for answers in sizes.answers:
        group = min(sizes.group, answers)
        rate = _sampling_rate(bench, answers // group, group, sizes.new)
        bound = bandwidth_bound(bench, answers)
        share = rate["tokens_per_second"] / bound if bound else None
        report[str(answers)] = {**rate, "bandwidth_bound": bound, "share_of_bound": share}
    return report


def _sampling_rate(
    bench: Bench, prompts: int, group: int, new: int, samplers: tuple[str, ...] = (SAMPLER,)
) -> dict[str, Any]:
    driver = bench.driver
    texts = driver.prompts(prompts, bench.shape.sizes.prompt)

    def renew() -> None:
        for sampler in samplers:
            driver.renew_sampler(sampler, RUN if sampler == SAMPLER else sampler)

    times = driver.rounds(lambda: driver.sample(texts, group, new, samplers), before=renew)
    return {**times, "tokens_per_second": prompts * group * new / times["seconds"]}


def bandwidth_bound(bench: Bench, answers: int) -> float | None:
    """Return the tokens/s if a step only read the weights and every answer's keys and values.

    Half precision, no prompt shared, half of the new tokens there; copies measured in this run.
    """
    copy = bench.ceilings.get("copy")
    if not copy:
        return None
    sizes, config = bench.shape.sizes, bench.shape.config
    weights = 2 * sum(product.weights for product in find_products(config))
    length = sizes.prompt + sizes.new / 2
    cached = answers * length * cache_bytes_per_token(config)
    return float(answers * copy / (weights + cached))


def training(bench: Bench) -> dict[str, Any]:
    """Train on distinct sequences, with all logprobs: both losses, and the memory it takes."""
    sizes, driver = bench.shape.sizes, bench.driver
    rows = driver.prompts(sizes.rows, sizes.length + 1)
    half = sizes.length // 2
    logprobs = np.full(sizes.length + 1 - half, ASSUMED_LOGPROB, np.float32)
    losses = {
        "cross_entropy": [make_weighted(row) for row in rows],
        "importance_sampling": [
            make_answer(row[:half], row[half:], logprobs, (-1.0) ** number)
            for number, row in enumerate(rows)
        ],
    }
    return {loss: _training_rate(bench, data, loss) for loss, data in losses.items()}


def groups(bench: Bench) -> dict[str, Any]:
    """Train on as many tokens in groups that share their prompts."""
    sizes, driver = bench.shape.sizes, bench.driver
    prompts = driver.prompts(max(1, sizes.rows // sizes.group), sizes.shared)
    answers = driver.prompts(sizes.rows, sizes.length + 1 - sizes.shared, seed=1)
    data = [
        _assumed_answer(prompts[n // sizes.group], answer, n) for n, answer in enumerate(answers)
    ]
    return _training_rate(bench, data, "importance_sampling")


def _assumed_answer(prompt: Tokens, answer: Tokens, number: int) -> Datum:
    logprobs = np.full(len(answer), ASSUMED_LOGPROB, np.float32)
    return make_answer(prompt, answer, logprobs, (-1.0) ** number)


def _training_rate(bench: Bench, data: list[Datum], loss: str) -> dict[str, Any]:
    driver = bench.driver
    is_gpu = driver.device == "cuda"
    if is_gpu:
        torch.cuda.reset_peak_memory_stats()
    times = driver.rounds(lambda: driver.forward_backward(data, loss), 5, driver.optim_step)
    driver.optim_step()
    rate = sum(len(datum.tokens) for datum in data) / times["seconds"]
    report = {**times, "tokens_per_second": rate}
    products = find_products(bench.shape.config)
    if matmul := bench.ceilings.get("matmul"):
        # forward, and backward to the activations alone: the weights are frozen
        report["share_of_matmul"] = rate * 2 * flops_per_token(products) / matmul["bfloat16"]
    if is_gpu:
        torch.cuda.empty_cache()
        # Replayed passes allocate nothing: their memory stays reserved.
        peak = max(torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved())
        plan = driver.engine.info.plan
        pool = plan.kv_bytes if plan else 0
        report |= {"peak_gib": peak / GIB, "peak_without_pool_gib": (peak - pool) / GIB}
    return report


def grpo(bench: Bench) -> dict[str, Any]:
    """Run whole steps, and each of their parts by itself."""
    sizes, driver = bench.shape.sizes, bench.driver
    prompts = driver.prompts(sizes.grpo_prompts, sizes.prompt)

    def sample() -> list[SampleResult]:
        return driver.sample(prompts, sizes.grpo_group, sizes.grpo_new)

    def step() -> None:
        driver.renew_sampler()
        driver.train(_answers(prompts, sample()), "importance_sampling")

    handoff = driver.rounds(driver.renew_sampler)
    sampled = driver.rounds(sample, repeats=2, before=driver.renew_sampler)
    data = _answers(prompts, sample())
    trained = driver.rounds(lambda: driver.train(data, "importance_sampling"), repeats=2)
    whole = driver.rounds(step, repeats=2)
    parts = handoff["seconds"] + sampled["seconds"] + trained["seconds"]
    return {
        "handoff": handoff,
        "sample": sampled,
        "train": trained,
        "whole": whole,
        "sum_of_parts": parts,
        "parts_over_whole": parts / whole["seconds"],
        "handoff_share": handoff["seconds"] / whole["seconds"],
        "tokens_per_second": len(data) * sizes.grpo_new / whole["seconds"],
    }


def _answers(prompts: list[Tokens], results: list[SampleResult]) -> list[Datum]:
    return [
        make_answer(prompt, answer.tokens, answer.logprobs, (-1.0) ** number)
        for prompt, result in zip(prompts, results, strict=True)
        for number, answer in enumerate(result.sequences)
    ]


def adapters(bench: Bench) -> dict[str, Any]:
    """Sample with many adapters at once, and as many answers with one."""
    sizes, driver = bench.shape.sizes, bench.driver
    names = [f"run-{number}" for number in range(sizes.adapters)]
    for number, name in enumerate(names):
        driver.create_run(name, seed=number)
    prompts = sizes.adapter_answers // sizes.group
    one = _sampling_rate(bench, prompts, sizes.group, sizes.new)
    many = _sampling_rate(bench, prompts, sizes.group, sizes.new, tuple(names))
    for name in names:
        driver.engine.drop_sampler(name)
        driver.engine.drop_run(name)
    cost = many["seconds"] / one["seconds"]
    return {"adapters": len(names), "one": one, "many": many, "cost": cost}


def long(bench: Bench) -> dict[str, Any]:
    """Sample from and train on one context that fills what is asked for."""
    sizes, driver = bench.shape.sizes, bench.driver
    [tokens] = driver.prompts(1, sizes.context)
    new = min(64, sizes.context // 4)
    prompt = [tokens[: sizes.context - new]]
    first = driver.rounds(lambda: driver.sample(prompt, 1, 1), 1, driver.renew_sampler)
    sampled = driver.rounds(lambda: driver.sample(prompt, 1, new), 1, driver.renew_sampler)
    data = [make_weighted(tokens)]
    trained = _training_rate(bench, data, "cross_entropy")
    decode = max(1e-9, sampled["seconds"] - first["seconds"]) / (new - 1)
    return {
        "context": sizes.context,
        "prefill_tokens_per_second": len(prompt[0]) / first["seconds"],
        "decode_seconds_per_token": decode,
        "train": trained,
    }


def prefill(bench: Bench) -> dict[str, Any]:
    """Sample short answers to many long prompts: most of the work is prefill."""
    sizes, driver = bench.shape.sizes, bench.driver
    texts = driver.prompts(sizes.heavy_prompts, sizes.heavy_prompt)
    times = driver.rounds(
        lambda: driver.sample(texts, 1, sizes.heavy_new), before=driver.renew_sampler
    )
    tokens = sizes.heavy_prompts * (sizes.heavy_prompt + sizes.heavy_new)
    return {**times, "tokens_per_second": tokens / times["seconds"]}


def stall(bench: Bench) -> dict[str, Any]:
    """Time the steps of running answers, and the longest after a long prompt has joined them."""
    sizes, driver = bench.shape.sizes, bench.driver
    answers = sizes.answers[min(2, len(sizes.answers) - 1)]
    texts = driver.prompts(max(1, answers // sizes.group), sizes.prompt)
    [intruder] = driver.prompts(1, sizes.long_prompt, seed=3)
    steps: list[float] = []

    def run(with_intruder: bool) -> list[float]:
        driver.renew_sampler()
        for ticket, prompt in enumerate(texts):
            driver.submit(ticket, prompt, min(sizes.group, answers), sizes.new, SAMPLER)
        steps.clear()
        while not driver.engine.sampling.is_idle:
            if with_intruder and len(steps) == sizes.new // 2:
                driver.submit(len(texts), intruder, 1, 2, SAMPLER)
            start = time.perf_counter()
            driver.engine.sampling.step()
            steps.append(time.perf_counter() - start)
        return list(steps)

    run(True)
    calm, disturbed = run(False), run(True)
    usual = median(calm)
    longest = max(disturbed[sizes.new // 2 :])
    return {"usual_step": usual, "longest_step": longest, "stall": longest / usual}


def sharing(bench: Bench) -> dict[str, Any]:
    """Compare groups with as many strangers, and one burst with prompt after prompt."""
    sizes, driver = bench.shape.sizes, bench.driver
    count = max(1, sizes.rows // sizes.group)
    prompts = driver.prompts(count, sizes.shared)
    strangers = driver.prompts(count * sizes.group, sizes.shared)
    answers = driver.prompts(count * sizes.group, sizes.length + 1 - sizes.shared, seed=1)
    shared = [_assumed_answer(prompts[n // sizes.group], a, n) for n, a in enumerate(answers)]
    apart = [_assumed_answer(strangers[n], a, n) for n, a in enumerate(answers)]
    together, alone = (
        driver.rounds(lambda data=data: driver.train(data, "importance_sampling"))["seconds"]
        for data in (shared, apart)
    )

    def bursts(*texts: list[Tokens]) -> None:
        for burst in texts:
            driver.sample(burst, sizes.group, sizes.new)

    burst = driver.rounds(lambda: bursts(prompts), before=driver.renew_sampler)
    serial = driver.rounds(lambda: bursts(*([p] for p in prompts)), 1, driver.renew_sampler)
    return {
        "train_seconds_shared_prompts": together,
        "train_seconds_distinct_prompts": alone,
        "train_speedup_from_sharing": alone / together,
        "sample_seconds_one_burst": burst["seconds"],
        "sample_seconds_one_prompt_at_a_time": serial["seconds"],
        "sample_speedup_from_batching": serial["seconds"] / burst["seconds"],
    }


def conversation(bench: Bench) -> dict[str, Any]:
    """Run parallel conversations with one sampler, and with one that is new at every turn."""
    kept, renewed = ([_converse(bench, renew) for _ in range(2)] for renew in (False, True))
    return {
        "seconds_after_first_turn_kept_prefixes": min(kept),
        "seconds_after_first_turn_nothing_kept": min(renewed),
        "speedup_from_kept_prefixes": min(renewed) / min(kept),
    }


def _converse(bench: Bench, renew: bool) -> float:
    """Return how long all turns but the first took together."""
    sizes, driver = bench.shape.sizes, bench.driver
    rng = np.random.default_rng(2)
    driver.renew_sampler()
    talks = [np.empty(0, np.int64)] * sizes.talks
    start = time.perf_counter()
    for turn in range(sizes.turns):
        if turn == 1:
            driver.synchronize()
            start = time.perf_counter()
        if renew:
            driver.renew_sampler()
        questions = rng.integers(0, driver.vocabulary, (len(talks), sizes.turn))
        asked = [np.concatenate(pair) for pair in zip(talks, questions, strict=True)]
        replies = [result.sequences[0].tokens for result in driver.sample(asked, 1, sizes.turn)]
        talks = [np.concatenate(pair) for pair in zip(asked, replies, strict=True)]
    driver.synchronize()
    return time.perf_counter() - start


def gap(bench: Bench) -> dict[str, Any]:
    """Measure how far the sampler's logprobs are from the trainer's, over the answers' tokens."""
    sizes, driver = bench.shape.sizes, bench.driver
    group = min(sizes.group, sizes.gap_answers)
    prompts = driver.prompts(sizes.gap_answers // group, sizes.prompt)
    driver.renew_sampler()
    results = driver.sample(prompts, group, sizes.gap_new)
    data, sampled = [], []
    for prompt, result in zip(prompts, results, strict=True):
        for answer in result.sequences:
            full = np.concatenate([prompt, answer.tokens])
            data.append(Datum(full[:-1], {"target_tokens": full[1:]}))
            sampled.append(answer.logprobs)
    output = driver.forward_backward(data, "cross_entropy", forward_only=True)
    gaps = np.concatenate(
        [
            np.abs(mine - theirs[-sizes.gap_new :])
            for mine, theirs in zip(sampled, output.logprobs, strict=True)
        ]
    )
    return {"mean": float(gaps.mean()), "largest": float(gaps.max()), "tokens": gaps.size}


SECTIONS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "sampling": sampling,
    "training": training,
    "groups": groups,
    "grpo": grpo,
    "adapters": adapters,
    "long": long,
    "prefill": prefill,
    "stall": stall,
    "sharing": sharing,
    "conversation": conversation,
    "gap": gap,
}
