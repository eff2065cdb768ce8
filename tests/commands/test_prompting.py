"""A run directory tells how its model was prompted."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from mint.commands.weights.prompting import TrainedPrompt


def write(folder: Path, **arguments: object) -> Path:
    (folder / "config.yaml").write_text(yaml.safe_dump({"stop": ["\n"], "max_tokens": 12}))
    (folder / "job.yaml").write_text(yaml.safe_dump({"task": {"arguments": arguments}}))
    return folder


def test_the_settings_of_a_dataset_are_repeated(tmp_path: Path) -> None:
    arguments = {"system_prompt": "Be brief.", "template": "Q: {question} {{x}}\nA:", "shots": 2}
    found = TrainedPrompt.read(
        write(tmp_path, **arguments, chat_template_kwargs={"enable_thinking": False})
    )
    assert (found.system, found.raw, found.stop, found.max_tokens) == (
        "Be brief.",
        False,
        ("\n",),
        12,
    )
    assert found.fill("1 + 1?") == "Q: 1 + 1? {x}\nA:"
    assert found.template_settings == {"enable_thinking": False}
    assert "without its 2 examples" in found.describe()


def test_plain_text_is_asked_as_plain_text(tmp_path: Path) -> None:
    assert TrainedPrompt.read(write(tmp_path, chat=False)).raw
    (tmp_path / "job.yaml").unlink()
    (tmp_path / "rollouts.jsonl").write_text('{"step": 1, "prompt": "2 + 2 ="}\n')
    assert TrainedPrompt.read(tmp_path).raw
    chat = '{"step": 1, "prompt": "<|im_start|>user\\n2 + 2?<|im_end|>\\n"}\n'
    (tmp_path / "rollouts.jsonl").write_text(chat)
    assert not TrainedPrompt.read(tmp_path).raw


def test_examples_in_plain_text_are_repeated(tmp_path: Path) -> None:
    shown = "Q: What is 25 + 49?\nA: 74\n\n"
    asked = (f"{shown}Q: What is {n} + 4?\nA:" for n in (3, 31))
    rows = (json.dumps({"step": 1, "prompt": prompt}) + "\n" for prompt in asked)
    (tmp_path / "rollouts.jsonl").write_text("".join(rows))
    folder = write(tmp_path, chat=False, template="Q: {question}\nA:", shots=1)
    found = TrainedPrompt.read(folder)
    assert found.examples + found.fill("1 + 1?") == f"{shown}Q: 1 + 1?\nA:"
    assert "with its 1 example," in found.describe()


def test_a_template_of_several_columns_is_left_out(tmp_path: Path) -> None:
    found = TrainedPrompt.read(write(tmp_path, template="{context}: {question}"))
    assert found.fill("1 + 1?") == "1 + 1?"
    assert "template" not in found.describe()
