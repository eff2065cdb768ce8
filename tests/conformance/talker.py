"""A tiny model that has learned to say a few things, so that the rewards of recipes differ.

It sees only its last few tokens, so what it learned on short texts holds after long prompts.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.tiny import build_model

END = "<|im_end|>"
SAYINGS = [
    *[rf"\boxed{{1}}{END}", rf"\boxed{{2}}{END}", f"7{END}"],  # sums
    *[f"Guess: 512{END}", "[0]\n", "[4]\n"],  # moves in games
    *[f"Final Answer: fr{END}"] * 3,  # a language, most likely
]
BEGINNINGS = ["<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"]
CONTEXT = 8192
_STEPS = 150
_UNSET = -100


def build_talker(folder: Path, sayings: list[str] = SAYINGS) -> Path:
    """Write the model and its tokenizer into a folder."""
    build_model(folder, "mistral", spread=0.1, max_position_embeddings=CONTEXT, sliding_window=6)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens, targets = _lessons(tokenizer, sayings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    slower = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, _STEPS)
    random = torch.Generator().manual_seed(0)
    for _ in range(_STEPS):
        noise = torch.randint(256, tokens.shape, generator=random)
        optimizer.zero_grad()
        model(input_ids=tokens.where(tokens >= 0, noise), labels=targets).loss.backward()
        optimizer.step()
        slower.step()
    model.save_pretrained(folder)
    return folder


def _lessons(tokenizer: object, sayings: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Every saying after every beginning, with room for noise before; the saying is learned."""
    lessons = [
        (tokenizer.encode(beginning), tokenizer.encode(saying))  # type: ignore[attr-defined]
        for beginning in BEGINNINGS
        for saying in sayings
    ]
    length = max(len(before) + len(after) for before, after in lessons)
    tokens = torch.full((len(lessons), length), _UNSET)
    targets = torch.full((len(lessons), length), _UNSET)
    for row, (before, after) in enumerate(lessons):
        tokens[row, -len(before) - len(after) :] = torch.tensor(before + after)
        targets[row, -len(after) :] = torch.tensor(after)
    return tokens, targets
