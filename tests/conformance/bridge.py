"""What the bridge to verifiers does with environments written for it; prints it as JSON.

It runs in the environment of verifiers, with the demo and our client side on its path. Its settings
are the variables of ``RLConfig.from_env``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from itertools import count, groupby
from pathlib import Path
from typing import Any

import verifiers as vf
import verifiers_bridge
from datasets import Dataset

from mint import types
from mint.rl import RLConfig, Rollout, compare_answers, open_run, policy_before, sample
from mint.rl.datums.datum import values
from mint.watch.directory.recorder import METRICS, read_rows


class Echo(vf.MultiTurnEnv):
    """Repeats what the model said, and never ends by itself."""

    async def env_response(self, messages: vf.Messages, state: vf.State) -> vf.Messages:
        text = f"You said {messages[-1].content}"
        return [vf.UserMessage(content=[{"type": "text", "text": text}])]


class Forgetful(Echo):
    """Shows the model only the last message."""

    async def get_prompt_messages(self, state: vf.State) -> vf.Messages:
        return (await super().get_prompt_messages(state))[-1:]


class Closed(Echo):
    """Fails in its first conversation."""

    conversations = count()

    async def setup_state(self, state: vf.State) -> vf.State:
        if next(self.conversations) == 0:
            raise vf.InfraError from RuntimeError("the shop is closed")
        return state


def lucky(completion: vf.Messages) -> float:
    return float("7" in completion[-1].content)


def made(kind: type[Echo], prompt: list[dict[str, Any]]) -> vf.Environment:
    rows = [{"prompt": prompt, "answer": ""} for _ in range(4)]
    return kind(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[lucky]))


def one_batch(environment: vf.Environment, name: str, turns: int = 3) -> list[dict[str, Any]]:
    """The rollouts of a step, each as verifiers and as its datums have it."""
    states: list[vf.State] = []

    def number(state: vf.State) -> int:
        states.append(state)
        return len(states) - 1

    environment.add_rubric(vf.Rubric(funcs=[number], weights=[0.0]))
    bridge = verifiers_bridge.VerifiersEnvironment(environment)
    own = {"MINT_RL_RUN_DIR": name, "MINT_RL_MAX_TURNS": str(turns)}

    async def sampled() -> list[dict[str, Any]]:
        async with open_run(bridge, RLConfig.from_env({**os.environ, **own})) as run:
            run.queue.publish(await policy_before(run.client, run.tokenizer, run.cfg, 1))
            run.queue.fill(1)
            batch = await sample(run.queue, 1)
            datums = iter(compare_answers(batch.groups, run.cfg))
            return [
                {
                    "error": rollout.error,
                    "reward": rollout.reward,
                    "components": rollout.components,
                    "verifiers": None if rollout.error else said(states, rollout),
                    "datums": [
                        trained(next(datums), run.tokenizer.decode)
                        for _ in range(len(rollout.segments) if rollout.advantage else 0)
                    ],
                }
                for group in batch.groups
                for rollout in group.rollouts
            ]

    return asyncio.run(sampled())


def said(states: list[vf.State], rollout: Rollout) -> dict[str, Any]:
    """What verifiers knows of a rollout."""
    state = states[int(rollout.components.pop("number"))]
    messages = [message.model_dump() for message in (*state["prompt"], *state["completion"])]
    return {
        "messages": [[message["role"], message["content"]] for message in messages],
        "asked": len(state["prompt"]),
        "replies": [[s["completion"][0].content, s["is_truncated"]] for s in state["trajectory"]],
        "reward": state["reward"],
    }


def trained(datum: types.Datum, decode: Callable[[list[int]], str]) -> dict[str, Any]:
    """A datum in words: all of it, and the runs of tokens that have a weight."""
    targets = [int(token) for token in datum.loss_fn_inputs["target_tokens"].data]
    weights, logprobs = values(datum, "weights"), values(datum, "logprobs")
    runs = groupby(zip(targets, weights, strict=True), key=lambda pair: pair[1] > 0)
    return {
        "text": decode([datum.model_input.to_ints()[0], *targets]),
        "weighted": [decode([token for token, _ in run]) for inside, run in runs if inside],
        "masked_alike": [bool(w) for w in weights] == [bool(x) for x in logprobs],
    }


def trained_by_name(name: str) -> dict[str, Any]:
    """Run the demo's own command, as a user types it."""
    folder = Path(f"{name}-run")
    os.environ["MINT_RL_RUN_DIR"] = str(folder)
    path = verifiers_bridge.main(name)
    return {"path": path, "metrics": read_rows(folder / METRICS)}


def main() -> None:
    report = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    runs = {name: trained_by_name(name) for name in ("sums", "shop")}
    example = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "tool_calls": [{"id": "1", "name": "look", "arguments": "{}"}]},
        {"role": "tool", "content": "Seven.", "tool_call_id": "1"},
    ]
    question = [{"role": "user", "content": "Say 7."}]
    seen = {
        "sums": one_batch(vf.load_environment("sums"), "sums-batch"),
        "shop": one_batch(vf.load_environment("shop"), "shop-batch"),
        "echo": one_batch(made(Echo, question), "echo", turns=3),
        "forgetful": one_batch(made(Forgetful, question), "forgetful", turns=2),
        "closed": one_batch(made(Closed, [*example, *question]), "closed", turns=2),
    }
    print(json.dumps({"runs": runs, "batches": seen}), file=report, flush=True)


if __name__ == "__main__":
    main()
