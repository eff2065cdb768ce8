"""TRL's side: its GRPOTrainer with a PEFT adapter, as near to mint's loss as its settings come.

    .venvs/trl/bin/python -m benchmarks.trl.run_trl --model FOLDER --rows FILE

It runs in an environment of its own (constraints.txt), which has no mint but the rewards of this
repository on PYTHONPATH.
"""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from math import gcd
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer

from benchmarks.trl import task as the
from benchmarks.trl.record import Record
from benchmarks.trl.task import Problem, Settings, Task, score, side_parser

LORA_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CPU_MICRO_BATCH = 16


class Recorder(TrainerCallback):
    """Notes when a step begins and ends."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self.record.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.record.end(state.global_step)


class Reward:
    """The task's reward in TRL's form. It sees a whole step at once, group by group."""

    __name__ = "arithmetic"

    def __init__(self, record: Record, group: int) -> None:
        self.record = record
        self.group = group

    def __call__(
        self,
        prompts: list[str],
        completions: list[str],
        completion_ids: list[list[int]],
        a: list[int],
        b: list[int],
        **rest: Any,
    ) -> list[float]:
        problems = [Problem(*operands) for operands in zip(a, b, strict=True)]
        starts = range(0, len(prompts), self.group)
        self.record.sampled(
            [problems[start] for start in starts],
            [prompts[start] for start in starts],
            [completions[start : start + self.group] for start in starts],
            sum(map(len, completion_ids)),
        )
        return [
            score(text, problem).total for text, problem in zip(completions, problems, strict=True)
        ]


def stop_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every token with a newline in it: to stop at one of them is mint's ``stop=["\\n"]``."""
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    return [token for token, text in enumerate(texts) if the.STOP in text]


def load(folder: str, tokenizer: PreTrainedTokenizerBase) -> Any:
    """Load the model, with a newline as an end token."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *stop_tokens(tokenizer)]
    return model


def config(settings: Settings, options: Any, folder: str) -> GRPOConfig:
    """The demo's settings in TRL's words."""
    # dr_grpo divides the sum over tokens, which is mint's loss, by this number. Adam's steps are
    # the same for a loss of any scale when its epsilon has that scale too.
    divisor = settings.answers * the.MAX_TOKENS
    return GRPOConfig(
        output_dir=folder,
        seed=options.seed,
        use_cpu=not torch.cuda.is_available(),
        bf16=options.precision == "bfloat16",
        max_steps=settings.steps,
        # one batch of answers for one step
        num_generations=settings.group,
        generation_batch_size=settings.answers,
        per_device_train_batch_size=options.micro_batch,
        gradient_accumulation_steps=settings.answers // options.micro_batch,
        shuffle_dataset=False,
        # sampling
        max_completion_length=the.MAX_TOKENS,
        temperature=the.TEMPERATURE,
        use_transformers_continuous_batching=options.continuous_batching,
        # the loss
        loss_type="dr_grpo",
        scale_rewards=False,
        beta=0.0,
        # the optimizer
        learning_rate=the.LEARNING_RATE,
        lr_scheduler_type="constant",
        adam_beta1=the.BETAS[0],
        adam_beta2=the.BETAS[1],
        adam_epsilon=the.EPSILON / divisor,
        weight_decay=0.0,
        max_grad_norm=0.0,
        # speed: memory is not short, and nothing is written
        gradient_checkpointing=False,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def trainer_for(task: Task, settings: Settings, record: Record, options: Any) -> GRPOTrainer:
    tokenizer = AutoTokenizer.from_pretrained(options.model, padding_side="left")
    rows = [
        {"prompt": task.prompt(problem), "a": problem.a, "b": problem.b}
        for problems in task.steps
        for problem in problems
    ]
    with tempfile.TemporaryDirectory() as folder:
        return GRPOTrainer(
            model=load(options.model, tokenizer),
            processing_class=tokenizer,
            reward_funcs=Reward(record, settings.group),
            args=config(settings, options, folder),
            train_dataset=Dataset.from_list(rows),
            callbacks=[Recorder(record)],
            peft_config=LoraConfig(
                r=the.LORA_RANK,
                lora_alpha=the.LORA_ALPHA,
                target_modules=LORA_LAYERS,
                task_type="CAUSAL_LM",
            ),
        )


@torch.inference_mode()
def greedy(trainer: GRPOTrainer, prompts: list[str]) -> list[str]:
    """The most likely answer to every prompt."""
    model, tokenizer = trainer.model, trainer.processing_class
    model.eval()
    inputs = tokenizer(prompts, return_tensors="pt", padding=True).to(model.device)
    with trainer.accelerator.autocast():
        full = model.generate(**inputs, max_new_tokens=the.MAX_TOKENS, do_sample=False)
    model.train()
    answers = full[:, inputs["input_ids"].shape[1] :]
    return tokenizer.batch_decode(answers, skip_special_tokens=True)


def main() -> None:
    cuda = torch.cuda.is_available()
    parser = side_parser(__doc__)
    parser.add_argument(
        "--precision",
        choices=["float32", "bfloat16"],
        default="bfloat16" if cuda else "float32",
        help="bfloat16, TRL's default, is autocast over float32 weights",
    )
    parser.add_argument(
        "--micro-batch",
        type=int,
        help="answers of one backward pass; default: all on a GPU, and on a CPU "
        f"{CPU_MICRO_BATCH}, the fastest that was measured",
    )
    parser.add_argument("--continuous-batching", action="store_true")
    options = parser.parse_args()
    settings = Settings.of(options)
    fastest = settings.answers if cuda else gcd(settings.answers, CPU_MICRO_BATCH)
    options.micro_batch = options.micro_batch or fastest
    task = Task(settings, options.seed)
    record = Record(options.rows, task)
    trainer = trainer_for(task, settings, record, options)
    packages = ("trl", "peft", "transformers", "torch")
    record.ready(**{name: version(name) for name in packages})

    held_out = [task.prompt(problem) for problem in task.held_out]
    record.evaluated("before", greedy(trainer, held_out))
    trainer.train()
    record.evaluated("after", greedy(trainer, held_out))


if __name__ == "__main__":
    main()
