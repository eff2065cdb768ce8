"""GRPO on one page: sample, score, compare, train.

A language model answers each question several times. A reward function scores each answer. Answers
that score above the mean of their question are made more likely, and those below it less likely.
The code below does exactly this.

A task is an `RLAdapter`: where questions come from, how they are asked, how an answer is scored.

    from rl_core import RLAdapter, RLConfig, run_grpo

    class Additions(RLAdapter):
        def build_dataset(self):
            return [(random.randint(0, 9), random.randint(0, 9)) for _ in range(50)]

        def make_prompt(self, sample, tokenizer):
            return tokenizer.encode(f"Q: What is {sample[0]} + {sample[1]}?\nA:")

        def compute_reward(self, response, sample):
            return float(response.strip() == str(sum(sample)))

    run_grpo(Additions(), RLConfig(steps=20))

What is left out of GRPO as it was published, and how to get it back:
  - rewards are centred in their group but not divided by its standard deviation, which would favour
    questions that are almost always or almost never solved (advantage="standardise");
  - there is no clipping: a batch is used for one step, so that the policy has not moved away from
    the one that sampled it (loss_fn="ppo", with substeps=2 or more);
  - there is no KL term: with a reward that cannot be fooled it only slows learning down
    (kl_penalty_coef=0.05 puts it into the reward).

Settings are the fields of `RLConfig` and variables of the environment: MINT_BASE_MODEL,
MINT_LORA_RANK, MINT_RL_STEPS, MINT_RL_BATCH, MINT_RL_GROUP, MINT_RL_LR, MINT_RL_MAX_TOKENS,
MINT_RL_TEMPERATURE, and MINT_RL_ with the name of any other field. docs/rl.md has all of them.

Names end in their dimensions: P prompts of a step, G answers of a group, D datums.
"""

from __future__ import annotations

from typing import Any

import mint.rl
from mint.rl import (
    Group,
    RLAdapter,
    RLConfig,
    Run,
    advantages,
    build_datums,
    learning_rate_at,
    penalise,
    policy_before,
    sample,
    train,
    with_signal,
)

__all__ = ["RLAdapter", "RLConfig", "run_grpo"]


def run_grpo(adapter: Any, cfg: RLConfig | None = None) -> str:
    """Train on a task. Returns the path of the trained weights.

    After Ctrl-C, a crash or a lost service, the same call resumes the run.
    """
    return mint.rl.run_loop(grpo, adapter, cfg)


async def grpo(run: Run) -> None:
    """The loop. It runs in an event loop, so that all groups can be in flight at once."""
    cfg, client, queue = run.cfg, run.client, run.queue
    for step in run.steps():
        # 1. Sample, with the newest weights. Every prompt of the step is in flight at once, and
        #    each group is scored as soon as it arrives. An answer whose reward failed is counted,
        #    and left out.
        queue.publish(await policy_before(client, run.tokenizer, cfg, step))
        queue.fill(batches=min(max(1, cfg.max_staleness), cfg.steps - step + 1))
        batch = await sample(queue, step)

        # 2. Compare. A group whose answers are all equally good has no signal. With
        #    kl_penalty_coef, the KL to the reference is subtracted from an answer's reward.
        await penalise(batch, run.reference)
        groups_P = with_signal(batch.groups, cfg)
        rewards_P_G = [[rollout.total for rollout in group.counted] for group in groups_P]
        set_advantages(groups_P, advantages(rewards_P_G, cfg.advantage))

        # 3. Train. A datum is the tokens of a prompt and an answer, with the logprob that each
        #    token of the answer had when it was sampled, and its advantage. Tokens of the prompt
        #    have no weight. The task may edit the datums.
        datums_D = build_datums(groups_P, cfg.token_weights, cfg.max_tokens, cfg.loss_fn)
        datums_D = run.edit_datums(batch, datums_D)
        queue.fill(batches=min(cfg.max_staleness, cfg.steps - step))  # sampled during training
        rate = learning_rate_at(cfg, step)
        batch.updates += [await train(client, datums_D, cfg, rate, run.reference, batch.policy)]

        # 4. Record metrics, every rollout and the findings of the guards, save a checkpoint if
        #    one is due, and call the adapter's evaluate().
        await run.record([batch])


def set_advantages(groups_P: list[Group], advantages_P_G: list[list[float]]) -> None:
    """Give every counted answer its advantage over its group."""
    for group, advantages_G in zip(groups_P, advantages_P_G, strict=True):
        for rollout, advantage in zip(group.counted, advantages_G, strict=True):
            rollout.advantage = advantage
