"""Answers of a policy, and responses of a service that are not as they should be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mint.rl.rollouts.policy import Policy, PolicyAnswer
from mint.rl.runtime.threads import to_thread

WORDS = ["<end>", "<turn>", "four", "."]
END, TURN, FOUR, DOT = range(4)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Has an end of text, and another mark that ends turns, as Gemma and Llama have."""
    inner = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, "."))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<end>", extra_special_tokens=["<turn>"]
    )


@pytest.mark.parametrize(
    ("tokens", "truncated", "stop", "text"),
    [
        ([FOUR, END], False, (), "four"),
        ([FOUR, TURN], False, (), "four"),
        ([FOUR, DOT], False, (".",), "four ."),
        ([FOUR, TURN], False, ("<turn>",), "four <turn>"),
        ([FOUR, TURN], True, (), "four <turn>"),
        ([FOUR], True, (), "four"),
        ([], False, (), ""),
    ],
)
def test_an_answer_is_without_the_mark_that_closed_it(
    tokenizer: Any, tokens: list[int], truncated: bool, stop: tuple[str, ...], text: str
) -> None:
    policy = Policy(None, tokenizer, 1.0, 8, stop)  # type: ignore[arg-type]
    answer = PolicyAnswer(tokens, [-1.0] * len(tokens), truncated)
    assert policy.text(answer) == text
    assert policy.has_ended(answer) == (text == "four" and not truncated)


def test_a_function_that_runs_out_in_a_thread_is_an_error_and_not_a_wait() -> None:
    def first_of_none() -> int:
        return next(iter([]))

    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(to_thread(first_of_none))
