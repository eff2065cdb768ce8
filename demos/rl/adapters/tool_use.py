"""An agent with tools, which looks up prices and calculates before it answers.

    python demos/rl/adapters/tool_use.py

An environment is an object with an async `rollout(task, chat)`. It adds messages, lets the model
reply, runs the tools that the reply calls, and returns a reward. `chat` keeps the exact tokens that
were sampled: the model reads the results of tools, but is never trained on them.

The reward is the outcome minus costs: each tool call costs a little, a failed call more, and a
broken rule the most. The rules are to use tools, to look up the price, and to calculate with a
tool. Following them raises the reward step by step, before the first answer is right. The costs are
small, because a small model learns to make no calls if they are expensive.

MINT_TOOLS chooses the tools: `search`, `calculate`, and `python`, which runs in the sandbox.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mint.rewards import Score, check_answer
from mint.rl import Chat, calculator, python_tool, run_tools, search_tool

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rl_core import RLConfig, run_grpo

PRICES = {"apple": 3, "bread": 7, "cheese": 12, "melon": 9, "olive oil": 15, "tea": 6}
QUESTION = "What do {count} pieces of {name} cost?"
FACT = "One {name} costs {price} coins."
DOCUMENTS = {name: FACT.format(name=name, price=price) for name, price in PRICES.items()}
TOOLS = {
    "search": lambda: search_tool(DOCUMENTS, shown=1),
    "calculate": lambda: calculator,
    "python": python_tool,
}
RULES = (
    "You answer questions about prices. Look prices up and calculate with the tools. To use one, "
    'write <tool_call>{"name": ..., "arguments": {...}}</tool_call>. When you know the answer, '
    "write it as <answer>NUMBER</answer>."
)


def call(name: str, **arguments: str) -> str:
    """Return a tool call as the model should write it."""
    content = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>{content}</tool_call>"


def solved(name: str, price: int, count: int) -> list[tuple[str, str]]:
    """Return an example conversation that answers a question."""
    return [
        ("user", QUESTION.format(count=count, name=name)),
        ("assistant", call("search", query=name)),
        ("tool", f"{name}: {FACT.format(name=name, price=price)}"),
        ("assistant", call("calculate", expression=f"{count} * {price}")),
        ("tool", str(count * price)),
        ("assistant", f"<answer>{count * price}</answer>"),
    ]


EXAMPLES = [*solved("salt", 4, 2), *solved("rice", 8, 5)]
CALL_COST, FAILED_CALL_COST, RULE_COST = 0.01, 0.02, 0.1


@dataclass(frozen=True)
class Purchase:
    """A question about a price, and its answer."""

    name: str
    count: int

    @property
    def question(self) -> str:
        return QUESTION.format(count=self.count, name=self.name)

    @property
    def answer(self) -> int:
        return self.count * PRICES[self.name]


@dataclass
class Conduct:
    """The tool calls of a rollout, and which rules they followed."""

    calls: int = 0
    failed: int = 0
    looked_up: bool = False
    calculated: bool = False

    def saw(self, task: Purchase, tool: str, result: str) -> None:
        """Record a call and its result."""
        self.calls += 1
        self.failed += result.startswith("error:")
        self.looked_up |= DOCUMENTS[task.name] in result
        self.calculated |= tool != "search" and not result.startswith("error:")


class ToolUseEnvironment:
    """A shop assistant."""

    def __init__(self, tools: Sequence[str] = ("calculate", "search")) -> None:
        unknown = [name for name in tools if name not in TOOLS]
        if unknown:
            raise ValueError(f"There is no tool {unknown[0]!r}; choose from {', '.join(TOOLS)}.")
        self.tools = {name: TOOLS[name]() for name in tools}
        self.name = "-".join(["tool-use", *tools])

    def build_dataset(self) -> list[Purchase]:
        return [Purchase(random.choice(sorted(PRICES)), random.randint(2, 20)) for _ in range(50)]

    async def rollout(self, task: Purchase, chat: Chat) -> Score:
        chat.use_tools([tool.schema for tool in self.tools.values()])
        chat.system(RULES)
        for role, content in EXAMPLES:
            chat.add(role, content)
        chat.user(task.question)
        conduct = Conduct()
        reply = await chat.reply()
        while reply.tool_calls and chat.turns_left:
            results = await run_tools(self.tools, reply.tool_calls)
            for asked, result in zip(reply.tool_calls, results, strict=True):
                conduct.saw(task, asked.name, result)
                chat.tool(result)
            reply = await chat.reply()
        return self.reward(task, reply.text, conduct)

    def reward(self, task: Purchase, answer: str, conduct: Conduct) -> Score:
        """Return the outcome minus the costs, with its components."""
        kept = (conduct.calls > 0, conduct.looked_up, conduct.calculated)
        parts = {
            "outcome": check_answer(answer, task.answer),
            "tool_cost": -CALL_COST * conduct.calls,
            "failed_calls": -FAILED_CALL_COST * conduct.failed,
            "rules": -RULE_COST * kept.count(False),
        }
        return Score(sum(parts.values()), parts)

    def evaluate(self, step: int, rewards: list[float], num_datums: int) -> None:
        mean = sum(rewards) / len(rewards) if rewards else 0.0
        print(f"Step {step}: reward={mean:.3f}, datums={num_datums}", flush=True)


DEFAULTS = {
    "MINT_RL_MAX_TOKENS": "96",
    "MINT_RL_MAX_TURNS": "4",
    "MINT_RL_SUCCESS_THRESHOLD": "0.9",
}


def main() -> str:
    cfg = RLConfig.from_env({**DEFAULTS, **os.environ})
    tools = os.environ.get("MINT_TOOLS", "calculate,search").split(",")
    return run_grpo(ToolUseEnvironment(tools), cfg)


if __name__ == "__main__":
    main()
