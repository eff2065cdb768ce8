"""The design's bounds on sampler and trainer, on a real language model."""

from __future__ import annotations

import numpy as np
import pytest

from mint.catalog import Catalog
from mint.engine.engine import Engine
from mint.engine.messages import AdamSettings, Datum, ForwardBackward, LoraSpec, SampleRequest
from mint.engine.model.base_model import BaseModel
from tests.engine.conftest import sample

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "largest", "mean"),
    [("exact", 1e-4, 1e-5), ("half", 3e-2, 2e-3), ("bfloat16", 3e-1, 2e-2)],
)
def test_sampler_and_trainer_agree(precision: str, largest: float, mean: float) -> None:
    model = BaseModel.load(NAME, Catalog().locate(NAME), device="cpu", precision=precision)
    engine = Engine(model, memory_gb=1.0)
    engine.create_run("run", LoraSpec(rank=8, seed=1))
    text = np.array(model.tokenizer.encode("Q: What is 3 + 5?\nA: 8\n\nQ: What is 12 + 7?\nA:"))
    step = ForwardBackward([Datum(text[:-1], {"target_tokens": text[1:]})], "cross_entropy")
    engine.forward_backward("run", [step])
    engine.optim_step("run", AdamSettings(learning_rate=1e-4))
    engine.create_sampler("s", run_id="run")
    request = SampleRequest(text, num_samples=4, max_tokens=16, seed=0, stop=[])
    [result] = sample(engine, "s", request)

    data = []
    for sequence in result.sequences:
        full = np.concatenate([text, sequence.tokens])
        data.append(Datum(full[:-1], {"target_tokens": full[1:]}))
    operation = ForwardBackward(data, "cross_entropy", forward_only=True)
    [output] = engine.forward_backward("run", [operation])
    gaps = np.concatenate(
        [
            np.abs(sequence.logprobs - logprobs[len(text) - 1 :])
            for sequence, logprobs in zip(result.sequences, output.logprobs, strict=True)
        ]
    )
    print(f"{precision}: largest gap {gaps.max():.2e}, mean {gaps.mean():.2e}")
    assert gaps.max() <= largest
    assert gaps.mean() <= mean
