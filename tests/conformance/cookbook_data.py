"""A working directory in which the cookbook finds its tokenizers and data without the hub.

``from_pretrained("Org/Name")`` and ``load_dataset("Org/Name")`` look for a folder of that name in
the working directory first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

GSM8K_CARD = """---
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train.jsonl}
  - {split: test, path: main/test.jsonl}
---
"""


def lay_out(folder: Path, model: Path, names: Iterable[str]) -> Path:
    """Fill a working directory: the model's files under each of its names, and small datasets."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(model)
    for split in ("train", "test"):
        _write(folder / f"HuggingFaceH4/no_robots/{split}.jsonl", map(_conversation, range(8)))
        _write(folder / f"openai/gsm8k/main/{split}.jsonl", map(_problem, range(8)))
        _write(folder / f"zwhe99/DeepMath-103K/{split}.jsonl", map(_problem, range(8)))
        _write(folder / f"Anthropic/hh-rlhf/{split}.jsonl", map(_comparison, range(8)))
    (folder / "openai/gsm8k/README.md").write_text(GSM8K_CARD)
    _write(folder / "tangqiaoyu/ToolAlpaca/train.jsonl", map(_tool_use, range(8)))
    sentences = folder / "tinker_cookbook/example_data/multilingual.txt"
    sentences.parent.mkdir(parents=True)
    sentences.write_text("".join(f"Bonjour tout le monde, {i} fois.\n" for i in range(8)))
    return folder


def _write(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _conversation(i: int) -> dict[str, Any]:
    question = {"role": "user", "content": f"Say {i}."}
    return {"messages": [question, {"role": "assistant", "content": str(i)}]}


def _problem(i: int) -> dict[str, Any]:
    """The answer is always 1, which the model says now and then."""
    return {"question": f"What is {i + 1} minus {i}?", "answer": "It is one. #### 1"}


def _comparison(i: int) -> dict[str, Any]:
    question = f"\n\nHuman: Say {i}.\n\nAssistant:"
    return {"chosen": f"{question} {i}", "rejected": f"{question} no"}


def _tool_use(i: int) -> dict[str, Any]:
    return {"instruction": f"Look up {i}.", "output": f"look_up({i})"}
