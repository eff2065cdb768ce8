"""transformers on the same device: ``generate``, and forward and backward without LoRA.

It runs before the engine is loaded, which may take what memory is free. It gets what is fastest
for it: bfloat16 throughout, no logprobs of answers, no adapter, gradients of activations alone
(as much as an adapter needs), and the micro-batch that is best of some.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.gpu.shapes import Sizes

GIB = 2**30
WARM_TOKENS = 4


def measure(folder: Path, sizes: Sizes, device: str) -> dict[str, Any]:
    """Measure both, and leave the device's memory as it was."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device)
    model.requires_grad_(False)
    model.generation_config.eos_token_id = None
    try:
        return {
            "generate": {str(n): _generate(model, n, sizes) for n in sizes.answers_of_peers},
            "training": _train(model, sizes),
        }
    finally:
        del model
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


def _generate(model: Any, answers: int, sizes: Sizes) -> dict[str, float]:
    """Sample as many answers as the engine, once, after a few tokens to warm up."""
    group = min(sizes.group, answers)
    vocabulary = model.config.vocab_size
    prompts = torch.randint(0, vocabulary, (answers // group, sizes.prompt), device=model.device)
    times = []
    for new in (WARM_TOKENS, sizes.new):
        start = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                input_ids=prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=True,
                top_k=0,
                max_new_tokens=new,
                num_return_sequences=group,
                pad_token_id=0,
            )
        _synchronize(model)
        times.append(time.perf_counter() - start)
    rate = answers // group * group * sizes.new / times[-1]
    return {"seconds": times[-1], "tokens_per_second": rate}


def _train(model: Any, sizes: Sizes) -> dict[str, Any]:
    """Take the best micro-batch of those that fit into memory."""
    vocabulary = model.config.vocab_size
    tokens = torch.randint(0, vocabulary, (sizes.rows, sizes.length + 1), device=model.device)
    rates: dict[int, dict[str, Any]] = {}
    for size in (8, 16, 32, 64):
        if size <= max(8, sizes.rows):
            try:
                rates[size] = _train_rate(model, tokens, size)
            except torch.OutOfMemoryError:
                break
    best = max(rates, key=lambda size: rates[size]["tokens_per_second"])
    return {"micro_batch": best, **rates[best]}


def _train_rate(model: Any, tokens: torch.Tensor, size: int) -> dict[str, Any]:
    is_gpu = model.device.type == "cuda"
    if is_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        for rows in tokens.split(size):
            inputs = model.get_input_embeddings()(rows[:, :-1]).requires_grad_()
            logits = model(inputs_embeds=inputs, use_cache=False).logits
            flat, targets = logits.flatten(0, 1).float(), rows[:, 1:].flatten()
            torch.nn.functional.cross_entropy(flat, targets, reduction="sum").backward()
            del logits, flat
        _synchronize(model)
        times.append(time.perf_counter() - start)
    seconds = min(times[1:])
    peak = torch.cuda.max_memory_allocated() / GIB if is_gpu else None
    count = tokens.shape[0] * (tokens.shape[1] - 1)
    return {"seconds": seconds, "tokens_per_second": count / seconds, "peak_gib": peak}


def _synchronize(model: Any) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize()
