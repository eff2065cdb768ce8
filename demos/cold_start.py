"""Train on solved problems of a task first, so that RL has something to start from: a cold start.

    python demos/cold_start.py +experiment=countdown
    mint train +experiment=countdown model.start_from=tinker://...

RL learns from groups in which some answers are better than others. If the model approaches every
problem the same way, for example by adding all the numbers in countdown, there are few such groups,
and soon none. A few hundred solved problems show it other approaches, which gives RL a choice.

The arguments are those of `mint train`. The task's samples must have a solution in
`metadata["answer"]`, as those of reasoning-gym do. Problems that the run will hold out are left out
here too. Without MINT_BASE_URL it starts a service on this machine. Settings are environment
variables:

    MINT_SFT_EXAMPLES   512     solved problems
    MINT_SFT_EPOCHS     3       passes over them
    MINT_SFT_BATCH      16      examples per step
    MINT_SFT_LR         5e-4    decays linearly to zero

Names end in their dimensions: D datums.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import mint
from mint import types
from mint.jobs.compose import compose_jobs, find_conf
from mint.jobs.job import load_adapter, make_config
from mint.rl import RLConfig
from mint.rl.data.split import Split
from mint.rl.task import identify
from mint.tokenizer import plain_tokenizer

EXAMPLES = int(os.environ.get("MINT_SFT_EXAMPLES", "512"))
EPOCHS = int(os.environ.get("MINT_SFT_EPOCHS", "3"))
BATCH = int(os.environ.get("MINT_SFT_BATCH", "16"))
LEARNING_RATE = float(os.environ.get("MINT_SFT_LR", "5e-4"))


def solutions(adapter: Any, tokenizer: Any, cfg: RLConfig) -> list[types.Datum]:
    """Return solved problems, all different, none of them held out by the run."""
    split, found = Split(cfg.holdout_fraction), dict[str, types.Datum]()
    random.seed(f"cold start {cfg.seed}")
    while len(found) < EXAMPLES:
        for sample in adapter.build_dataset():
            prompt = adapter.make_prompt(sample, tokenizer)
            identity = identify(adapter, sample, prompt)
            if not split.holds_out(identity):
                found[identity] = datum(prompt, sample.metadata["answer"], tokenizer)
    return list(found.values())[:EXAMPLES]


def datum(prompt: list[int], solution: str, tokenizer: Any) -> types.Datum:
    """Return a datum of a prompt, its solution and a newline. Prompt tokens have weight 0."""
    answer = tokenizer.encode(f" {solution}\n", add_special_tokens=False)
    full = prompt + answer
    return types.Datum(
        model_input=types.ModelInput.from_ints(full[:-1]),
        loss_fn_inputs={
            "target_tokens": full[1:],
            "weights": [0.0] * (len(prompt) - 1) + [1.0] * len(answer),
        },
    )


def main() -> None:
    (composed,) = compose_jobs(find_conf(None), [*sys.argv[1:], "model.start_from=null"])
    cfg, adapter = make_config(composed.job), load_adapter(composed.job)
    service = mint.ServiceClient()
    client = service.create_lora_training_client(cfg.base_model, rank=cfg.rank, seed=cfg.seed)
    datums = solutions(adapter, plain_tokenizer(client.get_tokenizer()), cfg)
    batches = [
        order[start : start + BATCH]
        for order in (random.sample(datums, len(datums)) for _ in range(EPOCHS))
        for start in range(0, len(datums), BATCH)
    ]
    for step, datums_D in enumerate(batches, 1):
        result = client.forward_backward(datums_D, "cross_entropy")
        rate = LEARNING_RATE * (1 - (step - 1) / len(batches))
        client.optim_step(types.AdamParams(learning_rate=rate)).result()
        if step % 10 in (0, 1) or step == len(batches):
            tokens = sum(sum(each.loss_fn_inputs["weights"].data) for each in datums_D)
            loss = result.result().metrics["loss:sum"] / tokens
            print(f"step {step} of {len(batches)}: loss per token={loss:.3f}", flush=True)
    print(f"Saved: {client.save_state(name='cold-start').result().path}", flush=True)


if __name__ == "__main__":
    main()
