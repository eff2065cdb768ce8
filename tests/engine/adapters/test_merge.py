"""A merged model has the logprobs of the adapter, and the file layout of the base model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from mint.engine.adapters import merge as merging
from mint.engine.adapters.lora import new_adapter
from mint.engine.adapters.merge import Check, check_adapter, check_merged, merge
from mint.engine.adapters.peft_files import convert_adapter, write_adapter
from mint.engine.messages import LoraSpec, UserError
from mint.engine.model.base_model import BaseModel
from tests.engine.training.test_trainer import randomise
from tests.tiny import build_model


def make_adapter(base: Path, folder: Path, **flags: bool) -> Path:
    """Write a random adapter for a base model."""
    model = BaseModel.load(base.name, base, device="cpu", precision="exact")
    adapter = new_adapter(LoraSpec(rank=4, seed=1, **flags), model.sites, model.device)
    randomise(adapter)
    folder.mkdir()
    write_adapter(adapter, folder, base.name)
    return folder


def keys_of(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return set(file.keys())


def config_of(folder: Path) -> dict[str, object]:
    return dict(json.loads((folder / "config.json").read_text()))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "gemma2", "phi3"])
def test_a_merged_model_has_the_logprobs_of_the_adapter(family: str, tmp_path: Path) -> None:
    base = build_model(tmp_path / family, family)
    adapter = make_adapter(base, tmp_path / "adapter")
    out = tmp_path / "merged"
    assert merge(base, adapter, out) == "float32"
    check = check_merged(base, adapter, out)
    assert check.largest <= 1e-3
    assert check.moved > 0.1
    assert check.tokens > 100
    check.require("float32")


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "gpt_oss"])
def test_experts_are_merged_into_the_files_that_the_base_model_has(
    family: str, tmp_path: Path
) -> None:
    base = build_model(tmp_path / family, family)
    adapter = make_adapter(base, tmp_path / "adapter")
    out = tmp_path / "merged"
    merge(base, adapter, out)
    assert check_merged(base, adapter, out).largest <= 1e-3
    assert keys_of(out) == keys_of(base)


def test_a_tied_output_layer_is_made_separate_only_when_it_was_trained(tmp_path: Path) -> None:
    base = build_model(tmp_path / "qwen3", "qwen3")
    assert "lm_head.weight" not in keys_of(base)
    with_head = make_adapter(base, tmp_path / "with")
    merge(base, with_head, tmp_path / "untied")
    assert keys_of(tmp_path / "untied") == {*keys_of(base), "lm_head.weight"}
    assert config_of(tmp_path / "untied")["tie_word_embeddings"] is False
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "untied")
    plain = AutoModelForCausalLM.from_pretrained(base)
    torch.testing.assert_close(loaded.model.embed_tokens.weight, plain.model.embed_tokens.weight)

    without = make_adapter(base, tmp_path / "without", train_unembed=False)
    merge(base, without, tmp_path / "tied")
    assert keys_of(tmp_path / "tied") == keys_of(base)
    assert config_of(tmp_path / "tied")["tie_word_embeddings"] is True
    assert check_merged(base, without, tmp_path / "tied").largest <= 1e-3


def test_weights_are_rounded_once_to_the_format_that_was_asked_for(tmp_path: Path) -> None:
    base = build_model(tmp_path / "qwen3", "qwen3", spread=0.1)
    adapter = make_adapter(base, tmp_path / "adapter")
    assert merge(base, adapter, tmp_path / "half", "bfloat16") == "bfloat16"
    with safe_open(tmp_path / "half" / "model.safetensors", framework="pt") as file:
        assert {file.get_tensor(key).dtype for key in file.keys()} == {torch.bfloat16}  # noqa: SIM118
    check = check_merged(base, adapter, tmp_path / "half")
    assert 0 < check.largest < check.moved


def test_an_adapter_in_16_bits_is_compared_with_the_original(tmp_path: Path) -> None:
    base = build_model(tmp_path / "llama", "llama", spread=0.1)
    adapter = make_adapter(base, tmp_path / "adapter")
    (tmp_path / "copy").mkdir()
    convert_adapter(adapter, tmp_path / "copy", torch.float16)
    assert 0 < check_adapter(base, adapter, tmp_path / "copy").largest < 0.1


@pytest.mark.parametrize("peft", [True, False])
@pytest.mark.parametrize("family", ["qwen3", "gpt2", "qwen3_moe"])
def test_an_exported_adapter_is_run_by_another_program(
    family: str, peft: bool, tmp_path: Path
) -> None:
    base = build_model(tmp_path / family, family)
    adapter = make_adapter(base, tmp_path / "adapter")
    check = check_adapter(base, adapter, adapter, peft=peft)
    assert check.largest <= 1e-3
    assert check.moved > 0.1
    assert check.by.startswith("PEFT" if peft else "transformers")
    check.require("float32")


@pytest.mark.parametrize("peft", [True, False])
def test_an_exported_adapter_that_answers_otherwise_is_an_error(peft: bool, tmp_path: Path) -> None:
    base = build_model(tmp_path / "llama", "llama")
    adapter = make_adapter(base, tmp_path / "adapter")
    copy = tmp_path / "copy"
    shutil.copytree(adapter, copy)
    config = json.loads((copy / "adapter_config.json").read_text())
    (copy / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 1}))
    check = check_adapter(base, adapter, copy, peft=peft)
    with pytest.raises(UserError, match=f"{check.by}, does not match the adapter"):
        check.require("float32")


def test_a_merge_that_moves_the_embedding_too_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = build_model(tmp_path / "qwen3", "qwen3")
    adapter = make_adapter(base, tmp_path / "adapter")
    merge(base, adapter, tmp_path / "right")
    tied = AutoModelForCausalLM.from_pretrained(base)
    head = AutoModelForCausalLM.from_pretrained(tmp_path / "right").lm_head.weight
    with torch.no_grad():
        tied.lm_head.weight.copy_(head)
    tied.save_pretrained(tmp_path / "wrong")
    check = check_merged(base, adapter, tmp_path / "wrong")
    with pytest.raises(UserError, match="does not match the adapter"):
        check.require("float32")


def test_nan_is_an_error() -> None:
    with pytest.raises(UserError, match="nan"):
        Check(10, float("nan"), 1.0).require("float32")
    assert set(merging.LARGEST_DIFFERENCE) == set(merging.DTYPES)
