"""An agent with tools: it may calculate and look things up before it answers.

    python demos/rl/adapters/tool_use.py

An environment is an object with an async `rollout(task, chat)`. It says things, lets the model
reply, runs the tools that the reply asks for, and returns a reward. `chat` keeps the very tokens
that were sampled: what the tools said is read by the model, but never trained on.

The reward is made of the outcome and of the way there: each call of a tool costs a little, a call
that cannot be read costs more, and an answer before any tool was used is against the rules.
"""

from __future__ import annotations

import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mint.rewards import Score, check_answer
from mint.rl import Chat, calculator, run_tools, search_tool

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rl_core import RLConfig, run_grpo

PRICES = {"apple": 3, "bread": 7, "cheese": 12, "melon": 9, "olive oil": 15, "tea": 6}
DOCUMENTS = {name: f"One {name} costs {price} coins." for name, price in PRICES.items()}
TOOLS = {tool.name: tool for tool in (calculator, search_tool(DOCUMENTS, shown=1))}
RULES = (
    "You answer questions about prices. Look prices up and calculate with the tools. To use one, "
    'write <tool_call>{"name": ..., "arguments": {...}}</tool_call>. When you know the answer, '
    "write it as <answer>NUMBER</answer>."
)
EXAMPLE = [
    ("user", "What do 2 pieces of salt cost?"),
    ("assistant", '<tool_call>{"name": "search", "arguments": {"query": "salt"}}</tool_call>'),
    ("tool", "One salt costs 4 coins."),
    (
        "assistant",
        '<tool_call>{"name": "calculate", "arguments": {"expression": "2 * 4"}}</tool_call>',
    ),
    ("tool", "8"),
    ("assistant", "<answer>8</answer>"),
]
CALL_COST, BROKEN_CALL_COST, RULE_COST = 0.02, 0.1, 0.2


@dataclass(frozen=True)
class Purchase:
    """A question, and its answer from the same numbers."""

    name: str
    count: int

    @property
    def question(self) -> str:
        return f"What do {self.count} pieces of {self.name} cost?"

    @property
    def answer(self) -> int:
        return self.count * PRICES[self.name]


class ToolUseEnvironment:
    """A shop assistant."""

    def build_dataset(self) -> list[Purchase]:
        return [Purchase(random.choice(sorted(PRICES)), random.randint(2, 20)) for _ in range(50)]

    async def rollout(self, task: Purchase, chat: Chat) -> Score:
        chat.use_tools([tool.schema for tool in TOOLS.values()])
        chat.system(RULES)
        for role, content in EXAMPLE:
            chat.add(role, content)
        chat.user(task.question)
        calls = broken = 0
        reply = await chat.reply()
        while reply.tool_calls and chat.turns_left:
            calls += len(reply.tool_calls)
            broken += sum(call.error is not None for call in reply.tool_calls)
            for result in await run_tools(TOOLS, reply.tool_calls):
                chat.tool(result)
            reply = await chat.reply()
        return self.reward(task, reply.text, calls, broken)

    def reward(self, task: Purchase, answer: str, calls: int, broken: int) -> Score:
        """The outcome, less what the way there cost."""
        parts = {
            "outcome": check_answer(answer, task.answer),
            "tool_cost": -CALL_COST * calls,
            "broken_calls": -BROKEN_CALL_COST * broken,
            "rules": 0.0 if calls else -RULE_COST,
        }
        return Score(sum(parts.values()), parts)

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
        mean = sum(rewards) / len(rewards) if rewards else 0.0
        print(f"Step {step}: reward={mean:.3f}, datums={num_datums}", flush=True)


def main() -> Any:
    cfg = RLConfig.from_env()
    cfg.max_tokens = int(os.environ.get("MINT_RL_MAX_TOKENS", "96"))
    cfg.max_turns = int(os.environ.get("MINT_RL_MAX_TURNS", "4"))
    cfg.success_threshold = 0.9
    return run_grpo(ToolUseEnvironment(), cfg)


if __name__ == "__main__":
    main()
