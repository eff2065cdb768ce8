"""What an answer is worth."""

import re


def reward(response: str, prompt: str, metadata: dict) -> float:
    """Return 1.0 for the right number, less the further it is off, and 0.0 without a number.

    `metadata` is the row of data.jsonl that the prompt was made from.
    """
    found = re.search(r"-?\d+", response)
    if found is None:
        return 0.0
    off = abs(int(found[0]) - metadata["answer"])
    return max(0.0, 1.0 - off / (1 + abs(metadata["answer"])))
