"""Random tiny models of real architectures, with a byte-level tokenizer, made in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = 272
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 257,
    "eos_token_id": 258,
    "pad_token_id": 256,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False},
    "qwen3": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": 6},
    "gemma2": {"sliding_window": 6, "query_pre_attn_scalar": 8, "final_logit_softcapping": 5.0},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "granite": {"logits_scaling": 3.0},
    "cohere": {"logit_scale": 0.5},
    "gpt_oss": {"sliding_window": 6, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {"tie_word_embeddings": True},
    "gemma3_text": {
        "sliding_window": 6,
        "query_pre_attn_scalar": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "phi3": {"sliding_window": 6},
    "smollm3": {"no_rope_layers": [1, 0]},
    "llama3": {
        "model_type": "llama",
        "rope_theta": 100.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "qwen3_moe": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, and three special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(folder: Path, family: str = "llama", spread: float = 0.3, **overrides: Any) -> Path:
    """Write a random model of a family, and its tokenizer, into a folder.

    Weights have the given spread: livelier than the library's own, so that mistakes show.
    """
    torch.manual_seed(0)
    sizes = SIZES if family != "gpt2" else {"vocab_size": VOCABULARY, "eos_token_id": 258}
    settings = {"model_type": family, **sizes, **FAMILIES.get(family, {}), **overrides}
    config = AutoConfig.for_model(**settings)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, spread)
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and name.endswith("bias"):
                parameter.normal_(0, spread)
    model.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder
