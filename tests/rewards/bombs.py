"""Inputs of a megabyte that have brought down parsers, and the functions that must survive them.

Run as a script it calls one function on one input in a process that may use so much processor
time and no more: ``python -m tests.rewards.bombs``.
"""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import mint.rewards as rewards
from mint.rewards.answers.symbolic import shared_pool
from mint.rewards.registry import RANGES

SIZE = 1_000_000

PIECES = {
    "digits": "1",
    "spaced digits": "1 ",
    "digits and commas": "1,",
    "groups of thousands": "1,000",
    "zeros in groups": ",000",
    "hyphens": "-",
    "spaced hyphens": "- ",
    "equals signs": "=",
    "at most": "<=",
    "markers": "The answer is ",
    "unfinished markers": "answer to ",
    "opening tags": "<answer>",
    "tags": "<answer></answer>",
    "opening boxes": "\\boxed{",
    "boxes": "\\boxed{1}",
    "unfinished fractions": "\\frac{",
    "fractions": "\\frac{1}{2}",
    "roots": "\\sqrt[",
    "spaces": " ",
    "lines": "\n",
    "points": ".",
    "exponents": "1e",
    "ligatures": "\ufdfa",
    "combining marks": "\u0300\u0316",
    "superscripts": "¹a",
    "vulgar fractions": "1½",
    "full-width digits": "１",
    "dollars": "$",
    "percentages": "1%",
    "text wrappers": "\\text{",
    "slashes": "1/",
    "spelt numbers": "one ",
    "letters": "a",
    "emoji": "😀",
    "nulls": "\0",
    "fences": "```\n",
    "quotes": '"',
    "brackets": "[",
    "braces": '{"a":',
    "links": "http://a ",
    "because": "5 because ",
    "checks": "check: 1=",
}
WHOLE = {
    "a tower": "\\boxed{9^{9^{9^{9}}}}",
    "an open tower": "x = " + "9^" * 400 + "9",
    "deep brackets": "\\boxed{" + "(" * 900 + "}",
    "a fence without an end": "```" + "a" * SIZE,
    "backticks": "`" * SIZE,
    "exclamation marks": "!" * SIZE + "x",
    "a fraction too large for a float": "9" * 400 + ".5",
}

ARGUMENTS: dict[str, dict[str, Any]] = {
    "check_numbers": {"expected_numbers": [1, 2, 3]},
    "check_keywords": {"required": ["red", "1"], "forbidden": ["blue"]},
    "check_json": {"schema": {"type": "object"}},
    "check_length": {"max_words": 10, "max_sentences": 3},
    "check_structure": {"paragraphs": 2, "bullets": 3, "lines": 4, "no_commas": True},
    "check_instructions": {"instructions": [{"check": "length", "max_words": 5}]},
    "compute_reward_breakdown": {"correct_answer": 5},
    "evaluate_relevance": {"prompt": "What is 2 + 2?"},
    "composite_reward": {"prompt": "What is 2 + 2?", "ground_truth": "4"},
}
# The functions that read text by themselves are tried on everything, those built on them on this.
READERS = ("check_answer with a number", "match_format_exactly with numbers", "extract_code")
HARD = (
    *WHOLE,
    *("superscripts", "vulgar fractions", "unfinished markers", "boxes", "digits", "letters"),
)
GOLD = {"ground_truth": "42"}
FORMAT = {"expected_format": "[TEXT] the answer is [NUM] or <answer>…</answer>"}
CORE: dict[str, Callable[[str], Any]] = {
    "check_answer with a number": lambda text: rewards.check_answer(text, "42"),
    "check_answer with a text": lambda text: rewards.check_answer(text, "Paris"),
    "check_answer with a formula": lambda text: rewards.check_answer(text, "x^2+1"),
    "match_format_exactly with numbers": lambda text: rewards.match_format_exactly(
        text, "[NUM] [NUM]"
    ),
    "extract_code": rewards.extract_code,
    "failure_pattern": lambda text: rewards.failure_pattern(text, "42"),
    "countdown_reward": lambda text: rewards.countdown_reward(text, [1, 2], 3),
}


def functions() -> dict[str, Callable[[str], Any]]:
    """Every built-in reward, and the functions under them."""
    listed: dict[str, Callable[[str], Any]] = dict(CORE)
    for name in RANGES:
        reward = rewards.find_reward(name)
        arguments = {**GOLD, **FORMAT, **ARGUMENTS.get(name, {})}
        listed[name] = lambda text, reward=reward, a=arguments: reward(  # type: ignore[misc]
            text, a.get("prompt", ""), a
        )
    return listed


def inputs() -> dict[str, str]:
    """Every input, about a megabyte of UTF-8 each."""
    repeated = {
        name: piece * (SIZE // len(piece.encode("utf-8"))) for name, piece in PIECES.items()
    }
    return repeated | WHOLE


def calls() -> Iterator[tuple[str, str]]:
    """Which function is tried on which input."""
    for function_name in functions():
        for input_name in (*PIECES, *WHOLE) if function_name in READERS else HARD:
            yield function_name, input_name


def main(seconds: float) -> None:
    """Call every function on every input; a call that overruns ends the process by SIGPROF."""
    shared_pool().start()  # the formula workers are up before the clock runs
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    all_functions, all_inputs = functions(), inputs()
    for function_name, input_name in calls():
        print(f"{function_name} on {input_name}", flush=True)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        all_functions[function_name](all_inputs[input_name])
        signal.setitimer(signal.ITIMER_PROF, 0)
    print("all survived", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
