"""The work that all sides share: token ids, sizes and an adapter, written once as files.

Reading one needs the standard library alone, since every side does it in its own environment.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LORA_RANK = 16
LORA_ALPHA = 32  # mint's own, which a script does not set
LORA_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SEED = 0
FILE = "workload.json"


@dataclass(frozen=True)
class Workload:
    """Prompts as token ids, with a group of fixed answers to each that sides train on.

    Names end in their dimensions: P prompts, G answers of a group, T tokens.
    """

    model: str
    prompts_P_T: list[list[int]]
    answers_P_G_T: list[list[list[int]]]
    group: int
    adapter: str
    rank: int = LORA_RANK

    @property
    def answers(self) -> int:
        """Answers of a burst."""
        return len(self.prompts_P_T) * self.group

    @property
    def train_tokens(self) -> int:
        """Tokens of the training groups as a user counts them: every answer with its prompt."""
        pairs = zip(self.prompts_P_T, self.answers_P_G_T, strict=True)
        return sum(len(prompt) + len(answer) - 1 for prompt, group in pairs for answer in group)

    def save(self, folder: Path) -> Path:
        path = folder / FILE
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def load(cls, path: Path) -> Workload:
        return cls(**json.loads(path.read_text()))


def make_workload(
    model: Path, folder: Path, prompts: int = 8, group: int = 6, answer_tokens: int = 16
) -> Workload:
    """Encode the questions with the model's tokenizer, draw answers, and write an adapter."""
    import numpy as np
    from transformers import AutoTokenizer

    from mint.commands.bench.timed_run import write_questions

    tokenizer = AutoTokenizer.from_pretrained(model)
    config = json.loads((model / "config.json").read_text())
    rng = np.random.default_rng(SEED)
    answers = rng.integers(3, min(config["vocab_size"], 256), (prompts, group, answer_tokens))
    adapter = folder / "adapter"
    write_adapter(adapter, config, model)
    return Workload(
        model=str(model),
        prompts_P_T=[tokenizer.encode(text) for text in write_questions(prompts)],
        answers_P_G_T=answers.tolist(),
        group=group,
        adapter=str(adapter),
    )


def write_adapter(folder: Path, config: dict[str, Any], model: Path) -> None:
    """Write a random adapter on the seven projections of every layer, in PEFT's format.

    Both of its matrices are random, so that no side can leave it out.
    """
    import numpy as np
    from safetensors.numpy import save_file

    rng = np.random.default_rng(SEED)
    hidden, wide, heads = (
        config[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads")
    )
    size = config.get("head_dim") or hidden // heads
    queries, keys = heads * size, (config.get("num_key_value_heads") or heads) * size
    shapes = {
        "self_attn.q_proj": (hidden, queries),
        "self_attn.k_proj": (hidden, keys),
        "self_attn.v_proj": (hidden, keys),
        "self_attn.o_proj": (queries, hidden),
        "mlp.gate_proj": (hidden, wide),
        "mlp.up_proj": (hidden, wide),
        "mlp.down_proj": (wide, hidden),
    }
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (inputs, outputs) in shapes.items():
            site = f"base_model.model.model.layers.{layer}.{name}"
            bound = inputs**-0.5
            a = rng.uniform(-bound, bound, (LORA_RANK, inputs))
            b = rng.normal(0, 0.002, (outputs, LORA_RANK))
            tensors[f"{site}.lora_A.weight"] = a.astype(np.float32)
            tensors[f"{site}.lora_B.weight"] = b.astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    description = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": LORA_RANK,
        "lora_alpha": LORA_ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(LORA_LAYERS),
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(description, indent=1))
