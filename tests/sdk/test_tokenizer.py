"""The tokenizer of a client: chat templates give token ids."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping

import pytest

import mint
from mint.tokenizer import plain_tokenizer
from tests.service_fixture import MODEL
from tests.tiny import build_tokenizer

CHAT = [{"role": "user", "content": "hi"}]
OTHER = [{"role": "user", "content": "hello there"}]
TOKENIZER = plain_tokenizer(build_tokenizer())


@pytest.mark.parametrize("kind", ["training", "sampling"])
def test_a_chat_template_gives_a_list_that_a_model_input_takes(kind: str, service: str) -> None:
    client = mint.ServiceClient(base_url=service)
    if kind == "training":
        tokenizer = client.create_lora_training_client(MODEL, rank=4).get_tokenizer()
    else:
        tokenizer = client.create_sampling_client(base_model=MODEL).get_tokenizer()
    tokens = list(tokenizer.apply_chat_template(CHAT, tokenize=True, add_generation_prompt=True))
    assert mint.types.ModelInput.from_ints(tokens=tokens).to_ints() == tokens
    assert tokenizer.decode(tokens).endswith("<|im_start|>assistant\n")


def test_several_conversations_give_a_list_for_each() -> None:
    both = TOKENIZER.apply_chat_template([CHAT, OTHER])
    assert both == [TOKENIZER.apply_chat_template(CHAT), TOKENIZER.apply_chat_template(OTHER)]
    assert all(type(token) is int for tokens in both for token in tokens)


def test_return_dict_keeps_its_meaning() -> None:
    answer = TOKENIZER.apply_chat_template(CHAT, return_dict=True)
    assert isinstance(answer, Mapping)
    assert answer["input_ids"] == TOKENIZER.apply_chat_template(CHAT, return_dict=False)
    assert answer["input_ids"] == TOKENIZER.apply_chat_template(CHAT)


def test_text_stays_text() -> None:
    text = TOKENIZER.apply_chat_template(CHAT, None, tokenize=False)
    assert text.startswith("<|im_start|>user\nhi")


def test_a_changed_template_is_used() -> None:
    changed = copy.deepcopy(TOKENIZER)
    changed.chat_template = "changed"
    assert changed.decode(changed.apply_chat_template(CHAT)) == "changed"
    assert TOKENIZER.decode(TOKENIZER.apply_chat_template(CHAT)) != "changed"


def test_the_tokenizer_can_be_pickled() -> None:
    copied = pickle.loads(pickle.dumps(TOKENIZER))
    assert copied.apply_chat_template(CHAT) == TOKENIZER.apply_chat_template(CHAT)


def test_the_tokenizer_that_was_given_stays_as_it_was() -> None:
    original = build_tokenizer()
    plain_tokenizer(original)
    assert isinstance(original.apply_chat_template(CHAT), Mapping)
