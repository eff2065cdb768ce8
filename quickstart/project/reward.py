"""The reward of an answer."""

import re


def reward(response: str, prompt: str, metadata: dict) -> float:
    """Return 1.0 for the right number, less for one that is further off, and 0.0 for none.

    `metadata` is the row of data.jsonl from which the prompt was built.
    """
    found = re.search(r"-?\d+", response)
    if found is None:
        return 0.0
    off = abs(int(found[0]) - metadata["answer"])
    return max(0.0, 1.0 - off / (1 + abs(metadata["answer"])))
