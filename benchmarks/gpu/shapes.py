"""Random models of real shapes, and how much work is measured on each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.tiny import build_tokenizer

SPREAD = 0.02
SPECIAL_TOKENS = {"bos_token_id": 257, "eos_token_id": 258, "pad_token_id": 256}


@dataclass(frozen=True)
class Sizes:
    """How much of everything is measured; the defaults are the targets' own."""

    answers: tuple[int, ...] = (1, 8, 48, 256, 512)
    answers_of_peers: tuple[int, ...] = (1, 48, 256)
    group: int = 8
    prompt: int = 128
    new: int = 128
    rows: int = 64  # of training, each of `length` tokens
    length: int = 256
    shared: int = 192  # tokens of a prompt that the rows of a group share
    grpo_prompts: int = 32
    grpo_group: int = 16
    grpo_new: int = 256
    adapters: int = 16
    adapter_answers: int = 256
    context: int = 32_768
    long_prompt: int = 4_000
    heavy_prompts: int = 256  # of a load that is mostly prefill
    heavy_prompt: int = 1_024
    heavy_new: int = 32
    gap_answers: int = 64
    gap_new: int = 64
    talks: int = 8
    turns: int = 5
    turn: int = 50  # tokens of a question, and of an answer


@dataclass(frozen=True)
class Shape:
    """A model's sizes in the words of its config.json, and what is measured with it."""

    config: dict[str, Any]
    sizes: Sizes
    sections: tuple[str, ...] | None = None  # all of them, unless it says which


_QWEN3 = {"head_dim": 128, "vocab_size": 151_936, "max_position_embeddings": 40_960}
SHAPES = {
    "0.6b": Shape(
        {
            **_QWEN3,
            "num_hidden_layers": 28,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "tie_word_embeddings": True,
        },
        Sizes(),
    ),
    "8b": Shape(
        {
            **_QWEN3,
            "num_hidden_layers": 36,
            "hidden_size": 4096,
            "intermediate_size": 12_288,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "tie_word_embeddings": False,
        },
        Sizes(answers=(1, 64), answers_of_peers=(64,)),
        ("ceilings", "peers", "sampling", "training", "groups", "gap"),
    ),
    "135m": Shape(  # SmolLM2's sizes, for a CPU
        {
            "head_dim": 64,
            "vocab_size": 49_152,
            "max_position_embeddings": 8_192,
            "num_hidden_layers": 30,
            "hidden_size": 576,
            "intermediate_size": 1_536,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "tie_word_embeddings": True,
        },
        Sizes(
            answers=(1, 8, 48, 256, 512),
            prompt=64,
            new=32,
            adapter_answers=48,
            context=8_192,
            gap_answers=48,
        ),
        ("sampling", "adapters", "long", "stall", "gap"),
    ),
    "tiny": Shape(
        {
            "head_dim": 16,
            "vocab_size": 512,
            "max_position_embeddings": 1024,
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
        Sizes(
            answers=(1, 4, 8),
            answers_of_peers=(1, 4),
            group=4,
            prompt=16,
            new=8,
            rows=4,
            length=32,
            shared=24,
            grpo_prompts=2,
            grpo_group=2,
            grpo_new=8,
            adapters=3,
            adapter_answers=12,
            context=256,
            long_prompt=200,
            heavy_prompts=8,
            heavy_prompt=64,
            heavy_new=4,
            gap_answers=8,
            gap_new=8,
            talks=2,
            turns=3,
            turn=8,
        ),
    ),
}


def build(folder: Path, shape: Shape, device: str, spread: float = SPREAD) -> None:
    """Write a random model of a shape, with a tokenizer of bytes; bfloat16 weights on a GPU.

    ``spread`` is the standard deviation of its weights.
    """
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3", **shape.config, **SPECIAL_TOKENS)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, spread)
    model.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
