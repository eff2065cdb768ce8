"""An environment of the `verifiers` package with several turns and a tool that looks up prices."""

from __future__ import annotations

import re

import verifiers as vf
from datasets import Dataset

PRICES = {"apple": 3, "bread": 7, "cheese": 12, "melon": 9, "oil": 15, "tea": 6}
EXAMPLE = [
    {"role": "user", "content": "What does one salt cost?"},
    {
        "role": "assistant",
        "content": '<tool_call>{"name": "price", "arguments": {"item": "salt"}}</tool_call>',
    },
    {"role": "tool", "content": "One salt costs 4 coins.", "tool_call_id": "example"},
    {"role": "assistant", "content": "4 coins"},
]


def price(item: str) -> str:
    """What one item costs."""
    return f"One {item} costs {PRICES[item]} coins."


def right(completion: vf.Messages, answer: str) -> float:
    """Whether the last number is the answer."""
    return float(re.findall("[0-9]+", completion[-1].content)[-1:] == [answer])


def load_environment() -> vf.Environment:
    rows = [{"question": f"What does one {i} cost?", "answer": str(p)} for i, p in PRICES.items()]
    return vf.ToolEnv(
        tools=[price],
        max_turns=3,
        dataset=Dataset.from_list(rows),
        system_prompt="Look the price up with the tool, then say how many coins.",
        few_shot=EXAMPLE,
        rubric=vf.Rubric(funcs=[right]),
    )
