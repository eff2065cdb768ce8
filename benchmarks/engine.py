"""What sharing prefixes is worth, and how fast the engine trains and samples.

Run with ``python -m benchmarks.engine [--family qwen3 --hidden 1024 --layers 28 ...]``. It builds
a random model of the given size, needs only torch, transformers and safetensors, and prints JSON.
The ratios compare within one run; the absolute figures are this machine's.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from mint.engine.engine import Engine
from mint.engine.messages import (
    AdamParams,
    Datum,
    ForwardBackward,
    LoraSpec,
    SampleRequest,
    SampleResult,
)
from mint.engine.model import BaseModel
from tests.engine.counting import tokens_run
from tests.tiny import build_model


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        model = load(Path(folder) / "model" / "random", options)
    engine = Engine(model)
    engine.create_run("run", LoraSpec(rank=options.rank, seed=0))
    report = {
        "device": torch.cuda.get_device_name() if model.device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "settings": vars(options),
        **training(engine, options),
        **sampling(engine, options),
        **conversing(engine, options),
        **agreement(engine, options),
    }
    print(json.dumps(report, indent=1))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", default="llama")
    sizes = {"hidden": 576, "intermediate": 1536, "layers": 30, "heads": 9, "kv-heads": 3}
    sizes |= {"head": 64, "vocabulary": 49152, "rank": 16}
    sizes |= {"prompts": 8, "group": 8, "prompt-tokens": 64, "answer-tokens": 32}
    sizes |= {"turns": 5, "question-tokens": 50, "reply-tokens": 50}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def load(folder: Path, options: argparse.Namespace) -> BaseModel:
    build_model(
        folder,
        options.family,
        spread=0.02,
        vocab_size=options.vocabulary,
        hidden_size=options.hidden,
        intermediate_size=options.intermediate,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads,
        head_dim=options.head,
        max_position_embeddings=4096,
    )
    return BaseModel.load("random", folder)


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """The best of a few runs after a warm-up: other load on the machine only adds time."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def prompts(options: argparse.Namespace, count: int) -> list[np.ndarray]:
    """Prompts that differ from their first token on."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, options.vocabulary, (count, options.prompt_tokens))
    rows[:, 0] = np.arange(count)
    return list(rows)


def training(engine: Engine, options: argparse.Namespace) -> dict[str, float]:
    """One forward_backward on groups that share their prompts, and on as many strangers."""
    rng = np.random.default_rng(1)
    count = options.prompts * options.group

    def datum(prompt: np.ndarray) -> Datum:
        answer = rng.integers(0, options.vocabulary, options.answer_tokens)
        full = np.concatenate([prompt, answer])
        mask = (np.arange(len(full) - 1) >= len(prompt) - 1).astype(np.float32)
        inputs = {"target_tokens": full[1:], "logprobs": -10 * mask, "advantages": mask}
        return Datum(full[:-1], inputs)

    shared = [datum(p) for p in prompts(options, options.prompts) for _ in range(options.group)]
    apart = [datum(p) for p in prompts(options, count)]

    def step(data: list[Datum]) -> None:
        engine.forward_backward("run", [ForwardBackward(data, "importance_sampling")])
        engine.optim_step("run", AdamParams(learning_rate=0.0))

    together, alone = seconds(lambda: step(shared)), seconds(lambda: step(apart))
    tokens = sum(len(d.tokens) for d in shared)
    return {
        "train_seconds_shared_prompts": together,
        "train_seconds_distinct_prompts": alone,
        "train_speedup_from_sharing": alone / together,
        "train_tokens_per_second": tokens / together,
    }


def sampling(engine: Engine, options: argparse.Namespace) -> dict[str, float]:
    """One burst of groups, and the same rollouts asked for one after the other."""

    def bursts(*texts: list[np.ndarray]) -> None:
        renew_sampler(engine)
        for burst in texts:
            answers(engine, burst, options.group, options.answer_tokens)

    texts = prompts(options, options.prompts)
    together = seconds(lambda: bursts(texts))
    serially = seconds(lambda: bursts(*([text] for text in texts)), repeats=1)
    tokens = options.prompts * options.group * options.answer_tokens
    return {
        "sample_seconds_one_burst": together,
        "sample_seconds_one_prompt_at_a_time": serially,
        "sample_speedup_from_batching": serially / together,
        "sample_tokens_per_second": tokens / together,
    }


def conversing(engine: Engine, options: argparse.Namespace) -> dict[str, float]:
    """Parallel conversations with one sampler, and with one that is new to them at every turn."""
    decoded = options.prompts * options.turns * (options.reply_tokens - 1)
    report: dict[str, float] = {}
    for name, renew in (("kept_prefixes", False), ("nothing_kept", True)):
        with tokens_run(engine.model) as seen:
            times = [converse(engine, options, renew) for _ in range(2)]
        report[f"converse_prefilled_tokens_{name}"] = sum(seen) // len(times) - decoded
        report[f"converse_seconds_after_first_turn_{name}"] = min(times)
    return report


def converse(engine: Engine, options: argparse.Namespace, renew: bool) -> float:
    """How long all turns but the first took together."""
    rng = np.random.default_rng(2)
    renew_sampler(engine)
    talks = [np.empty(0, np.int64)] * options.prompts
    start = time.perf_counter()
    for turn in range(options.turns):
        if turn == 1:
            start = time.perf_counter()
        if renew:
            renew_sampler(engine)
        questions = rng.integers(0, options.vocabulary, (len(talks), options.question_tokens))
        asked = [np.concatenate(pair) for pair in zip(talks, questions, strict=True)]
        results = answers(engine, asked, 1, options.reply_tokens)
        replies = [result.sequences[0].tokens for result in results]
        talks = [np.concatenate(pair) for pair in zip(asked, replies, strict=True)]
    return time.perf_counter() - start


def renew_sampler(engine: Engine) -> None:
    """A sampler of the run as it is, which has seen no prompt yet."""
    engine.drop_sampler("now")
    engine.create_sampler("now", run_id="run")


def answers(engine: Engine, texts: list[np.ndarray], group: int, tokens: int) -> list[SampleResult]:
    for ticket, prompt in enumerate(texts):
        request = SampleRequest(prompt, group, tokens, seed=ticket, stop=[])
        engine.sample(ticket, "now", request)
    results = {}
    while not engine.sampling.is_idle:
        results |= {job.ticket: job.result() for job in engine.sampling.step()}
    return [results[ticket] for ticket in range(len(texts))]


def agreement(engine: Engine, options: argparse.Namespace) -> dict[str, float]:
    """How far the sampler's logprobs are from the trainer's."""
    [prompt] = prompts(options, 1)
    [result] = answers(engine, [prompt], 8, options.answer_tokens)
    fulls = [np.concatenate([prompt, s.tokens]) for s in result.sequences]
    data = [Datum(full[:-1], {"target_tokens": full[1:]}) for full in fulls]
    operation = ForwardBackward(data, "cross_entropy", forward_only=True)
    [output] = engine.forward_backward("run", [operation])
    gaps = np.concatenate(
        [
            np.abs(s.logprobs - logprobs[len(prompt) - 1 :])
            for s, logprobs in zip(result.sequences, output.logprobs, strict=True)
        ]
    )
    return {"largest_gap": float(gaps.max()), "mean_gap": float(gaps.mean())}


if __name__ == "__main__":
    main()
