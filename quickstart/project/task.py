"""The task: which prompts the model sees, and what an answer to one of them is worth."""

import json
import re
from pathlib import Path

from mint.rl import RLAdapter

DATA = Path(__file__).with_name("data.jsonl")
EXAMPLE = "Q: What is 4 + 5?\nA: 9\n\n"  # shows a small model what an answer looks like


class MyTask(RLAdapter):
    """Questions and answers from data.jsonl."""

    def build_dataset(self):
        """Return the rows. Training draws from them; a share is kept for evaluation."""
        return [json.loads(line) for line in DATA.read_text().splitlines() if line.strip()]

    def make_prompt(self, sample, tokenizer):
        """Return the tokens that the model continues."""
        return tokenizer.encode(f"{EXAMPLE}Q: {sample['question']}\nA:")

    def compute_reward(self, response, sample):
        """Return 1.0 for the right number, less the further it is off, and 0.0 without one."""
        found = re.search(r"-?\d+", response)
        if found is None:
            return 0.0
        off = abs(int(found[0]) - sample["answer"])
        return max(0.0, 1.0 - off / (1 + abs(sample["answer"])))
