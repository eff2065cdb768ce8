"""The GPU's path: bfloat16 weights under float32 activations. Needs an NVIDIA GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mint.engine.messages import ForwardBackward, LoraSpec, SampleRequest
from mint.engine.model import BaseModel
from mint.engine.trainer import Run
from tests.engine.conftest import ids, sample
from tests.engine.test_sampler import trained_engine, trainer_logprobs
from tests.engine.test_trainer import PlainModel, assert_close, gradients, group, loss_of, randomise
from tests.tiny import FAMILIES, build_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")


def rounded_weights(plain: PlainModel) -> PlainModel:
    """The reference with the linear weights and embeddings that the GPU holds."""
    with torch.no_grad():
        for parameter in plain.model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(parameter.to(torch.bfloat16))
    return plain


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gpt_oss"])
def test_gradients_equal_those_of_a_float64_model_with_the_same_weights(
    family: str, tmp_path: Path
) -> None:
    folder = build_model(tmp_path / "models" / family, family)
    run = Run(BaseModel.load(family, folder), LoraSpec(rank=4, seed=1))
    randomise_on_cpu(run)
    data = group(seed=5)
    [result] = run.forward_backward([ForwardBackward(data, "cross_entropy")])
    plain = rounded_weights(PlainModel(folder, on_cpu(run)))
    total = torch.zeros((), dtype=torch.float64)
    for datum, logprobs in zip(data, result.logprobs, strict=True):
        lp = plain.logprobs(datum)
        # Gemma rounds the scale of its embeddings to the weights' precision.
        bound = 2e-2 if family == "gemma2" else 5e-3
        np.testing.assert_allclose(logprobs, lp[:, 0].detach(), atol=bound)
        total = total + loss_of("cross_entropy", lp, datum)
    total.backward()
    for name, pair in gradients(run).items():
        for mine, reference in zip(pair, plain.pairs[name], strict=True):
            # The backward products round the incoming gradient to bfloat16.
            gap = (mine.cpu().double() - reference.grad).norm() / reference.grad.norm()
            assert gap <= 2e-2, name


def randomise_on_cpu(run: Run) -> None:
    copy = on_cpu(run)
    randomise(copy)
    with torch.no_grad():
        for name, (_, b) in run.adapter.pairs.items():
            b.copy_(copy.pairs[name][1])


def on_cpu(run: Run):
    return run.adapter.frozen_copy(torch.device("cpu"))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"])
def test_sampler_and_trainer_agree(family: str, tmp_path: Path) -> None:
    model = BaseModel.load(family, build_model(tmp_path / "m" / family, family))
    engine = trained_engine(model)
    prompt = ids("Q: 1 + 1?\nA:")
    for _ in range(2):  # the second turn goes on from prefixes that the first one left
        request = SampleRequest(prompt, num_samples=32, max_tokens=64, seed=1, stop=[])
        [result] = sample(engine, "trained", request)
        wanted = trainer_logprobs(engine, prompt, result)
        gaps = np.concatenate(
            [np.abs(s.logprobs - lp) for s, lp in zip(result.sequences, wanted, strict=True)]
        )
        assert gaps.max() <= 2e-2
        assert gaps.mean() <= 2e-3
        prompt = np.concatenate([prompt, result.sequences[0].tokens, prompt])


def test_float32_on_the_gpu_equals_float32_on_the_cpu(tiny_model: Path) -> None:
    runs = [
        Run(BaseModel.load("tiny", tiny_model, device, torch.float32), LoraSpec(rank=4, seed=1))
        for device in ("cuda", "cpu")
    ]
    for run in runs:
        run.forward_backward([ForwardBackward(group(3), "importance_sampling")])
    gpu, cpu = (gradients(run) for run in runs)
    for name, pair in cpu.items():
        for mine, reference in zip(gpu[name], pair, strict=True):
            assert_close(mine.cpu(), reference, name)
