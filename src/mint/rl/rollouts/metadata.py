"""A task's samples as reward functions see them: a prompt and metadata."""

from collections.abc import Mapping
from typing import Any

from mint.rewards import Sample

_QUESTIONS = ("prompt", "question", "problem")
ANSWERS = ("answer", "ground_truth")


def as_sample(sample: Any, response: str) -> Sample:
    """A task's sample as reward functions see it: a response, a prompt, and metadata.

    >>> as_sample(("What is 3 + 5?", "8"), "It is 8.")
    Sample(response='It is 8.', prompt='What is 3 + 5?', metadata={'answer': '8'})
    >>> as_sample({"question": "What is 3 + 5?", "answer": "8"}, "8").metadata["answer"]
    '8'
    """
    if isinstance(sample, str):
        return Sample(response, sample)
    if isinstance(sample, tuple) and len(sample) == 2 and isinstance(sample[0], str):
        return Sample(response, sample[0], {"answer": sample[1]})
    if isinstance(getattr(sample, "metadata", None), Mapping):
        return Sample(response, str(getattr(sample, "prompt", "")), sample.metadata)
    values = dict(sample) if isinstance(sample, Mapping) else _attributes(sample)
    prompt = next((str(values[name]) for name in _QUESTIONS if name in values), "")
    return Sample(response, prompt, values or {"sample": sample})


def _attributes(sample: Any) -> dict[str, Any]:
    values = dict(vars(sample)) if hasattr(sample, "__dict__") else {}
    named = [name for name in (*_QUESTIONS, *ANSWERS) if hasattr(sample, name)]
    return values | {name: getattr(sample, name) for name in named}
