"""The whole GRPO step through the SDK, HTTP and a service of its own, as a script waits for it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import beside
from benchmarks.gpu.driver import RANK
from benchmarks.gpu.shapes import Sizes

ROUNDS = 3
FIRST_LEARNING_RATE = 5e-3  # of the one step that moves B from zero


def measure(folder: Path, sizes: Sizes, vocabulary: int, precision: str) -> dict[str, Any]:
    """Start a service with the model of a folder, and time some steps after one to warm up."""
    import mint
    from mint.commands.bench.timed_run import StepTimes, TimedRun
    from mint.embedded import stop_embedded_service

    rng = np.random.default_rng(0)
    prompts = rng.integers(0, vocabulary, (sizes.grpo_prompts, sizes.prompt)).tolist()

    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"MINT_HOME": home, "MINT_PRECISION": precision}
        try:
            client = mint.ServiceClient().create_lora_training_client(
                str(folder), rank=RANK, seed=0, train_unembed=False
            )
            run = TimedRun(client, prompts)

            def step() -> StepTimes:
                return run.step(sizes.grpo_prompts, sizes.grpo_group, sizes.grpo_new)

            step()
            run.optim_step(FIRST_LEARNING_RATE)
            step()
            times = [step() for _ in range(ROUNDS)]
            groups, _ = run.sample(sizes.grpo_prompts, sizes.grpo_group, sizes.grpo_new)
            waits = beside.measure(run, run.datums(groups))
        finally:
            stop_embedded_service()
    whole = median(each.total for each in times)
    parts = {
        name: median(getattr(each, name) for each in times)
        for name in ("handoff", "sample", "train")
    }
    tokens = sizes.grpo_prompts * sizes.grpo_group * sizes.grpo_new
    return {
        **parts,
        "whole": whole,
        "handoff_share": parts["handoff"] / whole,
        "tokens_per_second": tokens / whole,
        "rounds": [each.total for each in times],
        "beside": waits,
    }
