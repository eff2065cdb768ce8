"""Saved adapters load in PEFT and give the same logprobs there as here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from mint.engine.engine import Engine
from mint.engine.messages import Datum, ForwardBackward, LoraSpec, SampleRequest, UserError
from mint.engine.model.base_model import BaseModel
from tests.engine.conftest import ids, sample
from tests.engine.training.test_trainer import randomise
from tests.tiny import build_model

TEXT = ids("an adapter leaves the house")


@pytest.mark.parametrize("family", ["llama", "qwen3"])  # untied and tied embeddings
@pytest.mark.parametrize("trained", ["attn", "mlp", "unembed", "all"])
def test_peft_gives_the_same_logprobs(family: str, trained: str, tmp_path: Path) -> None:
    folder = build_model(tmp_path / "m" / family, family)
    engine = Engine(BaseModel.load(family, folder, device="cpu", precision="exact"))
    flags = {f"train_{k}": trained in (k, "all") for k in ("attn", "mlp", "unembed")}
    engine.create_run("run", LoraSpec(rank=4, seed=1, **flags))
    randomise(engine._runs["run"].adapter)
    saved = tmp_path / "adapter"
    saved.mkdir()
    engine.save_adapter("run", str(saved))

    datum = Datum(TEXT[:-1], {"target_tokens": TEXT[1:]})
    operation = ForwardBackward([datum], "cross_entropy", forward_only=True)
    [output] = engine.forward_backward("run", [operation])
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs = PeftModel.from_pretrained(plain, saved).eval()
    with torch.no_grad():
        logits = theirs(torch.as_tensor(TEXT[:-1])[None]).logits[0]
    wanted = torch.log_softmax(logits, -1).gather(-1, torch.as_tensor(TEXT[1:])[:, None])[:, 0]
    assert np.abs(output.logprobs[0] - wanted.numpy()).max() <= 1e-4


def test_a_sampler_from_a_folder_equals_one_from_the_run(base: BaseModel, tmp_path: Path) -> None:
    engine = Engine(base)
    engine.create_run("run", LoraSpec(rank=4, seed=1))
    randomise(engine._runs["run"].adapter)
    engine.save_adapter("run", str(tmp_path))
    engine.create_sampler("live", run_id="run")
    engine.create_sampler("stored", folder=str(tmp_path))
    request = SampleRequest(TEXT, num_samples=2, max_tokens=5, seed=1)
    [live], [stored] = sample(engine, "live", request), sample(engine, "stored", request)
    np.testing.assert_array_equal(live.sequences[1].logprobs, stored.sequences[1].logprobs)


def test_an_adapter_with_another_alpha_keeps_its_effect(base: BaseModel, tmp_path: Path) -> None:
    engine = Engine(base)
    engine.create_run("run", LoraSpec(rank=4, seed=1))
    adapter = engine._runs["run"].adapter
    randomise(adapter)
    engine.create_sampler("live", run_id="run")
    with torch.no_grad():
        for _, b in adapter.pairs.values():
            b *= 2
    engine.save_adapter("run", str(tmp_path))
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 16}))
    engine.create_sampler("half", folder=str(tmp_path))
    request = SampleRequest(TEXT, max_tokens=5, seed=1)
    [live], [half] = sample(engine, "live", request), sample(engine, "half", request)
    np.testing.assert_allclose(live.sequences[0].logprobs, half.sequences[0].logprobs, atol=5e-5)


def test_loading_into_a_run_of_another_shape_says_which_shape_it_needs(
    base: BaseModel, tmp_path: Path
) -> None:
    engine = Engine(base)
    engine.create_run("small", LoraSpec(rank=2, train_mlp=False))
    engine.save_state("small", str(tmp_path))
    engine.create_run("big", LoraSpec(rank=8))
    with pytest.raises(UserError, match=r"rank=2.*train_mlp=False"):
        engine.load_state("big", str(tmp_path), optimizer=True)


def test_an_adapter_of_another_model_is_refused(base: BaseModel, tmp_path: Path) -> None:
    folder = build_model(tmp_path / "m" / "wide", "llama", hidden_size=64)
    other = Engine(BaseModel.load("wide", folder, device="cpu", precision="exact"))
    other.create_run("run", LoraSpec(rank=2))
    saved = tmp_path / "adapter"
    saved.mkdir()
    other.save_adapter("run", str(saved))
    with pytest.raises(UserError, match="does not fit this base model"):
        Engine(base).create_sampler("s", folder=str(saved))
