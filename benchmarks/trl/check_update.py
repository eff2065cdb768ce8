"""In TRL's environment: train with TRL, give its answers to mint's engine, compare the adapters.

    python -m benchmarks.trl.check_update MODEL_FOLDER

Prints how far the two adapters are apart, as a share of how far training has moved them. The
rewards are random, since a random model is never right.
"""

from __future__ import annotations

import random
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from benchmarks.trl import task as the
from benchmarks.trl.record import Record
from benchmarks.trl.run_trl import trainer_for
from benchmarks.trl.task import Settings, Task
from mint.engine.engine import Engine
from mint.engine.messages import AdamSettings, Datum, ForwardBackward, LoraSpec
from mint.engine.model.base_model import BaseModel

ADAM = AdamSettings(the.LEARNING_RATE, *the.BETAS, the.EPSILON)


def main(model: str, work: Path) -> None:
    settings = Settings(steps=3, prompts=4, group=4)
    task = Task(settings, seed=0)
    options = Namespace(
        model=model, seed=0, precision="float32", micro_batch=4, continuous_batching=False
    )
    trainer = trainer_for(task, settings, Record(work / "rows.jsonl", task), options)
    trainer.reward_funcs = [rewarded_at_random(trainer.reward_funcs[0])]
    batches = noted(trainer)
    trainer.model.save_pretrained(work / "start")
    trainer.train()
    trainer.model.save_pretrained(work / "trl")

    engine = Engine(BaseModel.load("tiny", model, precision="exact"))
    engine.create_run("run", LoraSpec(rank=the.LORA_RANK, train_unembed=False))
    engine.load_state("run", str(work / "start"), optimizer=False)
    for batch in batches:
        train(engine, batch)
    (work / "mint").mkdir()
    engine.save_adapter("run", str(work / "mint"))

    start, trl, mint = (weights(work / name) for name in ("start", "trl", "mint"))
    print(float((trl - mint).norm() / (trl - start).norm()))


def rewarded_at_random(reward: Any) -> Any:
    """The same rows in the record, and another reward."""
    numbers = random.Random(0)
    return lambda **columns: [numbers.random() for _ in reward(**columns)]


def noted(trainer: Any) -> list[dict[str, Any]]:
    """The answers and advantages of every step, as TRL makes them."""
    batches: list[dict[str, Any]] = []
    make = trainer._generate_and_score_completions

    def make_and_note(inputs: Any) -> Any:
        batches.append(make(inputs))
        return batches[-1]

    trainer._generate_and_score_completions = make_and_note
    return batches


def train(engine: Engine, batch: dict[str, Any]) -> None:
    """One step of mint on TRL's answers. The sampler's logprobs are the trainer's, as in TRL."""
    keys = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages")
    data = [datum(*row) for row in zip(*(batch[key] for key in keys), strict=True)]
    look = ForwardBackward(data, "cross_entropy", forward_only=True)
    [now] = engine.forward_backward("run", [look])
    for each, logprobs in zip(data, now.logprobs, strict=True):
        each.inputs["logprobs"] = logprobs
    engine.forward_backward("run", [ForwardBackward(data, "importance_sampling")])
    engine.optim_step("run", ADAM)


def datum(prompt: Any, prompt_mask: Any, answer: Any, answer_mask: Any, advantage: Any) -> Datum:
    tokens = torch.cat([prompt[prompt_mask.bool()], answer[answer_mask.bool()]]).numpy()
    weights = (np.arange(len(tokens) - 1) >= int(prompt_mask.sum()) - 1).astype(np.float32)
    inputs = {
        "target_tokens": tokens[1:],
        "weights": weights,
        "advantages": weights * float(advantage),
    }
    return Datum(tokens[:-1], inputs)


def weights(folder: Path) -> torch.Tensor:
    """All tensors of an adapter in one row."""
    tensors = load_file(folder / "adapter_model.safetensors")
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1], Path(folder))
