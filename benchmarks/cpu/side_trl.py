"""TRL's side: steps of its GRPOTrainer on the same prompts, in ``.venvs/trl``.

Its settings are those of ``benchmarks/trl``, which were found to be fastest for it on a CPU. The
trainer runs one long training; a callback holds it between two steps until the next is asked for.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from math import gcd
from pathlib import Path
from typing import Any, TextIO

from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.cpu.answering import commands, private_stdout, send, versions
from benchmarks.cpu.workload import LORA_ALPHA, LORA_LAYERS, SEED, Workload

MICRO_BATCH = 16
MANY_STEPS = 10_000


class Steps(TrainerCallback):
    """Holds the trainer until a step is asked for, and answers when it is done."""

    def __init__(self, stream: TextIO, tokens: int) -> None:
        self.stream = stream
        self.tokens = tokens
        self.waiting = commands()
        self.sampled = 0.0
        self.started = 0.0
        self.is_first = True

    def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if not self.is_first and next(self.waiting, None) is None:
            raise SystemExit(0)
        self.started = time.perf_counter()

    def reward(self, completions: list[str], **rest: Any) -> list[float]:
        """Return rewards that alternate, and note that the answers are there."""
        self.sampled = time.perf_counter()
        return [float(number % 2) for number in range(len(completions))]

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        ended = time.perf_counter()
        if self.is_first:  # a warm-up
            self.is_first = False
            send(self.stream, {"ready": versions("trl", "peft", "transformers", "torch")})
            return
        times = {"sample": self.sampled - self.started, "train": ended - self.sampled}
        seconds = ended - self.started
        send(self.stream, {"seconds": seconds, "handoff": 0.0, **times, "tokens": self.tokens})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", type=Path, required=True)
    work = Workload.load(parser.parse_args().workload)
    new_tokens = len(work.answers_P_G_T[0][0])
    tokenizer = AutoTokenizer.from_pretrained(work.model, padding_side="left")
    prompts = [{"prompt": tokenizer.decode(prompt)} for prompt in work.prompts_P_T]
    micro_batch = gcd(work.answers, MICRO_BATCH)
    with private_stdout() as stream, tempfile.TemporaryDirectory() as folder:
        steps = Steps(stream, work.answers * new_tokens)
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(work.model),
            processing_class=tokenizer,
            reward_funcs=steps.reward,
            callbacks=[steps],
            train_dataset=Dataset.from_list(prompts),
            peft_config=LoraConfig(
                r=work.rank,
                lora_alpha=LORA_ALPHA,
                target_modules=list(LORA_LAYERS),
                task_type="CAUSAL_LM",
            ),
            args=GRPOConfig(
                output_dir=folder,
                seed=SEED,
                use_cpu=True,
                bf16=False,
                max_steps=MANY_STEPS,
                num_generations=work.group,
                generation_batch_size=work.answers,
                per_device_train_batch_size=micro_batch,
                gradient_accumulation_steps=work.answers // micro_batch,
                max_completion_length=new_tokens,
                generation_kwargs={"min_new_tokens": new_tokens},
                temperature=1.0,
                loss_type="dr_grpo",
                scale_rewards=False,
                beta=0.0,
                gradient_checkpointing=False,
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
        )
        trainer.train()


if __name__ == "__main__":
    main()
